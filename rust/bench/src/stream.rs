//! As many messages as go through, with no more than so many under way.

use baton::{Message, QueueOptions, Session, Start, Tensor, TopicOptions};
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;

use crate::handover::check;
use crate::page::{Line, Series};
use crate::{LEFT, Outcome, Seat};

/// In a topic that overwrites the reader says how far it is, and the sender minds that. A lossless topic and a
/// queue keep their own senders back.
pub fn topic(seat: &Seat) -> Outcome {
    let depth = 2 * seat.job.count as u32;
    over_topic(seat, &TopicOptions::default().depth(depth), true)
}

pub fn lossless(seat: &Seat) -> Outcome {
    over_topic(seat, &TopicOptions::default().depth(seat.job.count as u32).overwrite(false), false)
}

fn over_topic(seat: &Seat, options: &TopicOptions, windowed: bool) -> Outcome {
    let session = connect(seat)?;
    let topic = session.topic_with(&seat.job.path, options)?;
    let reader = if seat.job.side == LEFT { None } else { Some(topic.reader(Start::New)?) };
    seat.meet();
    match reader {
        None => feed(seat, &session, windowed, |value| topic.send(value)),
        Some(mut r) => drain(seat, || r.recv(None)),
    }
}

pub fn queue(seat: &Seat) -> Outcome {
    let session = connect(seat)?;
    let queue = session.queue_with(&seat.job.path, &QueueOptions::default().depth(seat.job.count as u32))?;
    seat.meet();
    match seat.job.side {
        LEFT => feed(seat, &session, false, |value| queue.put(value, None)),
        _ => drain(seat, || queue.get(None)),
    }
}

fn connect(seat: &Seat) -> baton::Result<Session> {
    Session::builder().address(&*seat.job.socket).name("bench-rust").connect()
}

/// Allocates, fills the first and the last byte, and sends.
fn feed(seat: &Seat, session: &Session, windowed: bool, put: impl Fn(Tensor) -> baton::Result<()>) -> Outcome {
    let (bytes, shape) = (seat.job.bytes, [seat.job.bytes as i64]);
    stream_out(seat, windowed, |v| {
        let mut t = session.alloc::<u8>(&shape)?;
        (t[0], t[bytes - 1]) = (v, v);
        Ok(put(t.freeze())?)
    })
}

fn drain(seat: &Seat, mut get: impl FnMut() -> baton::Result<Message>) -> Outcome {
    stream_in(seat, |v| check(get()?, v))
}

/// Calls `pass` for each round. Before a slice ends all has arrived.
fn stream_out(seat: &Seat, windowed: bool, mut pass: impl FnMut(u8) -> Outcome) -> Outcome {
    let window = seat.job.count as u64;
    for i in 0..seat.job.n {
        if seat.begins_slice(i) {
            seat.page.await_spin(Line::Count, i as u64);
            seat.turn(i);
        }
        if windowed {
            seat.page.await_spin(Line::Count, (i as u64 + 1).saturating_sub(window));
        }
        pass(i as u8)?;
    }
    seat.page.await_spin(Line::Count, seat.job.n as u64);
    seat.turn(seat.job.n);
    seat.meet();
    Ok(())
}

/// Calls `take` for each round, and says how far it is. The clock is read where a reading is used: at the
/// first round of a slice that counts, and at its last.
fn stream_in(seat: &Seat, mut take: impl FnMut(u8) -> Outcome) -> Outcome {
    for i in 0..seat.job.n {
        seat.turn(i);
        take(i as u8)?;
        if seat.is_read(i) {
            seat.page.stamp(Series::Arrive, i);
        }
        seat.page.store(Line::Count, i as u64 + 1);
    }
    seat.turn(seat.job.n);
    seat.meet();
    Ok(())
}

/// The same work by iceoryx2: loan, write the first and the last byte, send; receive, read both, drop.
pub fn iceoryx(seat: &Seat) -> Outcome {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let name: ServiceName = seat.job.path.as_str().try_into()?;
    let (bytes, under_way) = (seat.job.bytes, seat.job.count);
    let service = node.service_builder(&name).publish_subscribe::<[u8]>();
    let service = service.max_publishers(1).max_subscribers(1).subscriber_max_buffer_size(2 * under_way);
    let service = service.open_or_create()?;
    if seat.job.side == LEFT {
        let publisher = service.publisher_builder().initial_max_slice_len(bytes).create()?;
        seat.meet();
        publisher.update_connections()?;
        seat.meet();
        return stream_out(seat, true, |v| {
            let mut sample = publisher.loan_slice_uninit(bytes)?;
            let payload = sample.payload_mut();
            payload[0].write(v);
            payload[bytes - 1].write(v);
            // SAFETY: as in `iceoryx::cycle`.
            match unsafe { sample.assume_init() }.send()? {
                1 => Ok(()),
                n => Err(format!("a sample reached {n} subscribers").into()),
            }
        });
    }
    let subscriber = service.subscriber_builder().buffer_size(2 * under_way).create()?;
    seat.meet();
    seat.meet();
    stream_in(seat, |v| {
        let sample = loop {
            if let Some(s) = subscriber.receive()? {
                break s;
            }
        };
        let payload = sample.payload();
        match (payload.first(), payload.last()) {
            (Some(a), Some(b)) if (*a, *b) == (v, v) => Ok(()),
            ends => Err(format!("a sample carries {ends:?}, not {v}").into()),
        }
    })
}
