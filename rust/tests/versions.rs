//! Brokers of another version.

mod kit;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use baton::{Code, Session, layout};

/// Answers the hello of one client with a reply of these versions and returns what it made of it.
fn greeted_by(protocol: u32, layout: u32) -> baton::Error {
    let dir = kit::Dir::new();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let broker = std::thread::spawn(move || {
        let (mut c, _) = listener.accept().unwrap();
        let mut head = [0; 8];
        c.read_exact(&mut head).unwrap();
        let mut hello = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize];
        c.read_exact(&mut hello).unwrap();
        let hello: serde_json::Value = serde_json::from_slice(&hello).unwrap();
        let ok = serde_json::json!({"protocol": protocol, "layout": layout, "version": "9.9", "instance": "00",
            "slot": 1, "serial": 1});
        let reply = serde_json::json!({"id": hello["id"], "ok": ok}).to_string();
        c.write_all(&[&(reply.len() as u32).to_le_bytes()[..], &[0; 4], reply.as_bytes()].concat()).unwrap();
        let _ = c.read(&mut head); // until it has gone
        hello
    });
    let address = path.to_str().unwrap().to_owned();
    let refused = Session::builder().address(address).connect().unwrap_err();
    let hello = broker.join().unwrap();
    assert_eq!((&hello["protocol"], &hello["layout"]), (&layout::PROTOCOL.into(), &layout::LAYOUT.into()));
    refused
}

#[test]
fn a_broker_of_another_version_is_refused_with_both_versions_and_what_to_do() {
    let (p, l) = (layout::PROTOCOL, layout::LAYOUT);
    for (protocol, layout, remedy) in [
        (p, l - 1, "the broker is the older"),
        (p, l + 1, "the client is the older"),
        (p + 1, l, "the client is the older"),
    ] {
        let e = greeted_by(protocol, layout);
        assert_eq!(e.code(), Code::Version, "{e}");
        let text = e.to_string();
        for part in [
            remedy,
            &format!("the broker (9.9) speaks protocol {protocol} with layout {layout}"),
            &format!("protocol {p} with layout {l}"),
            // What to do names the version that is wanted, and its layout: a build may have several.
            &format!("(protocol {}, layout {})", protocol.max(p), if protocol == p { layout.max(l) } else { l }),
        ] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }
}
