//! The record of a call: what stands in the `meta` of a request and of a reply (docs/protocol.md, Functions).
//!
//! Another process has written it, so all of it is checked when it is read: each length, each number of a tensor, and
//! that unused fields are zero. Whether the tree has the items that the table names is checked when the tree is read.

use crate::error::{Code, Error, Result};
use crate::layout::{arg as arg_at, call_record as rec, chain_link as link_at};

/// Bytes of an Arg, and of a link of the chain.
pub(crate) const ARG: usize = arg_at::SIZE as usize;
const LINK: usize = link_at::SIZE as usize;
pub(crate) const HEAD: usize = rec::SIZE as usize;

/// Calls within each other.
pub(crate) const MOST_CHAIN: usize = 64;

/// Values of `kind`.
pub(crate) const REQUEST: u32 = 1;
pub(crate) const REPLY: u32 = 2;

/// Flags of a request.
pub(crate) const TAKES_PARTS: u32 = 1;
/// Flags of a reply.
pub(crate) const IS_ERROR: u32 = 1;
pub(crate) const IS_PART: u32 = 2;

/// What an Arg is.
pub(crate) mod code {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const INT: u8 = 1;
    pub(crate) const BOOL: u8 = 2;
    pub(crate) const FLOAT: u8 = 3;
    pub(crate) const TENSOR: u8 = 4;
    pub(crate) const TREE: u8 = 5;
    pub(crate) const TEXT: u8 = 6;
    pub(crate) const BYTES: u8 = 7;
    pub(crate) const DTYPE: u8 = 8;
    pub(crate) const DEVICE: u8 = 9;
}

/// The fixed part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Head {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) call: u64,
    /// Of a request: until when it is of use, 0: without a limit; of a reply: when the function began.
    pub(crate) time: u64,
    /// Of a request: the index of the topic for replies; of a reply: the number of the part.
    pub(crate) topic: u32,
    pub(crate) topic_id: u64,
    pub(crate) token: [u8; 16],
    /// Of a request that takes parts: how many of them may be sent that the caller has not taken.
    pub(crate) window: u32,
    /// Of a request to a function that was an argument: its number among those of the topic; else 0.
    pub(crate) object: u64,
}

impl Head {
    /// Whether a request is of no use any more, by the clock of all processes.
    #[inline]
    pub(crate) fn is_late(&self, now: u64) -> bool {
        self.time != 0 && now >= self.time
    }
}

/// A call within which another one is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) topic_id: u64,
    pub(crate) slot: u32,
}

/// One argument, or a part of a reply.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arg<'a> {
    /// Empty where it is given by its position.
    pub(crate) name: &'a str,
    pub(crate) is: Is<'a>,
}

/// What stands in the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Is<'a> {
    None,
    Int(i64),
    Bool(bool),
    Float(f64),
    /// Which tensor of the message.
    Tensor(u32),
    /// Which item of the tree.
    Tree(u32),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// Code, bits, lanes.
    DType(u8, u8, u16),
    /// Type and number.
    Device(i32, i32),
}

#[cold]
fn bad(what: impl Into<String>) -> Error {
    Error::new(Code::Protocol, "its sender wrote what is not a call of Baton: update or restart it", what)
}

fn u16_at(b: &[u8], at: u64) -> u16 {
    b.get(at as usize..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_le_bytes(*b))
}

fn u32_at(b: &[u8], at: u64) -> u32 {
    b.get(at as usize..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_le_bytes(*b))
}

fn u64_at(b: &[u8], at: u64) -> u64 {
    b.get(at as usize..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b))
}

