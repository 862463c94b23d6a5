//! Handing tensors on GPUs over: what waits for streams that write them.

use std::sync::Arc;
use std::time::Instant;

use super::Tensor;
use crate::cuda::Stream;
use crate::devices::{Devices, Done, Gpu, Named, OnGpu, Point};
use crate::error::{Code, Error, Result};
use crate::holding::Opening;

/// Makes the stream of a send come after what its tensors wait for, and tells when it will have
/// written them.
pub(crate) fn order_send<'a>(
    inner: &Opening,
    tensors: impl Iterator<Item = &'a Tensor>,
    stream: Stream,
    until: Option<Instant>,
) -> Result<Option<Point>> {
    let on_gpus = tensors.filter_map(|t| Some(t.gpu().transpose()?.map(|gpu| (t, gpu))));
    let on_gpus = on_gpus.collect::<Result<Vec<_>>>()?;
    let Some((first, gpu)) = on_gpus.first() else { return Ok(None) };
    let devices = Devices::of(&inner.memory);
    let mut before: Vec<Point> = Vec::new(); // the last of each stream: it comes after its earlier ones
    for (t, g) in &on_gpus {
        if stream == Stream::NONE {
            t.written_until(until)?;
            continue;
        }
        if !Arc::ptr_eq(gpu, g) {
            let (a, b) = (first.device(), t.device());
            let what = format!("one message with tensors on cuda:{} and cuda:{}", a.device_id, b.device_id);
            let remedy = "send them apart, or synchronise and send with no stream";
            return Err(Error::new(Code::InvalidArgument, remedy, what));
        }
        let Some(p) = OnGpu(&t.held).written(Some(&Named::new(g, stream)))? else { continue };
        match before.iter_mut().find(|q| q.is_of_stream_of(&p)) {
            Some(q) if q.value >= p.value => (),
            Some(q) => *q = p,
            None => before.push(p),
        }
    }
    if stream == Stream::NONE {
        return Ok(None);
    }
    before.iter().try_for_each(|p| devices.follow(inner, gpu, stream, p, until))?;
    let point = devices.mark(inner, gpu, stream)?;
    let done = point.clone().map_or(Done::Now, Done::At);
    on_gpus.iter().for_each(|(t, g)| OnGpu(&t.held).note(g, stream.seen_by_all(), done.clone()));
    Ok(point)
}

/// Waits until everything on the tensors' GPUs is done: what a name or a handle names has no stream.
pub(crate) fn await_written<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let mut done: Vec<Arc<Gpu>> = Vec::new();
    for t in tensors {
        let Some(g) = t.gpu()? else { continue };
        t.written(None)?;
        if !done.iter().any(|d| Arc::ptr_eq(d, &g)) {
            g.device.synchronize()?;
            done.push(g);
        }
    }
    Ok(())
}
