//! The Rust part of examples/python/mixed.py, which starts it.

use std::time::Duration;

use baton::{Payload, Session, Start, TopicOptions};

const MESSAGES: usize = 10;
/// Of senders that have ended, so many messages are kept of all together.
const DEPTH: u32 = 64;
const ROWS: usize = 32;
const PIXELS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, number, parties] = &args[..] else {
        return Err("usage: mixed NAME NUMBER PARTIES (run examples/python/mixed.py)".into());
    };
    let (number, parties): (usize, usize) = (number.parse()?, parties.parse()?);
    let session = Session::connect()?;
    let topic = session.topic_with(name, &TopicOptions::default().depth(DEPTH))?;
    let mut reader = topic.reader(Start::All)?; // also what was sent before: the topic keeps it

    let published = session.get(name, None)?;
    let all = published.get("pictures").ok_or("no pictures")?;
    // SAFETY: no process writes what is published.
    let all = unsafe { all.as_slice::<f32>()? };
    let mine = &all[number * MESSAGES * ROWS * PIXELS..];
    for rows in mine.chunks_exact(ROWS * PIXELS).take(MESSAGES) {
        let batch = session.from_slice(&[ROWS as i64, PIXELS as i64], rows)?;
        let value = Payload::named([("pictures", batch.freeze())]);
        topic.send(value.meta(&serde_json::json!({"from": "Rust"}))?)?;
    }

    let mut total = 0.0;
    for _ in 0..parties * MESSAGES {
        let message = reader.recv(Duration::from_secs(60))?;
        let pictures = message.tensor()?;
        // SAFETY: its sender has sent it and does not write it any more.
        let pictures = unsafe { pictures.as_slice::<f32>()? };
        total += pictures.iter().map(|p| f64::from(*p)).sum::<f64>();
    }
    println!("Rust: {} messages, sum {total:.4}", parties * MESSAGES);
    Ok(())
}
