//! What docs/functions.md shows of Rust stands here as it stands there, and runs.

mod kit;

use std::time::Duration;

use baton::{Arguments, Function, FunctionValue, Result, Tensor};
use kit::Broker;

/// A text without white space.
fn flat(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn what_the_page_shows_stands_here() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/functions.md")).unwrap();
    let blocks: Vec<_> = page.split("\n```rust\n").skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 4);
    let here = flat(include_str!("page.rs"));
    for block in blocks {
        assert!(here.contains(&flat(block)), "{block}");
    }
}

#[test]
#[rustfmt::skip]
#[expect(unused_variables, reason = "as the page has it")]
fn what_the_page_shows_runs() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let x = session.from_slice(&[64], &[1f32; 64])?.freeze();
    let mut sum = 0.0;

    let scale = session.provide("vision/scale")?
        .parameter("image", "tensor").optional("by", "float", 2.0).by_name()
        .result("tensor").doc("Scales an image in place.")
        .concurrency(4)
        .serve(|args, call| {
            let (mut image, by): (Tensor, f32) = (args.get("image")?, args.get("by")?);
            // SAFETY: the caller waits for the result and reads nothing meanwhile.
            unsafe { image.as_mut_slice::<f32>()? }.iter_mut().for_each(|x| *x *= by);
            Ok(image)
        })?;

    let y: Tensor = session.call("vision/scale", (&x,))?;
    let f = session.get_function("vision/scale")?.timeout(Duration::from_secs(2));
    let y: Tensor = f.call(Arguments::new().arg(&x).named("by", 0.5))?;
    assert_eq!(y.to_vec::<f32>()?, [1.0; 64], "twice, and half of it");

    let tiles = session.provide("vision/tiles")?.parameter("image", "tensor").result("tensor").serve_parts(|args, _, parts| {
        let image: Tensor = args.get("image")?;
        (0..4).try_for_each(|i| parts.send(image.as_strided(&[16], None, 16 * i)?))?;
        Ok(4)
    })?;

    let mut parts = session.get_function("vision/tiles")?.ahead(8).stream::<Tensor>((&x,))?;
    for tile in parts.by_ref() {
        sum += tile?.to_vec::<f32>()?.iter().sum::<f32>();
    }
    let n: i64 = parts.result()?;
    assert_eq!((sum, n), (64.0, 4));

    let train = session.provide("train")?.parameter("steps", "int").parameter("on_step", "function").serve(|args, _| {
        let on_step: Function = args.get("on_step")?;
        (0..args.get::<i64>("steps")?).try_for_each(|step| on_step.call::<()>((step, 1.0 / (1.0 + step as f64))))
    })?;

    let on_step = FunctionValue::new(|args, _| {
        println!("{}: {}", args.get::<i64>(0)?, args.get::<f64>(1)?);
        Ok(())
    });
    session.call::<()>("train", (3, on_step))?;
    Ok(())
}
