//! What the broker did for nothing.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::inner::Inner;
use crate::wire::Late;
use crate::wire::ops::{
    GrantReply, LeaseRef, LeaseReply, ReturnRequest, TopicInfo, TopicLeave, TopicReadReply, TopicRef,
};

impl Inner {
    /// Undoes a request that was carried out after its caller had given it up, or whose answer came
    /// with descriptors that this process had no room for.
    ///
    /// A lane that the broker listed late stays this session's: the next send asks for it again with
    /// the same offset.
    pub(super) fn undo(&self, late: &Late) {
        match late.op {
            "grant" => {
                if let Some(r) = read::<GrantReply>(late.ok.get()) {
                    self.tell("return", &ReturnRequest { segment: r.segment, serial: r.segment_serial });
                }
            }
            "topic.open" | "name.open" => {
                if let Some(r) = read::<TopicInfo>(late.ok.get()) {
                    self.unopen(TopicRef { topic: r.topic, id: r.id }, r.opening);
                }
            }
            "topic.read" => {
                let topic = TopicRef::deserialize(&late.body).ok();
                if let (Some(topic), Some(r)) = (topic, read::<TopicReadReply>(late.ok.get())) {
                    self.tell("topic.leave", &TopicLeave::reader(topic, r.reader));
                }
            }
            "lease" => {
                if let Some(r) = read::<LeaseReply>(late.ok.get()) {
                    self.tell("lease.release", &LeaseRef { lease: r.lease });
                }
            }
            _ => {}
        }
    }
}

fn read<R: DeserializeOwned>(json: &str) -> Option<R> {
    serde_json::from_str(json).ok()
}
