//! The Rust part of examples/functions/train.py, which starts it: it prepares pictures, in place.

use baton::{Session, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(name) = std::env::args().nth(1) else {
        return Err("usage: prepare NAME (run examples/functions/train.py)".into());
    };
    let session = Session::connect()?;
    let prepare = session
        .provide(&format!("{name}/prepare"))?
        .parameter("pictures", "tensor")
        .result("tensor")
        .doc("Brings each picture to mean 0 and deviation 1, in place.")
        .serve(|args, _call| {
            let mut pictures: Tensor = args.get("pictures")?;
            let pixels = pictures.shape().last().map_or(1, |n| *n as usize).max(1);
            // SAFETY: the caller waits for the call, and no other process has these pictures.
            let all = unsafe { pictures.as_mut_slice::<f32>()? };
            all.chunks_exact_mut(pixels).for_each(standardise);
            Ok(pictures)
        })?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?; // until the trainer has ended, in whichever way
    drop(prepare);
    Ok(())
}

fn standardise(picture: &mut [f32]) {
    let n = picture.len() as f32;
    let mean = picture.iter().sum::<f32>() / n;
    let deviation = (picture.iter().map(|p| (p - mean).powi(2)).sum::<f32>() / n)
        .sqrt()
        .max(1e-6);
    picture
        .iter_mut()
        .for_each(|p| *p = (*p - mean) / deviation);
}
