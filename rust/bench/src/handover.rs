//! Hand-over between two processes by Baton.

use std::time::Duration;

use baton::{Message, Reader, Session, Start, Topic};
use rustix::thread::sched_getcpu;

use crate::page::{Line, Series, linger};
use crate::{LEFT, Outcome, RIGHT, Seat};

/// How long the sender waits after the receiver has said that it goes to sleep: by then its processor
/// is idle. The same as in bench/floor.go.
const ASLEEP: Duration = Duration::from_micros(100);

/// What a process of a pair has open: the topic it sends to and the reader of the other's.
struct Ends {
    session: Session,
    to: Topic,
    from: Reader,
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

impl Ends {
    /// Joins two topics, one for each direction. Both sides have met when it returns, so nothing that
    /// is sent afterwards is missed.
    fn open(seat: &Seat) -> Fallible<Ends> {
        let session = Session::builder().address(&*seat.job.socket).name("bench-rust").connect()?;
        let names = ["there", "back"].map(|way| format!("{}/{way}", seat.job.path));
        let to = session.topic(&names[seat.job.side.min(RIGHT)])?;
        let from = session.topic(&names[1 - seat.job.side.min(RIGHT)])?.reader(Start::New)?;
        seat.meet();
        Ok(Ends { session, to, from })
    }

    /// Polls until a message is there.
    fn take(&mut self) -> Fallible<Message> {
        loop {
            if let Some(m) = self.from.try_recv()? {
                return Ok(m);
            }
        }
    }

    /// Allocates, fills the first and the last byte, and sends.
    fn pass(&self, bytes: usize, v: u8) -> Fallible<()> {
        let mut t = self.session.alloc::<u8>(&[bytes as i64])?;
        (t[0], t[bytes - 1]) = (v, v);
        Ok(self.to.send(t.freeze())?)
    }
}

/// Reads the first and the last byte of a message.
pub fn check(m: Message, v: u8) -> Fallible<()> {
    let sequence = m.sequence();
    let t = m.into_tensor()?;
    // SAFETY: the sender writes a message's tensor before it sends it, and not again.
    let bytes = unsafe { t.as_slice::<u8>() }?;
    match (bytes.first(), bytes.last()) {
        (Some(a), Some(b)) if (*a, *b) == (v, v) => Ok(()),
        ends => Err(format!("message {sequence} carries {ends:?}, not {v}").into()),
    }
}

/// What a program does: allocate, fill, send, take, read, answer on a second topic with a tensor of
/// eight bytes, take that, drop both. Of several readers each answers.
pub fn cycle(seat: &Seat) -> Outcome {
    let mut e = Ends::open(seat)?;
    for i in 0..seat.job.n {
        seat.turn(i);
        if seat.job.side == LEFT {
            seat.page.stamp(Series::Depart, i);
            e.pass(seat.job.bytes, i as u8)?;
        }
        for _ in 0..seat.others() {
            check(e.take()?, i as u8)?;
        }
        if seat.job.side == LEFT {
            seat.page.stamp(Series::Back, i);
        } else {
            e.pass(8, i as u8)?;
        }
    }
    seat.turn(seat.job.n);
    seat.meet();
    Ok(())
}

/// A cycle as programs wait, by `recv`, between two processes that may run anywhere. It reports the CPU on which the
/// process began.
pub fn unpinned(seat: &mut Seat) -> Outcome {
    let mut e = Ends::open(seat)?;
    for i in 0..seat.job.n {
        if i == 1 {
            // After the first round: before it the process has waited for the other one's start.
            seat.report.insert("cpu".to_owned(), vec![sched_getcpu() as f64]);
        }
        if seat.job.side == LEFT {
            seat.page.stamp(Series::Depart, i);
            e.pass(seat.job.bytes, i as u8)?;
        }
        check(e.from.recv(None)?, i as u8)?;
        if seat.job.side == LEFT {
            seat.page.stamp(Series::Back, i);
        } else {
            e.pass(8, i as u8)?;
        }
    }
    seat.meet();
    Ok(())
}

/// Hands tensors over one at a time, both sides busy. The answer is a word of the page, so that only
/// the hand-over is measured.
pub fn one_way(seat: &Seat) -> Outcome {
    let mut e = Ends::open(seat)?;
    for i in 0..seat.job.n {
        seat.turn(i);
        if seat.job.side == LEFT {
            let mut t = e.session.alloc::<u8>(&[seat.job.bytes as i64])?;
            (t[0], t[seat.job.bytes - 1]) = (i as u8, i as u8);
            seat.page.stamp(Series::Depart, i);
            e.to.send(t.freeze())?;
            seat.page.await_spin(Line::Pong, i as u64 + 1);
            continue;
        }
        let m = e.take()?;
        seat.page.stamp(Series::Arrive, i);
        seat.page.note(Series::Publish, i, m.stamp());
        check(m, i as u8)?;
        seat.page.store(Line::Pong, i as u64 + 1);
    }
    seat.turn(seat.job.n);
    seat.meet();
    Ok(())
}

/// Hands a tensor to a receiver that sleeps, which passes it on to the sender, which sleeps meanwhile.
pub fn wake(seat: &Seat) -> Outcome {
    let mut e = Ends::open(seat)?;
    for i in 0..seat.job.n {
        seat.turn(i);
        if seat.job.side == LEFT {
            let mut t = e.session.alloc::<u8>(&[seat.job.bytes as i64])?;
            (t[0], t[seat.job.bytes - 1]) = (i as u8, i as u8);
            seat.page.await_spin(Line::Asks, i as u64 + 1);
            linger(ASLEEP);
            seat.page.stamp(Series::Depart, i);
            e.to.send(t.freeze())?;
            let m = e.from.recv(None)?;
            seat.page.stamp(Series::Back, i);
            check(m, i as u8)?;
        } else {
            seat.page.store(Line::Asks, i as u64 + 1);
            let m = e.from.recv(None)?;
            seat.page.stamp(Series::Arrive, i);
            e.to.send(m.tensor()?)?;
            check(m, i as u8)?;
        }
    }
    seat.turn(seat.job.n);
    seat.meet();
    Ok(())
}
