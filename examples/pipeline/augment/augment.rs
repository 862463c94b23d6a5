//! The augmenting stage of the pipeline: shifts each picture by a pixel or none and adds noise, in the
//! memory in which the loader left it, and hands it on.

use std::fs;
use std::time::Duration;

use baton::{Error, Payload, Queue, Session, Tensor};
use serde_json::{Value, json};

const SIDE: i64 = 8;
const PIXELS: usize = 64;

/// CLOCK_MONOTONIC, which is the same in all processes.
fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Where memory really is: inode and offset of the shared file, from the kernel.
fn place(address: u64) -> String {
    for line in fs::read_to_string("/proc/self/maps")
        .unwrap_or_default()
        .lines()
    {
        let mut words = line.split_whitespace();
        let (range, offset, inode) = (words.next(), words.nth(1), words.nth(1));
        let hex = |s: &str| u64::from_str_radix(s, 16).ok();
        let Some((from, to)) = range
            .and_then(|r| r.split_once('-'))
            .and_then(|(f, t)| Some((hex(f)?, hex(t)?)))
        else {
            continue;
        };
        if (from..to).contains(&address) {
            let offset = offset.and_then(hex).unwrap_or_default() + (address - from);
            return format!("{}:{offset}", inode.unwrap_or_default());
        }
    }
    String::new()
}

/// Shifts and adds noise. `first` is the number of the first picture.
fn augment(pictures: &mut [f32], first: u64) {
    for (picture, k) in pictures.chunks_exact_mut(PIXELS).zip(first..) {
        let was: [f32; PIXELS] = picture.try_into().unwrap_or([0.0; PIXELS]);
        let (dx, dy) = ((k % 3) as i64 - 1, (k / 3 % 3) as i64 - 1);
        for (p, to) in picture.iter_mut().enumerate() {
            let (x, y) = (p as i64 % SIDE - dx, p as i64 / SIDE - dy);
            let inside = (0..SIDE).contains(&x) && (0..SIDE).contains(&y);
            let value = if inside {
                was[(y * SIDE + x) as usize]
            } else {
                0.0
            };
            let hash =
                ((k as u32).wrapping_mul(64).wrapping_add(p as u32)).wrapping_mul(2_654_435_761);
            let noise = (hash >> 8) as f32 / (1 << 24) as f32 - 0.5;
            *to = (value + 0.2 * noise).clamp(0.0, 1.0);
        }
    }
}

fn stage(from: &Queue, to: &Queue) -> Result<bool, Error> {
    let message = from.get(Duration::from_secs(60))?;
    let began = now();
    let bundle = message.bundle()?;
    if bundle.is_empty() {
        to.put(&bundle, None)?; // no more
        return Ok(false);
    }
    let mut meta: Value = serde_json::from_slice(&message.meta()?).unwrap_or_default();
    let mut tensors: Vec<(String, Tensor)> = bundle
        .iter()
        .map(|(n, t)| (n.to_owned(), t.clone()))
        .collect();
    let Some((_, images)) = tensors.iter_mut().find(|(n, _)| n == "images") else {
        return Ok(true);
    };
    let first = meta["id"].as_u64().unwrap_or_default() * images.shape()[0] as u64;
    // SAFETY: an item of a queue has one taker, so no other process looks at it now.
    augment(unsafe { images.as_mut_slice::<f32>() }?, first);
    let at = place(images.as_ptr()? as u64);
    if let Some(trace) = meta["trace"].as_array_mut() {
        trace.push(json!({"stage": "augment", "at": at, "in": began, "out": now()}));
    }
    to.put(Payload::named(tensors).meta(&meta)?, None)?;
    Ok(true)
}

fn main() -> Result<(), Error> {
    let session = Session::builder().name("augment").connect()?;
    let (from, to) = (
        session.queue("pipeline/loaded")?,
        session.queue("pipeline/augmented")?,
    );
    while stage(&from, &to)? {}
    Ok(())
}
