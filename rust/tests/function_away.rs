//! Calls that run, or wait, while the broker is killed and none comes.

mod kit;

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use baton::{Function, Payload, Pending, Result, Start};
use kit::{Broker, part_session};
use rustix::fs::{CWD, FileType, Mode, mknodat};

const SOON: Duration = Duration::from_secs(20);

/// Another process, whose function returns once something is written to the pipe that it is given.
#[test]
#[ignore = "a process of another test"]
fn provider() -> Result<()> {
    let Some(s) = part_session() else { return Ok(()) };
    let ran = s.topic("ran")?;
    let gate = s.provide("gate")?.serve(move |args, _| {
        ran.send(Payload::default())?;
        let mut byte = [0];
        File::open(args.get::<String>(0)?).unwrap().read_exact(&mut byte).unwrap();
        Ok(i64::from(byte[0]))
    })?;
    s.topic("up")?.send(Payload::default())?;
    gate.join()
}

/// A pipe for which the function waits.
struct Pipe(PathBuf, File);

impl Pipe {
    fn new(broker: &Broker, name: &str) -> Pipe {
        let at = broker.dir.path().join(name);
        mknodat(CWD, &at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let file = File::options().read(true).write(true).open(&at).unwrap(); // it waits for no reader
        Pipe(at, file)
    }

    fn submit(&self, f: &Function) -> Result<Pending> {
        f.submit((self.0.to_str().unwrap(),))
    }

    fn open(&mut self) {
        self.1.write_all(&[7]).unwrap();
    }
}

#[test]
fn the_first_call_of_a_function_has_its_result_where_the_broker_dies_while_it_runs() -> Result<()> {
    for looks in [true, false] {
        let Some(mut broker) = Broker::start() else { return Ok(()) };
        let s = broker.session();
        let mut ran = s.topic("ran")?.reader(Start::New)?;
        let _apart = broker.apart(&s, |_| {})?;
        let mut pipe = Pipe::new(&broker, "pipe");
        let gate = s.get_function("gate")?.timeout(SOON);
        let pending = pipe.submit(&gate)?;
        let result = std::thread::scope(|threads| {
            let wait = || pending.wait::<i64>();
            let (waits, later) = if looks { (Some(threads.spawn(wait)), None) } else { (None, Some(wait)) };
            ran.recv(SOON)?;
            broker.kill();
            pipe.open();
            waits.map(|w| w.join().unwrap()).or_else(|| later.map(|wait| wait())).unwrap()
        });
        assert_eq!(result.unwrap_or_else(|e| panic!("waited for from the first: {looks}: {e}")), 7);
    }
    Ok(())
}

#[test]
fn a_call_that_needs_a_broker_before_it_can_begin_waits_for_one_and_holds_up_no_other() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let (s, other) = (broker.session(), broker.session());
    let mut ran = s.topic("ran")?.reader(Start::New)?;
    let _apart = broker.apart(&s, |_| {})?;
    let [mut first, mut second, mut others] = ["first", "second", "others"].map(|name| Pipe::new(&broker, name));
    let (gate, others_gate) = (s.get_function("gate")?.timeout(SOON), other.get_function("gate")?.timeout(SOON));
    let called = others.submit(&others_gate)?;
    others.open();
    assert_eq!(called.wait::<i64>()?, 7);
    ran.recv(SOON)?;

    let runs = first.submit(&gate)?;
    ran.recv(SOON)?;
    let waits = second.submit(&gate)?; // the provider runs one at a time
    broker.kill();
    first.open();
    assert_eq!(runs.wait::<i64>()?, 7);
    let called = others.submit(&others_gate)?;
    others.open();
    assert_eq!(called.wait::<i64>()?, 7, "of another session, which was replied to before");

    second.open();
    broker.restart();
    assert_eq!(waits.wait::<i64>()?, 7);
    Ok(())
}

#[test]
fn functions_that_were_called_before_by_turns_go_on_without_a_broker() -> Result<()> {
    let Some(mut broker) = Broker::start() else { return Ok(()) };
    let (s, provider) = (broker.session(), broker.session());
    let names = ["a", "b", "c"];
    let _provided = names.map(|name| provider.function(name, move |_, _| Ok(name)).unwrap());
    let functions = names.map(|name| s.get_function(name).unwrap().timeout(SOON));
    // Each has a place of its own for its reply.
    let pending: Vec<_> = functions.iter().map(|f| f.submit(())).collect::<Result<_>>()?;
    for p in pending {
        p.wait::<String>()?;
    }
    broker.kill();
    for i in [0, 1, 2, 2, 1, 0] {
        assert_eq!(functions[i].call::<String>(())?, names[i]);
    }
    Ok(())
}
