//! The same work by iceoryx2: publish-subscribe while both sides spin, its event for a sleeping one.

use std::time::Duration;

use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;

use crate::page::{Line, Series, linger};
use crate::{LEFT, Outcome, RIGHT, Seat};

/// As in `handover`.
const ASLEEP: Duration = Duration::from_micros(100);

/// Loan, write the first and the last byte, send; receive, read both, drop, answer with eight bytes;
/// receive that, read, drop.
pub fn cycle(seat: &Seat) -> Outcome {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = |way: &str, bytes: usize| -> Result<_, Box<dyn std::error::Error>> {
        let name: ServiceName = format!("{}/{way}", seat.job.path).as_str().try_into()?;
        let most = seat.readers();
        let service = node.service_builder(&name).publish_subscribe::<[u8]>();
        let service = service.max_nodes(most + 1).max_publishers(most).max_subscribers(most).open_or_create()?;
        Ok((service, bytes))
    };
    let ways = [service("there", seat.job.bytes)?, service("back", 8)?];
    let side = seat.job.side.min(RIGHT);
    let (to, bytes) = &ways[side];
    let publisher = to.publisher_builder().initial_max_slice_len(*bytes).create()?;
    let subscriber = ways[1 - side].0.subscriber_builder().create()?;
    seat.meet();
    // Connections are made at the first send: both sides have all their ports now.
    publisher.update_connections()?;
    seat.meet();
    let pass = |v: u8| -> Outcome {
        let mut sample = publisher.loan_slice_uninit(*bytes)?;
        let payload = sample.payload_mut();
        payload[0].write(v);
        payload[bytes - 1].write(v);
        // SAFETY: the bytes between are whatever was there before, as with Baton: shared memory has a
        // value, and u8 has no invalid ones.
        let sample = unsafe { sample.assume_init() };
        match sample.send()? {
            n if n == seat.others() => Ok(()),
            n => Err(format!("a sample reached {n} subscribers").into()),
        }
    };
    for i in 0..seat.job.n {
        seat.turn(i);
        let v = i as u8;
        if seat.job.side == LEFT {
            seat.page.stamp(Series::Depart, i);
            pass(v)?;
        }
        for _ in 0..seat.others() {
            let sample = loop {
                if let Some(s) = subscriber.receive()? {
                    break s;
                }
            };
            let payload = sample.payload();
            match (payload.first(), payload.last()) {
                (Some(a), Some(b)) if (*a, *b) == (v, v) => {}
                ends => return Err(format!("sample {i} carries {ends:?}").into()),
            }
        }
        if seat.job.side == LEFT {
            seat.page.stamp(Series::Back, i);
        } else {
            pass(v)?;
        }
    }
    seat.turn(seat.job.n);
    seat.meet();
    Ok(())
}

/// Notifies a listener that sleeps, which notifies the sender, which sleeps meanwhile. Nothing is handed
/// over.
pub fn wake(seat: &Seat) -> Outcome {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let mut services = Vec::new();
    for way in ["there", "back"] {
        let name: ServiceName = format!("{}/{way}", seat.job.path).as_str().try_into()?;
        services.push(node.service_builder(&name).event().open_or_create()?);
    }
    let notifier = services[seat.job.side].notifier_builder().create()?;
    let listener = services[1 - seat.job.side].listener_builder().create()?;
    seat.meet();
    let mut got = 0u64;
    let mut await_one = |i: u64| -> Outcome {
        while got <= i {
            got += listener.blocking_wait(|_| ())?;
        }
        Ok(())
    };
    for i in 0..seat.job.n {
        seat.turn(i);
        if seat.job.side == LEFT {
            seat.page.await_spin(Line::Asks, i as u64 + 1);
            linger(ASLEEP);
            seat.page.stamp(Series::Depart, i);
            notifier.notify()?;
            await_one(i as u64)?;
            seat.page.stamp(Series::Back, i);
        } else {
            seat.page.store(Line::Asks, i as u64 + 1);
            await_one(i as u64)?;
            seat.page.stamp(Series::Arrive, i);
            notifier.notify()?;
        }
    }
    seat.turn(seat.job.n);
    seat.meet();
    Ok(())
}
