//! The text of a tree while it is written: tags, numbers, paths and depth. What walks over a value,
//! here or in a binding, says in which order things stand.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{MOST_DEPTH, MOST_SAFE, Names};

/// The first and last steps of a long path; no character is cut.
fn short(path: &str) -> Cow<'_, str> {
    const MOST_STEPS: usize = 12;
    const FEW: usize = 4;
    const MOST: usize = 120;
    let steps: Vec<&str> = path.split('/').collect();
    let few = match steps.len() {
        n if n > MOST_STEPS => Cow::from(format!("{}/…/{}", steps[..FEW].join("/"), steps[n - FEW..].join("/"))),
        _ => path.into(),
    };
    if few.len() <= MOST {
        return few;
    }
    let (mut head, mut tail) = (MOST / 2, few.len() - MOST / 2);
    while !few.is_char_boundary(head) {
        head -= 1;
    }
    while !few.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}…{}", &few[..head], &few[tail..]).into()
}

/// What stands in a tree around others.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Around<'a> {
    /// A list.
    List,
    /// A dict whose keys are texts, and none is `$`.
    Object,
    /// A tuple; of a named one the class and the names of the fields.
    Tuple(Option<(&'a str, &'a [String])>),
    /// A dict of pairs, each of which is a list.
    Pairs,
    /// The fields of an object of a class.
    Dataclass(&'a str),
}

impl Around<'_> {
    /// Levels of JSON.
    fn levels(self) -> usize {
        match self {
            Around::List | Around::Object => 1,
            Around::Tuple(_) | Around::Dataclass(_) => 2,
            Around::Pairs => 3,
        }
    }
}

/// A tree that is being written, and where its writer is in it.
#[derive(Debug, Default)]
pub struct Tree {
    text: Vec<u8>,
    path: String,
    parts: usize, // of the path
    depth: usize,
    too_deep: bool,
}

