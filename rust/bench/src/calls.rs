//! Calls of functions, and the round trip that they are compared with (bench/calls.go).

use std::time::Duration;

use baton::{Arguments, Session, Start, Tensor, Value};

use crate::page::Series;
use crate::{LEFT, Outcome, Seat};

fn connect(seat: &Seat) -> baton::Result<Session> {
    Session::builder().address(&*seat.job.socket).name("bench-rust").connect()
}

/// Does the rounds: left measures, right only keeps pace, as a provider works by itself.
fn rounds(seat: &Seat, mut round: impl FnMut(usize) -> Outcome) -> Outcome {
    for i in 0..seat.job.n {
        seat.turn(i);
        if seat.job.side == LEFT {
            if seat.job.every > 0 {
                std::thread::sleep(Duration::from_nanos(seat.job.every));
            }
            seat.page.stamp(Series::Depart, i);
            round(i)?;
            seat.page.stamp(Series::Back, i);
        }
    }
    seat.turn(seat.job.n);
    seat.meet();
    Ok(())
}

/// Puts a number into a queue and waits for it in a topic.
pub fn own_trip(seat: &Seat) -> Outcome {
    let session = connect(seat)?;
    let queue = session.queue(&format!("{}/there", seat.job.path))?;
    let topic = session.topic(&format!("{}/back", seat.job.path))?;
    if seat.job.side != LEFT {
        seat.meet();
        for i in 0..seat.job.n {
            seat.turn(i);
            let v = queue.get(None)?.value()?;
            topic.send(v.payload()?)?;
        }
        seat.turn(seat.job.n);
        seat.meet();
        return Ok(());
    }
    let mut reader = topic.reader(Start::New)?;
    seat.meet();
    rounds(seat, |i| {
        queue.put(Value::Int(i as i64).payload()?, None)?;
        expect(matches!(reader.recv(None)?.value()?, Value::Int(v) if v == i as i64), i)
    })
}

fn expect(same: bool, i: usize) -> Outcome {
    if same { Ok(()) } else { Err(format!("round {i}: something else came back").into()) }
}

/// A call with a number, which comes back.
pub fn int(seat: &Seat) -> Outcome {
    let session = connect(seat)?;
    if seat.job.side != LEFT {
        let _same = session.provide(&seat.job.path)?.parameter("x", "int").serve(|args, _| args.get::<i64>(0))?;
        seat.meet();
        return rounds(seat, |_| Ok(()));
    }
    seat.meet();
    let f = session.get_function(&seat.job.path)?;
    rounds(seat, |i| expect(f.call::<i64>((i as i64,))? == i as i64, i))
}

/// A call with six floats that are given by name.
pub fn six(seat: &Seat) -> Outcome {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let session = connect(seat)?;
    if seat.job.side != LEFT {
        let mut sum = session.provide(&seat.job.path)?;
        for name in NAMES {
            sum = sum.parameter(name, "float");
        }
        let _sum = sum.serve(|args, _| {
            let mut sum = 0.0;
            for name in NAMES {
                sum += args.get::<f64>(name)?;
            }
            Ok(sum)
        })?;
        seat.meet();
        return rounds(seat, |_| Ok(()));
    }
    seat.meet();
    let f = session.get_function(&seat.job.path)?;
    rounds(seat, |i| {
        let x = i as f64;
        let args = Arguments::new().named("a", x).named("b", 1.5).named("c", 2.5);
        let v: f64 = f.call(args.named("d", 3.5).named("e", 4.5).named("f", 5.5))?;
        expect(v == x + 17.5, i)
    })
}

/// A call with one tensor that it has, by handle, which comes back.
pub fn tensor(seat: &Seat) -> Outcome {
    let session = connect(seat)?;
    if seat.job.side != LEFT {
        let same = session.provide(&seat.job.path)?.parameter("x", "tensor");
        let _same = same.serve(|args, _| {
            let x: Tensor = args.get(0)?;
            // SAFETY: the caller writes before it calls, and not while the call runs.
            let b = unsafe { x.as_slice::<u8>() }?;
            match b.first() == b.last() {
                true => Ok(x),
                false => Err(baton::Error::of_kind("bench", "the ends are of different rounds")),
            }
        })?;
        seat.meet();
        return rounds(seat, |_| Ok(()));
    }
    seat.meet();
    let f = session.get_function(&seat.job.path)?;
    let mut x = session.alloc::<u8>(&[seat.job.bytes as i64])?.freeze();
    rounds(seat, |i| {
        // SAFETY: the provider reads it during the call alone.
        let b = unsafe { x.as_mut_slice::<u8>() }?;
        let last = b.len() - 1;
        (b[0], b[last]) = (i as u8, i as u8);
        let y: Tensor = f.call((&x,))?;
        // SAFETY: as above.
        expect(unsafe { y.as_slice::<u8>() }?.first() == Some(&(i as u8)), i)
    })
}