/// A record that was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) head: Head,
    args: &'a [u8],
    chain: &'a [u8],
    texts: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads a record; `tensors`: how many the message has.
    pub(crate) fn parse(src: &'a [u8], tensors: usize) -> Result<Record<'a>> {
        let r = Record::cut(src)?;
        r.check(tensors)?;
        Ok(r)
    }

    /// Reads the head of a record, and cuts what stands behind it. Its Args are those that were checked, if it was.
    #[inline]
    pub(crate) fn cut(src: &'a [u8]) -> Result<Record<'a>> {
        let Some((head, rest)) = src.split_first_chunk::<HEAD>() else {
            return Err(bad(format!("a call with a record of {} bytes", src.len())));
        };
        let (args, chain) = (usize::from(u16_at(head, rec::ARGS)), usize::from(u16_at(head, rec::CHAIN)));
        let texts = u32_at(head, rec::TEXTS) as usize;
        if chain > MOST_CHAIN || rest.len().checked_sub(ARG * args + LINK * chain) != Some(texts) {
            let n = rest.len();
            return Err(bad(format!(
                "a call of {args} arguments in a chain of {chain}, with {texts} bytes of text, in {n}"
            )));
        }
        let kind = u32_at(head, rec::KIND);
        let flags = match kind {
            REQUEST => TAKES_PARTS,
            REPLY => IS_ERROR | IS_PART,
            _ => return Err(bad(format!("a call with a record of kind {kind}"))),
        };
        let mut token = [0; 16];
        token.copy_from_slice(&head[rec::TOKEN as usize..][..16]);
        let h = Head {
            kind,
            flags: u32_at(head, rec::FLAGS),
            call: u64_at(head, rec::CALL),
            time: u64_at(head, rec::DEADLINE),
            topic: u32_at(head, rec::TOPIC),
            topic_id: u64_at(head, rec::TOPIC_ID),
            token,
            window: u32_at(head, rec::WINDOW),
            object: u64_at(head, rec::OBJECT),
        };
        let of_requests = h.topic_id != 0 || h.token != [0; 16] || chain > 0 || h.window != 0 || h.object != 0;
        let parts = h.flags & TAKES_PARTS != 0;
        let odd = if kind == REPLY { of_requests } else { parts != (h.window != 0) };
        if h.flags & !flags != 0 || h.call == 0 || odd {
            return Err(bad(format!("a call with the number {}, flags {:#x}", h.call, h.flags)));
        }
        let (table, behind) = rest.split_at(ARG * args);
        let (chain, texts) = behind.split_at(LINK * chain);
        Ok(Record { head: h, args: table, chain, texts })
    }

    /// Looks at each Arg and link once.
    fn check(&self, tensors: usize) -> Result<()> {
        let mut at = 0;
        for i in 0..self.len() {
            let (arg, used) = self.read(i, at).map_err(|what| bad(format!("argument {i} of a call {what}")))?;
            at += used;
            if let Is::Tensor(n) = arg.is
                && n as usize >= tensors
            {
                return Err(bad(format!("argument {i} of a call is tensor {n} of {tensors}")));
            }
        }
        if at != self.texts.len() {
            return Err(bad(format!("a call has {} bytes of text, and its arguments {at}", self.texts.len())));
        }
        if self.chain.chunks_exact(LINK).any(|l| u32_at(l, link_at::ZERO) != 0) {
            return Err(bad("a link of a call's chain has a rest that is not zero"));
        }
        Ok(())
    }

    /// How many arguments there are.
    pub(crate) fn len(&self) -> usize {
        self.args.len() / ARG
    }

    /// Reads Arg i, whose texts begin at a place; the bytes that they take.
    #[inline]
    fn read(&self, i: usize, at: usize) -> std::result::Result<(Arg<'a>, usize), &'static str> {
        let a = &self.args[ARG * i..][..ARG];
        let (code, zero) = (a[arg_at::CODE as usize], a[arg_at::ZERO as usize]);
        let (name, n, value) = (usize::from(u16_at(a, arg_at::NAME)), u32_at(a, arg_at::N), u64_at(a, arg_at::VALUE));
        let text = if matches!(code, code::TEXT | code::BYTES) { n as usize } else { 0 };
        let used = name + text; // of two that fit in 32 bits
        let mut texts: &'a [u8] = &[];
        if used > 0 {
            texts = self.texts.get(at..).and_then(|rest| rest.get(..used)).ok_or("has texts that are not there")?;
        }
        let (name, text) = texts.split_at(name);
        let name = std::str::from_utf8(name).map_err(|_| "has a name that is not UTF-8")?;
        let is = match (code, n, value) {
            (code::NONE, 0, 0) => Is::None,
            (code::INT, 0, _) => Is::Int(value as i64),
            (code::BOOL, 0, 0 | 1) => Is::Bool(value == 1),
            (code::FLOAT, 0, _) => Is::Float(f64::from_bits(value)),
            (code::TENSOR, _, 0) => Is::Tensor(n),
            (code::TREE, _, 0) => Is::Tree(n),
            (code::TEXT, _, 0) => Is::Text(std::str::from_utf8(text).map_err(|_| "has a text that is not UTF-8")?),
            (code::BYTES, _, 0) => Is::Bytes(text),
            (code::DTYPE, 0, 0..=0xffff_ffff) => Is::DType(value as u8, (value >> 8) as u8, (value >> 16) as u16),
            (code::DEVICE, 0, _) => Is::Device(value as i32, (value >> 32) as i32),
            _ => return Err("has an unknown kind"),
        };
        if zero != 0 {
            return Err("has a byte that is not zero");
        }
        Ok((Arg { name, is }, used))
    }

    /// The arguments in their order, and where the texts of each begin.
    pub(crate) fn each(self) -> impl Iterator<Item = Arg<'a>> {
        let mut at = 0;
        (0..self.len()).map_while(move |i| {
            let (arg, used) = self.read(i, at).ok()?;
            at += used;
            Some(arg)
        })
    }

    /// Arg i; `None` where there are fewer.
    #[inline]
    pub(crate) fn nth(&self, i: usize) -> Option<Arg<'a>> {
        if i >= self.len() {
            return None;
        }
        let at = (0..i).map(|k| self.texts_of(k)).fold(0, |at, (name, text)| at + name + text);
        self.read(i, at).ok().map(|(arg, _)| arg)
    }

    /// The Arg of a reply: its only one, which has no name.
    #[inline]
    pub(crate) fn only(&self) -> Option<Arg<'a>> {
        self.nth(0).filter(|a| self.len() == 1 && a.name.is_empty())
    }

    /// The Arg of a name.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<Arg<'a>> {
        let mut at = 0;
        for i in 0..self.len() {
            let (named, text) = self.texts_of(i);
            if named == name.len() && self.texts.get(at..)?.get(..named)? == name.as_bytes() {
                return self.read(i, at).ok().map(|(arg, _)| arg);
            }
            at += named + text;
        }
        None
    }

    /// The name that two Args have, of a request that is one for no receiver.
    #[inline]
    pub(crate) fn given_twice(self) -> Option<&'a str> {
        let named = |a: &[u8]| u16_at(a, arg_at::NAME) != 0;
        self.args.chunks_exact(ARG).filter(|a| named(a)).nth(1)?; // mostly fewer than two have one
        let mut names: Vec<_> = self.each().map(|a| a.name).filter(|n| !n.is_empty()).collect();
        names.sort_unstable();
        names.windows(2).find(|w| w[0] == w[1]).map(|w| w[0])
    }

    /// Bytes of the name of Arg i, and of its text.
    #[inline]
    fn texts_of(&self, i: usize) -> (usize, usize) {
        let a = &self.args[ARG * i..][..ARG];
        let text = matches!(a[arg_at::CODE as usize], code::TEXT | code::BYTES);
        (usize::from(u16_at(a, arg_at::NAME)), if text { u32_at(a, arg_at::N) as usize } else { 0 })
    }

    /// The calls within which this one is made, the outermost first.
    pub(crate) fn chain(&self) -> impl ExactSizeIterator<Item = Link> + 'a {
        self.chain
            .chunks_exact(LINK)
            .map(|l| Link { topic_id: u64_at(l, link_at::TOPIC_ID), slot: u32_at(l, link_at::SLOT) })
    }
}