impl Tree {
    /// What was written.
    #[inline]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// What was written, which ends it.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.text)
    }

    /// Where the writer is, as tensors have it for a name.
    #[inline]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where the writer is, for an error.
    pub fn place(&self) -> String {
        if self.path.is_empty() { "the value".to_owned() } else { format!("{:?} of the value", self.short_path()) }
    }

    /// The path for an error: of a long one the first and last steps, which name it best.
    pub fn short_path(&self) -> Cow<'_, str> {
        short(&self.path)
    }

    /// Enters a part. What it gives is for `leave`.
    #[inline]
    pub fn enter(&mut self, part: &str) -> usize {
        let before = self.path.len();
        // Every tensor's first part stands without a slash, the empty key as well.
        if self.parts > 0 {
            self.path.push('/');
        }
        self.path.push_str(&Names::escaped(part));
        self.parts += 1;
        before
    }

    /// Leaves a part.
    #[inline]
    pub fn leave(&mut self, before: usize) {
        self.path.truncate(before);
        self.parts -= 1;
    }

    /// Whether a tree may be as deep as what was written.
    #[inline]
    pub fn fits(&self) -> bool {
        !self.too_deep
    }

    /// Begins what stands around others.
    #[inline]
    pub fn begin(&mut self, a: Around<'_>) {
        self.depth += a.levels();
        self.too_deep |= self.depth > MOST_DEPTH;
        match a {
            Around::List => self.text.push(b'['),
            Around::Object => self.text.push(b'{'),
            Around::Tuple(named) => {
                self.text.extend_from_slice(br#"{"$":"tuple""#);
                if let Some((class, fields)) = named {
                    self.text.extend_from_slice(br#","type":"#);
                    self.string(class);
                    self.text.extend_from_slice(br#","fields":["#);
                    for (i, f) in fields.iter().enumerate() {
                        self.comma(i);
                        self.string(f);
                    }
                    self.text.push(b']');
                }
                self.text.extend_from_slice(br#","v":["#);
            }
            Around::Pairs => self.text.extend_from_slice(br#"{"$":"dict","v":["#),
            Around::Dataclass(class) => {
                self.text.extend_from_slice(br#"{"$":"dataclass","type":"#);
                self.string(class);
                self.text.extend_from_slice(br#","v":{"#);
            }
        }
    }

    /// Ends what was begun so.
    #[inline]
    pub fn end(&mut self, a: Around<'_>) {
        self.depth -= a.levels();
        self.text.extend_from_slice(match a {
            Around::List => b"]",
            Around::Object => b"}",
            Around::Tuple(_) | Around::Pairs => b"]}",
            Around::Dataclass(_) => b"}}",
        });
    }

    /// Separates item `i` of a list or an object from the one before.
    #[inline]
    pub fn comma(&mut self, i: usize) {
        if i > 0 {
            self.text.push(b',');
        }
    }

    /// Begins pair `i` of a dict.
    pub fn pair(&mut self, i: usize) {
        self.comma(i);
        self.text.push(b'[');
    }

    /// Goes on from the key of a pair to its value.
    pub fn pair_value(&mut self) {
        self.text.push(b',');
    }

    /// Ends a pair.
    pub fn end_pair(&mut self) {
        self.text.push(b']');
    }

    /// The key of an object's member.
    #[inline]
    pub fn key(&mut self, key: &str) {
        self.string(key);
        self.text.push(b':');
    }

    /// A tensor, by its number.
    #[inline]
    pub fn tensor(&mut self, i: usize) {
        self.too_deep |= self.depth == MOST_DEPTH; // a tag is a level
        self.text.extend_from_slice(br#"{"$":"tensor","i":"#);
        self.text.extend_from_slice(Decimal::of(i).text().as_bytes());
        self.text.push(b'}');
    }

    /// A registered function, by its name.
    pub fn function(&mut self, name: &str) {
        self.mark(r#"{"$":"function","name":"#);
        self.string(name);
        self.text.push(b'}');
    }

    /// A tag that is written elsewhere, or its beginning.
    pub fn mark(&mut self, text: &str) {
        self.too_deep |= self.depth == MOST_DEPTH; // a tag is a level
        self.text.extend_from_slice(text.as_bytes());
    }

    /// None.
    #[inline]
    pub fn null(&mut self) {
        self.text.extend_from_slice(b"null");
    }

    /// A truth value.
    #[inline]
    pub fn bool(&mut self, v: bool) {
        self.text.extend_from_slice(if v { b"true" } else { b"false" });
    }

    /// An integer, with a tag where JSON's readers would not have it exactly.
    #[inline]
    pub fn int(&mut self, n: i64) {
        match (-MOST_SAFE..=MOST_SAFE).contains(&n) {
            true => self.digits(&n.to_string()),
            false => self.tagged("int", &n.to_string()),
        }
    }

    /// An integer as it stands, without a tag.
    #[inline]
    pub fn digits(&mut self, digits: &str) {
        self.text.extend_from_slice(digits.as_bytes());
    }

    /// A float.
    #[inline]
    pub fn float(&mut self, f: f64) {
        match f {
            // Debug writes a point or an exponent always, which tells it from an integer, and is exact.
            f if f.is_finite() => self.digits(&format!("{f:?}")),
            f if f.is_nan() => self.tagged("float", "nan"),
            f => self.tagged("float", if f > 0.0 { "inf" } else { "-inf" }),
        }
    }

    /// Text.
    #[inline]
    pub fn string(&mut self, s: &str) {
        // A Vec takes all that is written, and text is never refused.
        let _ = serde_json::to_writer(&mut self.text, s);
    }

    /// Bytes.
    pub fn bytes(&mut self, b: &[u8]) {
        self.tagged("bytes", &STANDARD.encode(b));
    }

    /// A tag whose value is plain text.
    pub fn tagged(&mut self, tag: &str, v: &str) {
        self.too_deep |= self.depth == MOST_DEPTH; // a tag is a level
        for part in [r#"{"$":""#, tag, r#"","v":""#, v, r#""}"#] {
            self.text.extend_from_slice(part.as_bytes());
        }
    }
}

/// The decimal digits of a number, without an allocation.
#[derive(Debug)]
pub struct Decimal {
    digits: [u8; 20],
    from: usize,
}

impl Decimal {
    /// Those of `n`.
    #[inline]
    pub fn of(mut n: usize) -> Decimal {
        let (mut digits, mut from) = ([0; 20], 20);
        loop {
            from -= 1;
            digits[from] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                return Decimal { digits, from };
            }
        }
    }

    /// The digits.
    #[inline]
    pub fn text(&self) -> &str {
        // SAFETY: digits are ASCII.
        unsafe { std::str::from_utf8_unchecked(&self.digits[self.from..]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_named_by_its_ends() {
        assert_eq!(short("a/b"), "a/b");
        assert_eq!(short(&vec!["0"; 101].join("/")), "0/0/0/0/…/0/0/0/0");
        let long = short(&"é".repeat(1000)).into_owned();
        assert_eq!(long, format!("{0}…{0}", "é".repeat(30)));
    }
}
