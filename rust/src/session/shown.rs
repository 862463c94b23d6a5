//! What `{:?}` shows of the types that have a whole session behind them: what tells one from another, in a line. What
//! opens a private topic is a secret, and is not shown.

use std::fmt::{Debug, Formatter, Result};

use super::{Allocation, DeviceAllocator, Session};
use crate::dtype::Element;
use crate::lanes::{Closer, Message, Queue, Reader, Topic, Watch};
use crate::tensor::{Tensor, TensorMut};
use crate::value::{Bundle, Payload};

impl Debug for Session {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Session")
            .field("address", &self.address())
            .field("namespace", &self.namespace())
            .field("serial", &self.inner.memory.files.serial)
            .finish_non_exhaustive()
    }
}

impl Debug for Allocation<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Allocation").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Debug for DeviceAllocator {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let blocks = self.blocks.try_lock().ok().map(|all| all.len());
        f.debug_struct("DeviceAllocator").field("blocks", &blocks).finish_non_exhaustive()
    }
}

impl Debug for Tensor {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut shown = f.debug_struct("Tensor");
        shown.field("dtype", &format_args!("{}", self.dtype())).field("shape", &self.shape());
        if let Some(strides) = self.strides() {
            shown.field("strides", &strides);
        }
        if let Some(on) = self.on_device() {
            shown.field("device", &format_args!("cuda:{}", on.id));
        }
        shown.field("read_only", &self.is_read_only()).finish_non_exhaustive()
    }
}

impl<T: Element> Debug for TensorMut<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let dtype = self.tensor().dtype();
        f.debug_struct("TensorMut")
            .field("dtype", &format_args!("{dtype}"))
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}

impl Debug for Message {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Message")
            .field("sender", &self.sender())
            .field("sequence", &self.sequence())
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

impl Debug for Topic {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Topic").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Debug for Queue {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Queue").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Debug for Reader {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Reader")
            .field("topic", &self.topic.info.name)
            .field("group", &self.joined)
            .field("senders", &self.cursors.len())
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

impl Debug for Watch {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Watch").field("name", &self.reader.topic.info.name).finish_non_exhaustive()
    }
}

impl Debug for Closer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Closer").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl Debug for Bundle {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Bundle")
            .field("tensors", &self.len())
            .field("revision", &self.revision())
            .field("live", &self.is_live())
            .finish_non_exhaustive()
    }
}

impl Debug for Payload {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Payload").field("tensors", &self.tensors.iter().count()).finish_non_exhaustive()
    }
}
