//! The Rust driver of the tests of GPUs (`integration/cuda`): it does what lines of JSON on its standard
//! input ask for with tensors on a GPU, one after the other, and answers each with a line.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use baton::dlpack::{DLDevice, DLTensor};
use baton::{DType, Error, Handle, Lease, Message, Payload, Queue, QueueOptions, Session, Stream, Tensor};
use libloading::{Library, Symbol};
use serde_json::{Value, json};

struct Driver {
    session: Session,
    queues: HashMap<String, Queue>,
    held: Vec<(Message, Tensor)>,
    lent: Vec<Lent>,
    stream: Stream,
}

type Outcome = Result<Value, Error>;

/// How many bytes of an allocation lie before what is lent of it.
const BEFORE: u64 = 1000;

/// Memory that another library allocated, and how it learns that it has no user any more.
struct Lent {
    cuda: Library,
    at: u64,
    let_go: Receiver<()>,
}

impl Lent {
    /// Bytes that are all one number when the legacy default stream has come so far.
    fn new(n: u64, value: u8) -> (Lent, Sender<()>) {
        // SAFETY: the driver's own functions, by the types that its manual gives them.
        unsafe {
            let cuda = Library::new("libcuda.so.1").expect("the driver");
            let (mut context, mut at) = (0usize, 0u64);
            let init: Symbol<unsafe extern "C" fn(u32) -> i32> = get(&cuda, "cuInit");
            assert_eq!(init(0), 0);
            let retain: Symbol<unsafe extern "C" fn(&mut usize, i32) -> i32> = get(&cuda, "cuDevicePrimaryCtxRetain");
            assert_eq!(retain(&mut context, 0), 0);
            let enter: Symbol<unsafe extern "C" fn(usize) -> i32> = get(&cuda, "cuCtxSetCurrent");
            assert_eq!(enter(context), 0);
            let alloc: Symbol<unsafe extern "C" fn(&mut u64, usize) -> i32> = get(&cuda, "cuMemAlloc_v2");
            assert_eq!(alloc(&mut at, BEFORE as usize + n as usize), 0);
            let fill: Symbol<unsafe extern "C" fn(u64, u8, usize, usize) -> i32> = get(&cuda, "cuMemsetD8Async");
            assert_eq!(fill(at + BEFORE, value, n as usize, 1), 0);
            let (tell, let_go) = channel();
            (Lent { cuda, at, let_go }, tell)
        }
    }

    fn free(self) {
        self.let_go.recv().expect_err("nothing is said, it is dropped");
        // SAFETY: as above; the memory is not used any more.
        unsafe {
            let wait: Symbol<unsafe extern "C" fn(usize) -> i32> = get(&self.cuda, "cuStreamSynchronize");
            assert_eq!(wait(1), 0);
            let free: Symbol<unsafe extern "C" fn(u64) -> i32> = get(&self.cuda, "cuMemFree_v2");
            assert_eq!(free(self.at), 0);
        }
    }
}

/// A function of the driver's.
///
/// # Safety
/// It has that type.
unsafe fn get<'a, T>(cuda: &'a Library, name: &str) -> Symbol<'a, T> {
    // SAFETY: as the caller says.
    unsafe { cuda.get(name.as_bytes()) }.expect(name)
}

/// How often the stand-in for the driver was told to let a stream wait.
fn waits() -> u64 {
    calls(c"cuStreamWaitValue64_v2")
}

/// How often a function of the stand-in was called; all of them without a name.
fn calls(name: &std::ffi::CStr) -> u64 {
    // SAFETY: the stand-in's own function, by its type.
    unsafe {
        let cuda = Library::new("libcuda.so.1").expect("the driver");
        let calls: Symbol<unsafe extern "C" fn(*const std::ffi::c_char) -> u64> = get(&cuda, "standin_calls");
        calls(name.as_ptr())
    }
}

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

    /// A tensor of memory that another library allocated.
    fn lend(&mut self, c: &Value, seed: u64) -> Result<Tensor, Error> {
        let n = number(c, "bytes", 4096);
        let (lent, tell) = Lent::new(n, seed as u8);
        let mut shape = [n as i64];
        let view = DLTensor {
            data: lent.at as *mut _,
            device: DLDevice { device_type: 2, device_id: 0 },
            ndim: 1,
            dtype: DType::UINT8,
            shape: shape.as_mut_ptr(),
            strides: std::ptr::null_mut(),
            byte_offset: BEFORE,
        };
        self.lent.push(lent);
        // SAFETY: the memory is freed when `tell` was dropped, and what writes it is on that stream.
        unsafe { self.session.lend(&view, 0, Stream::LEGACY, Box::new(tell)) }
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
            "lend" => {
                for seed in seed..seed + count {
                    let t = self.lend(c, seed)?;
                    self.queue(c)?.put(t, Duration::from_secs(30))?;
                }
            }
            "free" => self.lent.drain(..).for_each(Lent::free),
            "take" => {
                let (q, mut seen) = (self.queue(c)?, Vec::new());
                for _ in 0..count {
                    let m = q.get(Duration::from_secs(30))?;
                    let t = m.tensor()?;
                    if c["unread"] == true {
                        seen.push(json!(m.lost()));
                        self.held.push((m, t));
                        continue;
                    }
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
            "pass" => {
                let q = self.queue(c)?;
                let t = q.get(Duration::from_secs(30))?.into_tensor()?;
                q.put(Payload::from(t).stream(self.stream), Duration::from_millis(100))?;
            }
            "follow" => {
                let m = self.queue(c)?.get(Duration::from_secs(30))?;
                let (b, before) = (m.bundle()?, waits());
                for (_, t) in b.iter().chain(b.iter()) {
                    t.use_on(self.stream)?;
                }
                let seen = json!([b.len(), waits() - before]);
                let first = m.tensor()?;
                self.held.push((m, first));
                return Ok(json!({ "seen": seen }));
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
                drop(self.session.allocation(&[n]).on(device, DType::UINT8)?);
            }
            "ordered" => {
                return Ok(json!({ "seen": [i32::from(self.filled(c, seed)?.is_ordered_by_streams())] }));
            }
            "calls" => return Ok(json!({ "seen": [calls(c"")] })),
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
        lent: Vec::new(),
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
