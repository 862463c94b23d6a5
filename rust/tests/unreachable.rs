//! A broker that is there and cannot be reached is not taken for none.

mod kit;

use std::time::Duration;

use baton::{Code, Error, Session};
use kit::Broker;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Connects until the queue of the broker's socket takes no more.
fn fill_queue(broker: &Broker) {
    let address = SocketAddrUnix::new(broker.dir.path().join("b.sock")).unwrap();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    loop {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&socket, &address) {
            Ok(()) => {} // closed, it stays in the queue
            Err(e) => return assert_eq!(e, Errno::AGAIN),
        }
    }
}

fn refused(broker: &Broker) -> Error {
    Session::builder().address(broker.address()).timeout(Duration::from_millis(1)).connect().unwrap_err()
}

#[test]
fn a_broker_that_takes_no_connection_does_not_answer() {
    let Some(broker) = Broker::start() else { return };
    drop(broker.session());
    broker.pause();
    fill_queue(&broker);
    let e = refused(&broker);
    assert_eq!(e.code(), Code::Timeout, "{e}");
    assert!(e.message().contains(&format!("(pid {}) does not answer", broker.child.id())), "{e}");
    broker.go_on();
    broker.session();
}

#[test]
fn a_broker_whose_socket_is_gone_is_named_with_the_way_out() {
    let Some(broker) = Broker::start() else { return };
    drop(broker.session());
    broker.pause(); // else it binds the socket again
    std::fs::remove_file(broker.dir.path().join("b.sock")).unwrap();
    let (e, pid) = (refused(&broker), broker.child.id());
    assert_eq!(e.code(), Code::NoBroker, "{e}");
    assert!(e.message().contains(&format!("process {pid}")), "{e}");
    assert!(e.remedy().contains(&format!("kill -TERM {pid}")), "{e}");
}
