//! The Rust driver of the tests of GPUs (`integration/cuda`): it does what lines of JSON on its standard
//! input ask for with tensors on a GPU, one after the other, and answers each with a line.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use baton::{DType, Error, Handle, Lease, Message, Payload, Queue, QueueOptions, Session, Stream, Tensor};
use serde_json::{Value, json};

struct Driver {
    session: Session,
    queues: HashMap<String, Queue>,
    held: Vec<(Message, Tensor)>,
    stream: Stream,
}

type Outcome = Result<Value, Error>;

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

fn number(v: &Value, key: &str, default: u64) -> u64 {
    v[key].as_u64().unwrap_or(default)
}

impl Driver {
    fn queue(&mut self, c: &Value) -> Result<Queue, Error> {
        let name = text(c, "queue").to_owned();
        if let Some(q) = self.queues.get(&name) {
            return Ok(q.clone());
        }
        let q = self.session.queue_with(&name, &QueueOptions::default().depth(4).linger(Duration::from_millis(1)))?;
        self.queues.insert(name, q.clone());
        Ok(q)
    }

    /// A tensor on the GPU whose bytes are all one number, when the stream has come so far.
    fn filled(&self, c: &Value, seed: u64) -> Result<Tensor, Error> {
        let n = number(c, "bytes", 4096) as i64;
        let host = self.session.from_slice(&[n], &vec![seed as u8; n as usize])?.freeze();
        host.to_device("cuda:0", self.stream)
    }

    /// The number that all bytes are, as the stream reads them.
    fn seen(&self, t: &Tensor) -> Result<Value, Error> {
        let all = t.to_device("cpu", self.stream)?.to_vec::<u8>()?;
        Ok(if all.iter().all(|b| *b == all[0]) { json!(all[0]) } else { json!("a mixture") })
    }

    fn carry_out(&mut self, c: &Value) -> Outcome {
        let (seed, count) = (number(c, "seed", 0), number(c, "count", 1));
        match text(c, "do") {
            "put" => {
                let q = self.queue(c)?;
                for seed in seed..seed + count {
                    let t = self.filled(c, seed)?;
                    q.put(Payload::from(t).stream(self.stream), Duration::from_secs(30))?;
                }
            }
            "take" => {
                let (q, mut seen) = (self.queue(c)?, Vec::new());
                for _ in 0..count {
                    let m = q.get(Duration::from_secs(30))?;
                    let t = m.tensor()?;
                    t.use_on(self.stream)?;
                    seen.push(self.seen(&t)?);
                    if c["hold"] == true {
                        self.held.push((m, t));
                    }
                }
                return Ok(json!({ "seen": seen }));
            }
            "wait" => {
                let t = self.queue(c)?.get(Duration::from_secs(30))?.into_tensor()?;
                t.use_on(self.stream)?;
                t.written(Duration::from_secs(30))?;
            }
            "held" => {
                let seen = self.held.iter().map(|(_, t)| self.seen(t)).collect::<Result<Vec<_>, _>>()?;
                return Ok(json!({ "seen": seen }));
            }
            "release" => self.held.clear(),
            "set" => drop(self.session.set(text(c, "name"), self.filled(c, seed)?)?),
            "get" => {
                let b = self.session.get(text(c, "name"), Duration::ZERO)?;
                let t = b.first().ok_or_else(|| Error::closed_here("a bundle without tensors"))?;
                return Ok(json!({ "seen": [self.seen(t)?] }));
            }
            "delete" => self.session.delete(text(c, "name"))?,
            "handle" => {
                let h = self.filled(c, seed)?.handle(Lease::Session)?;
                return Ok(json!({ "handle": h.to_json() }));
            }
            "open" => {
                let t = self.session.open(&Handle::from_json(text(c, "handle"))?)?;
                return Ok(json!({ "seen": [self.seen(&t)?] }));
            }
            "alloc" => {
                let n = number(c, "bytes", 4096) as i64;
                let device = if text(c, "device").is_empty() { "cuda:0" } else { text(c, "device") };
                drop(self.session.alloc_on(device, DType::UINT8, &[n])?);
            }
            "look" => {
                // What the processor may not look at.
                let t = self.filled(c, seed)?;
                drop(t.to_vec::<u8>()?);
            }
            other => return Ok(json!({ "broken": format!("unknown: {other}") })),
        }
        Ok(json!({}))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut d = Driver {
        session: Session::builder().name("rust-gpu").connect()?,
        queues: HashMap::new(),
        held: Vec::new(),
        stream: Stream::PER_THREAD,
    };
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let c = serde_json::from_str(&line?)?;
        let answer = match d.carry_out(&c) {
            Ok(v) => v,
            Err(e) => json!({ "code": e.code().as_str(), "message": e.to_string() }),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    d.held.clear();
    d.queues.clear();
    d.session.close();
    Ok(())
}