/// The error of arguments of which two have a name.
#[cold]
pub(super) fn twice(name: &str) -> Error {
    Error::new(Code::InvalidArgument, "name each argument once", format!("the argument {name} is given twice"))
}

/// Writes the head of a record whose Args stand behind it, and the chain and the texts behind them. `InvalidArgument`,
/// and nothing is written, where two Args have a name.
pub(crate) fn finish(
    record: &mut Vec<u8>,
    head: &Head,
    chain: impl ExactSizeIterator<Item = Link>,
    texts: &[u8],
) -> Result<()> {
    if let Some(name) = (Record { head: *head, args: &record[HEAD..], chain: &[], texts }).given_twice() {
        return Err(twice(name));
    }
    let args = (record.len() - HEAD) / ARG;
    let (Ok(args), Ok(text)) = (u16::try_from(args), u32::try_from(texts.len())) else {
        let what = format!("a call of {args} arguments with {} bytes of text", texts.len());
        let remedy = "give at most 65,535 arguments: many in a list, and large values in tensors";
        return Err(Error::new(Code::InvalidArgument, remedy, what));
    };
    let mut put = |at: u64, bytes: &[u8]| record[at as usize..][..bytes.len()].copy_from_slice(bytes);
    put(rec::KIND, &head.kind.to_le_bytes());
    put(rec::FLAGS, &head.flags.to_le_bytes());
    put(rec::CALL, &head.call.to_le_bytes());
    put(rec::DEADLINE, &head.time.to_le_bytes());
    put(rec::TOPIC, &head.topic.to_le_bytes());
    put(rec::ARGS, &args.to_le_bytes());
    put(rec::CHAIN, &(chain.len() as u16).to_le_bytes());
    put(rec::TOPIC_ID, &head.topic_id.to_le_bytes());
    put(rec::TOKEN, &head.token);
    put(rec::TEXTS, &text.to_le_bytes());
    put(rec::WINDOW, &head.window.to_le_bytes());
    put(rec::OBJECT, &head.object.to_le_bytes());
    for link in chain {
        record.extend_from_slice(&link.topic_id.to_le_bytes());
        record.extend_from_slice(&u64::from(link.slot).to_le_bytes());
    }
    record.extend_from_slice(texts);
    Ok(())
}

