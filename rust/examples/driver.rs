//! The Rust driver of the tests across languages (`integration/langs`): it does what lines of JSON on
//! its standard input ask for, one after the other, and answers each with a line.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use baton::{
    Bundle, Error, Handle, Lease, Message, NameOptions, Payload, Queue, Reader, Session, Start, Tensor, TopicOptions,
};
use serde_json::{Value, json};

/// The word that stands at place i of a tensor with a seed, in every language.
fn word_at(seed: u64, i: usize) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add((i as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    z ^= z >> 29;
    z.wrapping_mul(0x94d0_49bb_1331_11eb)
}

struct Driver {
    session: Session,
    topics: HashMap<String, baton::Topic>,
    queues: HashMap<String, Queue>,
    readers: HashMap<String, Reader>,
    held: Vec<(Held, u64)>,
}

/// The seed of a tensor by its first word: `word_at` undone.
fn seed_of(first: u64) -> u64 {
    let mut z = first.wrapping_mul(0x3196_42b2_d24d_8ec3);
    z ^= z >> 29 ^ z >> 58;
    z.wrapping_mul(0xf1de_83e1_9937_733d)
}

/// What is kept of a seed, to be looked at again.
enum Held {
    Message(Message),
    Bundle(Bundle),
    Tensor(Tensor),
}

type Outcome = Result<Value, Error>;

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

fn time(v: &Value) -> Duration {
    Duration::from_millis(v["timeout_ms"].as_u64().unwrap_or(90_000))
}

fn broken(what: String) -> Value {
    json!({ "broken": what })
}

/// Looks at every word; what is wrong, or null.
fn verify(t: &Tensor, seed: u64) -> Result<Value, Error> {
    let wrong = t.to_vec::<u64>()?.iter().enumerate().find(|(i, w)| **w != word_at(seed, *i)).map(|(i, _)| i);
    Ok(wrong.map_or(Value::Null, |i| broken(format!("word {i} of seed {seed}"))))
}

impl Driver {
    fn filled(&self, seed: u64, words: i64) -> Result<Tensor, Error> {
        let mut t = self.session.alloc::<u64>(&[words])?;
        t.iter_mut().enumerate().for_each(|(i, w)| *w = word_at(seed, i));
        Ok(t.freeze())
    }

    fn topic(&mut self, c: &Value) -> Result<baton::Topic, Error> {
        let name = text(c, "topic");
        if !self.topics.contains_key(name) {
            let mut o = TopicOptions::default().linger(Duration::ZERO);
            if c["lossless"] == true {
                o = o.overwrite(false);
            }
            if let Some(depth) = c["depth"].as_u64() {
                o = o.depth(depth as u32);
            }
            self.topics.insert(name.to_owned(), self.session.topic_with(name, &o)?);
        }
        Ok(self.topics[name].clone())
    }

    fn queue(&mut self, c: &Value) -> Result<Queue, Error> {
        let name = text(c, "queue");
        if !self.queues.contains_key(name) {
            let mut o = baton::QueueOptions::default().linger(Duration::ZERO);
            if let Some(depth) = c["depth"].as_u64() {
                o = o.depth(depth as u32);
            }
            if c["redeliver"] == true {
                o = o.redeliver(true);
            }
            self.queues.insert(name.to_owned(), self.session.queue_with(name, &o)?);
        }
        Ok(self.queues[name].clone())
    }

    /// Names of two tensors over one storage and one over another, so that refs, offsets and strides
    /// all matter; and as many more as `wide` says.
    fn value(&self, seed: u64, words: i64, c: &Value) -> Result<Payload, Error> {
        if c["lone"] == true {
            let mut t = self.session.alloc::<u64>(&[words, 2])?;
            t.iter_mut().enumerate().for_each(|(i, w)| *w = word_at(seed, i));
            return Ok(t.freeze().into());
        }
        let whole = self.filled(seed, words)?;
        let half = whole.as_strided(&[words / 2], None, words as u64 / 2)?;
        let other = self.filled(seed + 1, 3)?;
        let mut all = vec![("whole".to_owned(), whole), ("half".to_owned(), half), ("a/b".to_owned(), other)];
        for i in 0..c["wide"].as_u64().unwrap_or(0) {
            all.push((format!("x{i:03}"), self.filled(seed + i, 1)?));
        }
        Payload::named(all).meta(&json!({ "seed": seed }))
    }

    fn look(&mut self, b: &Bundle, seed: u64, c: &Value) -> Outcome {
        if let Some(lone) = b.get("") {
            let wrong = verify(lone, seed)?;
            if !wrong.is_null() {
                return Ok(wrong);
            }
            if c["write"] == true {
                let mut t = lone.clone();
                // SAFETY: as below.
                unsafe { t.as_mut_slice::<u64>() }?.fill(seed);
            }
            return Ok(json!({ "readonly": lone.is_read_only() }));
        }
        let get =
            |name: &str| b.get(name).ok_or_else(|| b.first().map_or_else(|| "none".to_owned(), |_| name.to_owned()));
        let (Ok(whole), Ok(half), Ok(other)) = (get("whole"), get("half"), get("a/b")) else {
            return Ok(broken(format!("names {:?}", b.iter().map(|(n, _)| n).collect::<Vec<_>>())));
        };
        for (t, s) in [(whole, seed), (other, seed + 1)] {
            let wrong = verify(t, s)?;
            if !wrong.is_null() {
                return Ok(wrong);
            }
        }
        let words = whole.to_vec::<u64>()?;
        if half.to_vec::<u64>()? != words[words.len() / 2..] {
            return Ok(broken(format!("half of seed {seed}")));
        }
        if c["write"] == true {
            let mut t = whole.clone();
            // SAFETY: an item of a queue or a live name that the test lets nothing else touch now.
            unsafe { t.as_mut_slice::<u64>() }?.fill(seed);
        }
        Ok(json!({ "readonly": whole.is_read_only() }))
    }

    /// Looks at every word of what is held once more.
    fn check(&mut self) -> Outcome {
        let again = json!({});
        let held = std::mem::take(&mut self.held);
        let mut found = Ok(json!({}));
        for (h, seed) in &held {
            let out = match h {
                Held::Message(m) => m.bundle().and_then(|b| self.look(&b, *seed, &again)),
                Held::Bundle(b) => self.look(b, *seed, &again),
                Held::Tensor(t) => verify(t, *seed),
            };
            let wrong = out.as_ref().map_or(true, |v| v["broken"].is_string());
            if wrong && found.as_ref().is_ok_and(|v: &Value| v["broken"].is_null()) {
                found = out;
            }
        }
        self.held = held;
        found
    }

    fn message(&mut self, m: Message, c: &Value) -> Outcome {
        let meta: Value = serde_json::from_slice(&m.meta()?).unwrap_or_default();
        let b = m.bundle()?;
        let seed = match b.get("") {
            Some(lone) => lone.to_vec::<u64>()?.first().map_or(0, |w| seed_of(*w)), // that of a hostile sender may be empty
            None => meta["seed"].as_u64().unwrap_or(0),
        };
        let mut out = self.look(&b, seed, c)?;
        out["seed"] = seed.into();
        out["sequence"] = m.sequence().into();
        out["lost"] = m.lost().into();
        if c["hold"] == true {
            self.held.push((Held::Message(m), seed));
        }
        Ok(out)
    }

    fn carry_out(&mut self, c: &Value) -> Outcome {
        let seed = c["seed"].as_u64().unwrap_or(0);
        let words = c["words"].as_i64().unwrap_or(1000);
        let count = c["count"].as_u64().unwrap_or(1);
        match text(c, "do") {
            "read" => {
                let topic = self.topic(c)?;
                let r = match c["group"].as_str() {
                    Some(g) => topic.group_reader(g)?,
                    None if c["start"] == "all" => topic.reader(Start::All)?,
                    None if c["start"] == "last" => topic.reader(Start::Last)?,
                    None => topic.reader(Start::New)?,
                };
                self.readers.insert(text(c, "topic").to_owned(), r);
            }
            "send" => {
                let topic = self.topic(c)?;
                for s in seed..seed + count {
                    topic.send_timeout(self.value(s, words, c)?, time(c))?;
                }
            }
            "receive" => {
                let Some(r) = self.readers.get_mut(text(c, "topic")) else { return Ok(broken("no reader".into())) };
                let m = r.recv(time(c))?;
                return self.message(m, c);
            }
            "put" => {
                let q = self.queue(c)?;
                for s in seed..seed + count {
                    q.put(self.value(s, words, c)?, time(c))?;
                }
            }
            "take" => {
                let m = self.queue(c)?.get(time(c))?;
                return self.message(m, c);
            }
            "end" if c["queue"].is_string() => self.queue(c)?.end()?,
            "end" => self.topic(c)?.end()?,
            "set" => {
                let v = self.value(seed, words, c)?;
                let r = match c["live"] == true {
                    true => self.session.set_with(text(c, "name"), v, &NameOptions::default().live(true))?,
                    false => self.session.set(text(c, "name"), v)?,
                };
                return Ok(json!({ "revision": r }));
            }
            "get" => {
                let b = self.session.get(text(c, "name"), time(c))?;
                let meta: Value = serde_json::from_slice(b.meta()).unwrap_or_default();
                let mut out = self.look(&b, seed, c)?;
                (out["revision"], out["seed"]) = (b.revision().into(), meta["seed"].clone());
                if c["hold"] == true {
                    self.held.push((Held::Bundle(b), seed));
                }
                return Ok(out);
            }
            "delete" => self.session.delete(text(c, "name"))?,
            "handle" => {
                let t = self.filled(seed, words)?;
                let h = t.handle(Lease::default())?;
                return Ok(json!({ "handle": serde_json::from_str::<Value>(&h.to_json()).unwrap_or_default() }));
            }
            "open" => {
                let t = self.session.open(&Handle::from_json(&c["handle"].to_string())?)?;
                let mut out = verify(&t, seed)?;
                if out.is_null() {
                    out = json!({ "readonly": t.is_read_only() });
                }
                if c["hold"] == true {
                    self.held.push((Held::Tensor(t), seed));
                }
                return Ok(out);
            }
            "hoard" => {
                for s in seed..seed + count {
                    let t = self.filled(s, words)?;
                    self.held.push((Held::Tensor(t), s));
                }
            }
            "check" => return self.check(),
            "release" => {
                let found = self.check();
                self.held.clear();
                return found;
            }
            "close" => {
                self.readers.clear();
                self.topics.clear();
                self.queues.clear();
                self.session.clone().close();
                self.session = Session::builder().name("rust-driver").connect()?;
            }
            "exec" => {
                let failed = std::process::Command::new("/proc/self/exe").env(REPLACED, "1").exec();
                return Ok(broken(format!("exec: {failed}")));
            }
            "forget" => {
                self.readers.clear();
                self.topics.clear();
                self.queues.clear();
            }
            "collect" => return Ok(json!({ "bytes": self.session.collect() })),
            other => return Ok(broken(format!("unknown: {other}"))),
        }
        Ok(json!({}))
    }
}

/// Tells a driver that it is one that replaced another by exec.
const REPLACED: &str = "BATON_DRIVER_REPLACED";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut d = Driver {
        session: Session::builder().name("rust-driver").connect()?,
        topics: HashMap::new(),
        queues: HashMap::new(),
        readers: HashMap::new(),
        held: Vec::new(),
    };
    let mut out = std::io::stdout();
    if std::env::var_os(REPLACED).is_some() {
        writeln!(out, "{{}}")?;
        out.flush()?;
    }
    for line in std::io::stdin().lock().lines() {
        let c = serde_json::from_str(&line?)?;
        if text(&c, "do") == "quit" {
            d.session.close();
            return Ok(());
        }
        let answer = match d.carry_out(&c) {
            Ok(v) => v,
            Err(e) => json!({ "code": e.code().as_str(), "message": e.to_string() }),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
