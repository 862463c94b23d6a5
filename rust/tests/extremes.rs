//! What is asked for and cannot be given: times beyond the clock, copies beyond the memory.

use std::time::Duration;

use baton::{Code, Result, Session, Start, TopicOptions};

mod kit;

use kit::Broker;

#[test]
fn times_beyond_the_clock_are_for_ever() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let _first = broker.session(); // an awaited session may not be there yet; from here on it is
    let session = Session::builder().address(broker.address()).timeout(Duration::MAX).connect()?;
    let x = session.allocation(&[2]).timeout(Duration::MAX).of::<f32>()?.freeze();
    let lossless = session.topic_with("t", &TopicOptions::default().overwrite(false))?;
    let mut reader = lossless.reader(Start::New)?;
    lossless.send_timeout(&x, Duration::MAX)?;
    assert_eq!(reader.recv(Duration::MAX)?.sequence(), 1);
    let queue = session.queue("q")?;
    queue.put(&x, Duration::MAX)?;
    assert_eq!(queue.get(Duration::MAX)?.sequence(), 1);
    session.set("n", &x)?;
    assert_eq!(session.get("n", Duration::MAX)?.revision(), 1);
    assert_eq!(session.watch("n")?.next(Duration::MAX)?.revision(), 1);
    Ok(())
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_wait_for_ever_as_well() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let session = broker.session();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let queue = session.queue("q")?;
        queue.put_async(session.zeros::<f32>(&[2])?.freeze(), Duration::MAX).await?;
        assert_eq!(queue.get_async(Duration::MAX).await?.sequence(), 1);
        Ok(())
    })
}

#[test]
fn a_view_that_repeats_itself_beyond_all_memory_is_not_copied() -> Result<()> {
    let Some(broker) = Broker::start() else { return Ok(()) };
    let (sender, receiver) = (broker.session(), broker.session());
    let mut reader = receiver.topic("t")?.reader(Start::New)?;
    let one = sender.from_slice(&[1], &[7f32])?.freeze();
    // More than any machine has, more than an address space has, more than can be counted in bytes.
    for shape in [[1 << 40, 1], [1 << 40, 1 << 20], [1 << 40, 1 << 21]] {
        let Ok(all) = one.as_strided(&shape, Some(&[0, 0]), 0) else {
            assert_eq!(shape, [1 << 40, 1 << 21]);
            continue;
        };
        sender.topic("t")?.send(all)?;
        let got = reader.recv(Duration::from_secs(60))?.tensor()?;
        assert_eq!(got.to_vec::<f32>().unwrap_err().code(), Code::OutOfMemory, "{shape:?}");
        #[cfg(feature = "ndarray")]
        assert_eq!(got.to_array::<f32>().unwrap_err().code(), Code::OutOfMemory, "{shape:?}");
        assert_eq!(got.slice(0, 5..8)?.select(1, 0)?.to_vec::<f32>()?, [7.0; 3]);
    }
    Ok(())
}
