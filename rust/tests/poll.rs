//! Sessions in poll loops.

mod kit;

use std::os::fd::AsFd;
use std::time::Duration;

use baton::{Code, QueueOptions, Session, Start};
use kit::Broker;
use rustix::event::{PollFd, PollFlags, poll};

fn wait(s: &Session) {
    let fd = s.poll_fd().unwrap();
    poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], None).unwrap();
}

#[test]
fn a_poll_loop_hears_of_messages_room_names_and_the_end() {
    let Some(b) = Broker::start() else { return };
    let (ours, theirs) = (b.session(), b.session());
    let mut reader = ours.topic("news").unwrap().reader(Start::New).unwrap();
    let mut watch = ours.watch("weights").unwrap();
    let queue = ours.queue_with("work", &QueueOptions::default().depth(1)).unwrap();
    queue.put(ours.zeros::<u8>(&[1]).unwrap().freeze(), Duration::ZERO).unwrap();
    let other = std::thread::spawn(move || {
        let tensor = |k: i64| theirs.from_slice(&[1], &[k]).unwrap().freeze();
        let (news, work) = (theirs.topic("news").unwrap(), theirs.queue("work").unwrap());
        for k in 0..200 {
            news.send(tensor(k)).unwrap();
            theirs.set("weights", tensor(k)).unwrap();
            work.get(Duration::from_secs(90)).unwrap();
        }
    });
    let (mut received, mut revision, mut put) = (0, 0, 1);
    while received < 200 || revision < 200 || put < 200 {
        wait(&ours);
        ours.clear_poll_fd();
        while let Some(m) = reader.try_recv().unwrap() {
            received += 1 + m.lost();
        }
        while let Ok(bundle) = watch.next(Duration::ZERO) {
            assert!(bundle.revision() > revision);
            revision = bundle.revision();
        }
        while put < 200 {
            match queue.put(ours.zeros::<u8>(&[1]).unwrap().freeze(), Duration::ZERO) {
                Err(e) => {
                    assert_eq!(e.code(), Code::Full);
                    break;
                }
                Ok(()) => put += 1,
            }
        }
    }
    other.join().unwrap();
    ours.end();
    wait(&ours.clone());
}
