//! A broker that ends while it is asked something.

mod kit;

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton::{Code, Result, Session, Start};
use kit::Broker;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    Shutdown, recvmsg, sendmsg, shutdown,
};
use rustix::process::{Pid, Signal, kill_process};

const SOON: Duration = Duration::from_secs(60);

/// Passes on what comes, with its descriptors, until the end or until `last` tells that these bytes are not
/// to be passed on.
fn pass_on(from: &UnixStream, to: &UnixStream, last: impl Fn(&[u8]) -> bool) -> rustix::io::Result<()> {
    let mut bytes = [0; 64 << 10];
    loop {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let n = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        if n == 0 || last(&bytes[..n]) {
            return Ok(());
        }
        let came: Vec<OwnedFd> = control
            .drain()
            .filter_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None })
            .flatten()
            .collect();
        let fds: Vec<_> = came.iter().map(AsFd::as_fd).collect();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
        let mut sent = 0;
        while sent < n {
            sent += sendmsg(to, &[IoSlice::new(&bytes[sent..n])], &mut control, SendFlags::NOSIGNAL)?;
            control.clear();
        }
    }
}

/// A session whose broker, which runs, is killed when it would be asked for another session's pages: from a
/// moment on.
fn session_by_a_relay(broker: &Broker) -> (Session, Arc<AtomicBool>) {
    let at = broker.dir.path().join("relay.sock");
    let listener = UnixListener::bind(&at).unwrap();
    let there = broker.dir.path().join("b.sock");
    let (kills, pid) = (Arc::new(AtomicBool::new(false)), Pid::from_child(&broker.child));
    let armed = kills.clone();
    std::thread::spawn(move || {
        let (client, broker) = (listener.accept().unwrap().0, UnixStream::connect(there).unwrap());
        drop(listener); // no client reconnects by it
        let asks =
            |bytes: &[u8]| armed.load(Ordering::Relaxed) && String::from_utf8_lossy(bytes).contains(r#""op":"peer""#);
        std::thread::scope(|s| {
            s.spawn(|| {
                let _ = pass_on(&client, &broker, asks);
                kill_process(pid, Signal::KILL).unwrap();
            });
            let _ = pass_on(&broker, &client, |_| false);
            let _ = shutdown(&client, Shutdown::Both);
        });
    });
    (Session::builder().address(format!("unix:{}", at.display())).connect().unwrap(), kills)
}

#[test]
fn a_reader_goes_on_with_whom_it_knows_when_the_broker_dies_before_it_has_told_of_another() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (known, unknown) = (broker.session(), broker.session());
    let (session, kills) = session_by_a_relay(&broker);
    let mut reader = session.topic("t")?.reader(Start::New)?;
    let topic = known.topic("t")?;
    let (x, y) = (known.from_slice(&[1], &[1u8])?.freeze(), known.from_slice(&[1], &[2u8])?.freeze());
    topic.send(&x)?;
    assert_eq!(reader.recv(SOON)?.tensor()?.to_vec::<u8>()?, [1]);
    topic.send(&y)?;
    unknown.topic("t")?.send(unknown.from_slice(&[1], &[3u8])?.freeze())?;

    kills.store(true, Ordering::Relaxed);
    assert_eq!(reader.recv(SOON)?.tensor()?.to_vec::<u8>()?, [2]);
    Ok(())
}

#[test]
fn a_session_is_opened_at_the_next_broker_where_one_ends_before_it_has_answered() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    drop(broker.session()); // it serves
    let at = broker.dir.path().join("relay.sock");
    let listener = UnixListener::bind(&at).unwrap();
    let there = broker.dir.path().join("b.sock");
    let relay = std::thread::spawn(move || {
        let mut first = listener.accept().unwrap().0;
        let _ = first.read(&mut [0; 8]);
        drop(first);
        drop(listener.accept());
        let (client, broker) = (listener.accept().unwrap().0, UnixStream::connect(there).unwrap());
        std::thread::scope(|s| {
            s.spawn(|| {
                let _ = pass_on(&client, &broker, |_| false);
                let _ = shutdown(&broker, Shutdown::Both);
            });
            let _ = pass_on(&broker, &client, |_| false);
            let _ = shutdown(&client, Shutdown::Both);
        });
    });
    let s = Session::builder().address(format!("unix:{}", at.display())).connect()?;
    s.queue("q")?;
    drop(s);
    relay.join().unwrap();
    Ok(())
}

#[test]
fn nothing_is_sent_while_a_broker_that_is_stopped_decides_on_the_session() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    drop(broker.session()); // it serves
    let at = broker.dir.path().join("relay.sock");
    let listener = UnixListener::bind(&at).unwrap();
    let there = broker.dir.path().join("b.sock");
    let (heard, has_heard) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let relay = std::thread::spawn(move || {
        let (client, broker) = (listener.accept().unwrap().0, UnixStream::connect(there).unwrap());
        drop(listener);
        std::thread::scope(|s| {
            s.spawn(|| {
                let _ = pass_on(&client, &broker, |_| false);
                let _ = shutdown(&broker, Shutdown::Both);
                heard.send(()).unwrap();
            });
            let _ = pass_on(&broker, &client, |_| false);
            let _ = told.recv(); // until then the client does not know what was decided
            let _ = shutdown(&client, Shutdown::Both);
        });
    });
    let s = Session::builder().address(format!("unix:{}", at.display())).connect()?;
    let queue = s.queue("q")?;
    let (x, y) = (s.from_slice(&[1], &[1u8])?.freeze(), s.from_slice(&[1], &[2u8])?.freeze());
    queue.put(&x, None)?;
    broker.tool(&["stop"]);
    has_heard.recv().unwrap();
    assert!(queue.try_put(&x).is_err());
    assert!(queue.put(y, Duration::ZERO).is_err());
    drop(tell);
    let lost = queue.put(&x, None).unwrap_err();
    assert_eq!(lost.code(), Code::SessionLost);
    assert_eq!(x.to_vec::<u8>()?, [1]);
    relay.join().unwrap();
    Ok(())
}
