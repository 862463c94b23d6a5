//! A hand-over in one screen: this process fills tensors and sends them; a second one, started by it,
//! receives them without a copy. `cargo run --example tour` in rust/.

use std::process::Command;
use std::time::Duration;

use baton::{Code, NameOptions, Payload, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("consume") => consume(),
        _ => produce(),
    }
}

/// Puts three batches on a queue and publishes weights under a name.
fn produce() -> Result<(), Box<dyn std::error::Error>> {
    // region produce
    let session = Session::connect()?; // starts the user's broker if none runs
    let queue = session.queue("tour/batches")?;
    for i in 0..3 {
        let mut batch = session.alloc::<f32>(&[2, 3])?; // the shared memory itself, a &mut [f32]
        for (k, x) in batch.iter_mut().enumerate() {
            *x = (10 * i + k) as f32;
        }
        queue.put(batch.freeze(), None)?; // a reference goes over, the bytes stay
    }
    // endregion
    let weights = session.zeros::<f64>(&[4])?.freeze();
    let revision = session.set_with(
        "tour/weights",
        Payload::named([("w", weights)]),
        &NameOptions::default().ephemeral(true),
    )?;
    println!("published tour/weights, revision {revision}");

    queue.end()?; // takers drain it, then get Closed
    let status = Command::new(std::env::current_exe()?)
        .arg("consume")
        .status()?;
    assert!(status.success());
    Ok(())
}

/// Takes the batches in another process and gets the name.
fn consume() -> Result<(), Box<dyn std::error::Error>> {
    // region consume
    let session = Session::connect()?;
    let queue = session.queue("tour/batches")?;
    loop {
        let message = match queue.get(Duration::from_secs(10)) {
            Err(e) if e.code() == Code::Closed => break,
            message => message?,
        };
        let batch = message.tensor()?;
        // No copy: the producer's bytes. SAFETY: it has put them and does not write them any more.
        let x = unsafe { batch.as_slice::<f32>()? };
        let (k, shape) = (message.sequence(), batch.shape());
        let (first, last) = (x[0], x[x.len() - 1]);
        println!("batch {k}: {shape:?}, first {first}, last {last}");
    }
    // endregion
    let weights = session.get("tour/weights", None)?;
    let names: Vec<&str> = weights.iter().map(|(name, _)| name).collect();
    println!(
        "got tour/weights, revision {}: {names:?}",
        weights.revision()
    );
    Ok(())
}