/// Adds an Arg to a record whose head has its room.
#[inline]
pub(crate) fn push(record: &mut Vec<u8>, code: u8, name: u16, n: u32, value: u64) {
    let first = u64::from(code) | u64::from(name) << 16 | u64::from(n) << 32;
    let mut arg = [0; ARG];
    arg[..8].copy_from_slice(&first.to_le_bytes());
    arg[8..].copy_from_slice(&value.to_le_bytes());
    record.extend_from_slice(&arg);
}

const _: () = {
    // `push` and `finish` write whole words.
    assert!(arg_at::CODE == 0 && arg_at::ZERO == 1 && arg_at::NAME == 2 && arg_at::N == 4 && arg_at::VALUE == 8);
    assert!(link_at::TOPIC_ID == 0 && link_at::SLOT == 8 && link_at::ZERO == 12);
};

#[cold]
pub(super) fn malformed(what: &str) -> Error {
    Error::new(
        Code::Protocol,
        "its sender wrote what is not a call of Baton: update or restart it",
        format!("a call with {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_OF_A_CALL: Head = Head {
        kind: REQUEST,
        flags: 1,
        call: 7,
        time: 99,
        topic: 4,
        topic_id: 21,
        token: [9; 16],
        window: 3,
        object: 5,
    };

    /// A record with an Arg of each kind.
    fn sample() -> Vec<u8> {
        let mut r = vec![0; HEAD];
        push(&mut r, code::NONE, 0, 0, 0);
        push(&mut r, code::INT, 0, 0, i64::MIN as u64);
        push(&mut r, code::BOOL, 0, 0, 1);
        push(&mut r, code::FLOAT, 0, 0, f64::NEG_INFINITY.to_bits());
        push(&mut r, code::TENSOR, 0, 1, 0);
        push(&mut r, code::TREE, 1, 0, 0);
        push(&mut r, code::TEXT, 2, 3, 0);
        push(&mut r, code::BYTES, 3, 2, 0);
        push(&mut r, code::DTYPE, 1, 0, 4 | 16 << 8 | 1 << 16);
        push(&mut r, code::DEVICE, 1, 0, 2 | 7 << 32);
        let chain = [Link { topic_id: 5, slot: 6 }, Link { topic_id: 21, slot: 4095 }];
        finish(&mut r, &HEAD_OF_A_CALL, chain.into_iter(), "abbtxtccc\x00\x01de".as_bytes()).unwrap();
        r
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let bytes = sample();
        let r = Record::parse(&bytes, 2).unwrap();
        assert_eq!(r.nth(7).map(|a| (a.name, a.is)), Some(("ccc", Is::Bytes(&[0, 1]))));
        assert_eq!(r.find("d").map(|a| a.is), Some(Is::DType(4, 16, 1)));
        assert!(r.nth(10).is_none() && r.find("f").is_none() && r.find("").is_some_and(|a| a.is == Is::None));
        assert_eq!(r.head, HEAD_OF_A_CALL);
        assert_eq!(r.chain().collect::<Vec<_>>(), [Link { topic_id: 5, slot: 6 }, Link { topic_id: 21, slot: 4095 }]);
        let all: Vec<_> = r.each().map(|a| (a.name, a.is)).collect();
        assert_eq!(
            all,
            [
                ("", Is::None),
                ("", Is::Int(i64::MIN)),
                ("", Is::Bool(true)),
                ("", Is::Float(f64::NEG_INFINITY)),
                ("", Is::Tensor(1)),
                ("a", Is::Tree(0)),
                ("bb", Is::Text("txt")),
                ("ccc", Is::Bytes(&[0, 1])),
                ("d", Is::DType(4, 16, 1)),
                ("e", Is::Device(2, 7)),
            ]
        );
    }

    #[test]
    fn a_name_that_two_arguments_have_is_found() {
        let twice = |names: &[&str]| {
            let mut r = vec![0; HEAD];
            names.iter().for_each(|n| push(&mut r, code::INT, n.len() as u16, 0, 1));
            finish(&mut r, &HEAD_OF_A_CALL, [].into_iter(), names.concat().as_bytes())?;
            Ok::<_, Error>(r)
        };
        let mut r = twice(&["", "", "a", "ab", "b"]).unwrap();
        assert_eq!(Record::parse(&r, 0).unwrap().given_twice(), None);
        assert_eq!(twice(&["", "b", "a", "ab", "b"]).unwrap_err().message(), "the argument b is given twice");
        *r.last_mut().unwrap() = b'a'; // as another process may write it
        assert_eq!(Record::parse(&r, 0).unwrap().given_twice(), Some("a"));
    }

    #[test]
    fn damaged_records_are_refused_or_differ_and_never_panic() {
        let bytes = sample();
        let said = |b: &[u8]| Record::parse(b, 2).ok().map(|r| format!("{r:?}"));
        let whole = said(&bytes).unwrap();
        for cut in 0..bytes.len() {
            assert!(said(&bytes[..cut]).is_none(), "{cut} bytes");
        }
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut x = bytes.clone();
                x[at] ^= flip;
                assert_ne!(said(&x).as_ref(), Some(&whole), "byte {at} does not matter");
            }
        }
        assert!(Record::parse(&bytes, 1).is_err(), "a tensor that the message does not have");
    }

    #[test]
    fn each_field_at_its_extremes() {
        let with = |at: u64, bytes: &[u8]| {
            let mut r = sample();
            r[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Record::parse(&r, 2).map(|r| r.head).map_err(|e| e.code())
        };
        let refused = Err(Code::Protocol);
        for (at, most) in
            [(rec::CALL, u64::MAX), (rec::DEADLINE, u64::MAX), (rec::TOPIC_ID, u64::MAX), (rec::TOPIC_ID, 0)]
        {
            assert!(with(at, &most.to_le_bytes()).is_ok());
        }
        assert!(with(rec::TOPIC, &u32::MAX.to_le_bytes()).is_ok_and(|h| h.topic == u32::MAX));
        for kind in [0, 3, u32::MAX] {
            assert_eq!(with(rec::KIND, &kind.to_le_bytes()), refused);
        }
        for (at, word) in
            [(rec::FLAGS, 2u32), (rec::FLAGS, u32::MAX), (rec::WINDOW, 0), (rec::TEXTS, 0), (rec::TEXTS, u32::MAX)]
        {
            assert_eq!(with(at, &word.to_le_bytes()), refused, "{at}");
        }
        for (at, half) in
            [(rec::ARGS, 0u16), (rec::ARGS, u16::MAX), (rec::CHAIN, 0), (rec::CHAIN, u16::MAX), (rec::CHAIN, 3)]
        {
            assert_eq!(with(at, &half.to_le_bytes()), refused, "{at}");
        }
        assert_eq!(with(rec::CALL, &[0; 8]), refused);
        let arg = |i: u64, at: u64| rec::SIZE + i * arg_at::SIZE + at;
        for (at, n) in [(arg(6, arg_at::N), u32::MAX), (arg(4, arg_at::N), 2), (arg(1, arg_at::N), 1)] {
            assert_eq!(with(at, &n.to_le_bytes()), refused, "{at}");
        }
        assert_eq!(with(arg(6, arg_at::NAME), &u16::MAX.to_le_bytes()), refused);
        assert_eq!(with(arg(0, arg_at::VALUE), &[1]), refused, "a value of None");
        assert_eq!(with(arg(2, arg_at::VALUE), &[2]), refused, "a third truth value");
        assert_eq!(with(arg(8, arg_at::VALUE + 4), &[1]), refused, "a dtype of more than 32 bits");
        assert_eq!(with(arg(0, arg_at::CODE), &[10]), refused, "an unknown kind");
    }

    #[test]
    fn the_longest_chain_is_read_and_no_longer_one() {
        let of = |n: usize| {
            let mut r = vec![0; HEAD];
            finish(&mut r, &HEAD_OF_A_CALL, (0..n).map(|_| Link { topic_id: 1, slot: 1 }), &[]).unwrap();
            Record::parse(&r, 0).map(|r| r.chain().len()).map_err(|e| e.code())
        };
        assert_eq!((of(MOST_CHAIN), of(MOST_CHAIN + 1)), (Ok(64), Err(Code::Protocol)));
    }

    #[test]
    fn records_of_the_vectors_are_read_and_written_alike() {
        let path = format!("{}/../protocol/testdata/v1/structs/call.json", env!("CARGO_MANIFEST_DIR"));
        let v: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect(&path)).expect(&path);
        let cases = v["cases"].as_array().unwrap();
        assert!(!cases.is_empty(), "{path} has no cases");
        for case in cases {
            let hex = case["hex"].as_str().unwrap();
            let digits = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
            let mut bytes: Vec<u8> = (0..hex.len() / 2).map(digits).collect();
            bytes.resize(case["bytes"].as_u64().unwrap() as usize, 0);
            let r = Record::parse(&bytes, 100).unwrap_or_else(|e| panic!("{}: {e}", case["name"]));
            let args = case["tail"]["args"].as_array().unwrap();
            assert_eq!(r.each().count(), args.len(), "{}", case["name"]);
            let (mut again, mut texts) = (vec![0; HEAD], Vec::new());
            for (a, want) in r.each().zip(args) {
                assert_eq!(a.name, want["name"].as_str().unwrap());
                let value = |v: u64| assert_eq!(want["value"].as_str().unwrap(), v.to_string());
                texts.extend_from_slice(a.name.as_bytes());
                let n = a.name.len() as u16;
                let (code, number, word) = match a.is {
                    Is::None => (code::NONE, 0, 0),
                    Is::Int(i) => (code::INT, 0, i as u64),
                    Is::Bool(b) => (code::BOOL, 0, b.into()),
                    Is::Float(f) => (code::FLOAT, 0, f.to_bits()),
                    Is::Tensor(k) => (code::TENSOR, k, 0),
                    Is::Tree(k) => (code::TREE, k, 0),
                    Is::Text(s) => (code::TEXT, s.len() as u32, 0),
                    Is::Bytes(b) => (code::BYTES, b.len() as u32, 0),
                    Is::DType(c, b, l) => (code::DTYPE, 0, u64::from(c) | u64::from(b) << 8 | u64::from(l) << 16),
                    Is::Device(t, k) => (code::DEVICE, 0, u64::from(t as u32) | u64::from(k as u32) << 32),
                };
                assert_eq!(u64::from(code), want["code"].as_u64().unwrap());
                value(word);
                match a.is {
                    Is::Text(s) => texts.extend_from_slice(s.as_bytes()),
                    Is::Bytes(b) => texts.extend_from_slice(b),
                    _ => {}
                }
                push(&mut again, code, n, number, word);
            }
            let chain: Vec<_> = r.chain().collect();
            finish(&mut again, &r.head, chain.into_iter(), &texts).unwrap();
            assert_eq!(again, bytes, "{}", case["name"]);
        }
    }

    #[test]
    fn a_reply_has_no_topic() {
        let mut r = vec![0; HEAD];
        let head = Head { kind: REPLY, flags: IS_ERROR, call: 7, time: 1, ..Head::default() };
        finish(&mut r, &head, [].into_iter(), &[]).unwrap();
        assert_eq!(Record::parse(&r, 0).unwrap().head, head);
        r[rec::TOKEN as usize] = 1;
        assert!(Record::parse(&r, 0).is_err());
    }
}
