//! What an operator purges or deletes, and the memory of the sender.

mod kit;

use baton::QueueOptions;
use kit::{Broker, until};

#[test]
fn purged_memory_goes_back_behind_an_item_that_a_taker_holds() {
    let Some(b) = Broker::start() else { return };
    let (sender, taker) = (b.session(), b.session());
    let options = QueueOptions::default().depth(8).redeliver(true);
    let q = sender.queue_with("k", &options).unwrap();
    for n in 0..5 {
        q.put(sender.from_slice(&[1], &[n]).unwrap().freeze(), None).unwrap();
    }
    let theirs = taker.queue_with("k", &options).unwrap();
    let held = theirs.get(None).unwrap();
    assert_eq!(b.listed("storages").len(), 5);
    b.tool(&["purge", "k", "--yes"]);
    until("all but what the taker holds is free", || b.listed("storages").len() == 1);
    q.put(sender.from_slice(&[1], &[5]).unwrap().freeze(), None).unwrap();
    let next = theirs.get(None).unwrap();
    assert_eq!(next.tensor().unwrap().to_vec::<i32>().unwrap(), [5]);
    drop(next);
    b.tool(&["delete", "k", "--yes"]);
    until("the last one is free", || b.listed("storages").len() == 1);
    drop(held);
    until("nothing is held", || b.listed("storages").is_empty());
}
