//! The stamps of messages of which one caused the other, where a topic gets its second sender.

mod kit;

use std::io::{PipeReader, PipeWriter, Read, Result as Io, Write, pipe};
use std::time::Duration;

use baton::{Result, Session, Start};
use kit::Broker;

const SOON: Duration = Duration::from_secs(60);
/// Messages of the first sender while it is alone: enough for it to know the speed of its counter.
const ALONE: usize = 5000;
/// Messages of each sender, one after the other's, when there are two.
const TURNS: usize = 50;

fn tell(mut to: &PipeWriter) {
    to.write_all(&[0]).unwrap();
}

fn hear(mut from: &PipeReader) -> Io<()> {
    from.read_exact(&mut [0])
}

/// Two sessions send in turns; a pipe tells each of them that the other one has sent.
fn send_in_turns(a: &Session, b: &Session, name: &str) -> Result<()> {
    let topic = a.topic(name)?;
    let mut reader = a.topic(name)?.reader(Start::New)?;
    let (x, y) = (a.from_slice(&[1], &[1u8])?.freeze(), b.from_slice(&[1], &[2u8])?.freeze());
    let mut last = 0;
    for i in 0..ALONE {
        topic.send(&x)?;
        let stamp = reader.recv(SOON)?.stamp();
        assert!(stamp >= last, "message {i}: {stamp} behind {last}");
        last = stamp;
    }
    let ((told_b, tell_b), (told_a, tell_a)) = (pipe().unwrap(), pipe().unwrap());
    std::thread::scope(|s| -> Result<()> {
        let other = s.spawn(move || -> Result<()> {
            let topic = b.topic(name)?;
            // Its lane is made when the first message of the other one has its stamp.
            while hear(&told_b).is_ok() {
                topic.send(&y)?;
                tell(&tell_a);
            }
            Ok(())
        });
        for _ in 0..TURNS {
            topic.send(&x)?;
            tell(&tell_b);
            hear(&told_a).unwrap();
            for want in [1, 2] {
                let m = reader.recv(SOON)?;
                assert_eq!(m.tensor()?.to_vec::<u8>()?, [want], "out of turn");
                assert!(m.stamp() >= last, "{} behind {last}", m.stamp());
                last = m.stamp();
            }
        }
        drop(tell_b);
        other.join().unwrap()
    })
}

#[test]
fn a_message_is_stamped_behind_the_one_that_caused_it() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (a, b) = (broker.session(), broker.session());
    for k in 0..10 {
        send_in_turns(&a, &b, &format!("turns/{k}"))?;
    }
    Ok(())
}
