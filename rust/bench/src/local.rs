//! What one process does alone, timed in blocks: one operation is shorter than a look at the clock.

use baton::bindings::Step;
use baton::{Session, Start, TopicOptions};

use crate::page::now;
use crate::{Outcome, Seat};

/// As in bench/local.go.
const BLOCK: usize = 256;

fn connect(seat: &Seat, name: &str) -> baton::Result<Session> {
    Session::builder().address(&*seat.job.socket).name(name).connect()
}

/// Runs an operation in blocks and reports ns for one, by block. A tenth is to warm up. `before` is
/// not timed.
fn timed(seat: &mut Seat, mut before: impl FnMut() -> Outcome, mut op: impl FnMut() -> Outcome) -> Outcome {
    let blocks = (seat.job.n / BLOCK).max(10);
    let mut all = Vec::with_capacity(blocks);
    for b in 0..blocks + blocks / 10 {
        before()?;
        let from = now();
        for _ in 0..BLOCK {
            op()?;
        }
        if b >= blocks / 10 {
            all.push((now() - from) as f64 / BLOCK as f64);
        }
    }
    seat.report.insert("ns".into(), all);
    Ok(())
}

/// Takes the reference that a slot names: read the slot, count up, look again; then drop.
pub fn slot(seat: &mut Seat) -> Outcome {
    let (mut step, mut i) = (Step::new()?, 0);
    timed(
        seat,
        || Ok(()),
        || {
            i = i % Step::MESSAGES + 1;
            match step.take_and_drop(i)? {
                true => Ok(()),
                false => Err(format!("slot {i} is empty").into()),
            }
        },
    )
}

/// Takes messages that are there, and drops them: a reference up, the second look, and down.
pub fn message(seat: &mut Seat) -> Outcome {
    let (owner, other) = (connect(seat, "bench-owner")?, connect(seat, "bench-other")?);
    let depth = TopicOptions::default().depth(BLOCK as u32);
    let to = owner.topic_with(&seat.job.path, &depth)?;
    let mut from = other.topic_with(&seat.job.path, &depth)?.reader(Start::New)?;
    let t = owner.alloc::<f32>(&[1024])?.freeze();
    let fill = || -> Outcome {
        for _ in 0..BLOCK {
            to.send(&t)?;
        }
        Ok(())
    };
    timed(seat, fill, || match from.try_recv()? {
        Some(_) => Ok(()),
        None => Err("a message is missing".into()),
    })
}

/// Takes a storage from a warm pool and gives it back.
pub fn alloc(seat: &mut Seat) -> Outcome {
    let session = connect(seat, "bench-owner")?;
    let shape = [seat.job.bytes as i64];
    timed(
        seat,
        || Ok(()),
        || {
            session.alloc::<u8>(&shape)?;
            Ok(())
        },
    )
}
