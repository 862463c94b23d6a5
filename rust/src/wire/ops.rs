//! Requests and replies as they stand in the frames. Unknown fields are ignored.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Serialize)]
pub(crate) struct Nothing {}

#[derive(Deserialize)]
pub(crate) struct Ignored {}

#[derive(Serialize)]
pub(crate) struct Bye {
    /// Memory and refcounts stay: something of them is held.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) keep: bool,
}

#[derive(Deserialize)]
pub(crate) struct ByeReply {
    #[serde(default)]
    pub(crate) held: bool,
}

#[derive(Serialize)]
pub(crate) struct ClientInfo<'a> {
    pub(crate) name: &'a str,
    pub(crate) language: &'a str,
    pub(crate) version: &'a str,
}

#[derive(Serialize, Clone)]
pub(crate) struct Resume {
    pub(crate) instance: String,
    pub(crate) serial: u64,
    pub(crate) secret: String,
}

#[derive(Serialize)]
pub(crate) struct Hello<'a> {
    pub(crate) protocol: u32,
    pub(crate) layout: u32,
    pub(crate) features: &'a [&'a str],
    pub(crate) client: ClientInfo<'a>,
    pub(crate) namespace: &'a str,
    pub(crate) pid: u32,
    /// The file that shows that this program runs comes with it.
    pub(crate) alive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resume: Option<Resume>,
}

#[derive(Deserialize, Debug)]
pub(crate) struct HelloReply {
    pub(crate) protocol: u32,
    pub(crate) layout: u32,
    /// Of the broker.
    #[serde(default)]
    pub(crate) version: String,
    pub(crate) instance: String,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
    #[serde(default)]
    pub(crate) secret: String,
    #[serde(default)]
    pub(crate) resumed: bool,
    #[serde(default)]
    pub(crate) restore: bool,
    #[serde(default)]
    pub(crate) limits: Limits,
}

/// The quotas that a session is under, in bytes; 0 is none.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct Limits {
    pub(crate) session_bytes: u64,
    pub(crate) memory_bytes: u64,
}

#[derive(Serialize, Clone)]
pub(crate) struct RestoreItem {
    pub(crate) role: &'static str,
    pub(crate) serial: u64,
}

#[derive(Serialize)]
pub(crate) struct Restore<'a> {
    pub(crate) items: &'a [RestoreItem],
}

/// The end of what is handed over, with the requests to read whose answers were not processed, and the
/// serials of the sessions and segments that are mapped besides, without a descriptor.
#[derive(Serialize)]
pub(crate) struct Restored {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unanswered: Vec<Reading>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sessions: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) segments: Vec<u64>,
}

#[derive(Serialize)]
pub(crate) struct Reading {
    #[serde(flatten)]
    pub(crate) topic: TopicRef,
    pub(crate) reader: u64,
}

#[derive(Serialize)]
pub(crate) struct GrantRequest<'a> {
    pub(crate) bytes: u64,
    pub(crate) chunks: u32,
    /// What the client's own machine or container has left, where that can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) free: Option<u64>,
    /// The GPU, by the name that brokers know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<&'a str>,
    /// Whether the memory is there already, and is lent as long as this session lives.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) borrowed: bool,
    /// Of the huge pages to lie in, where it is to lie in any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) page_bytes: Option<u64>,
    /// Whether less is asked for, or once more, where there is no room: that refusal is no news to an operator.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) fallback: bool,
}

#[derive(Serialize)]
pub(crate) struct OfferRequest {
    pub(crate) segment: u32,
    pub(crate) serial: u64,
}

#[derive(Deserialize)]
pub(crate) struct ChunkGrant {
    pub(crate) chunk: u32,
    pub(crate) serial: u64,
}

#[derive(Deserialize)]
pub(crate) struct GrantReply {
    pub(crate) segment: u32,
    pub(crate) segment_serial: u64,
    pub(crate) bytes: u64,
    pub(crate) chunks: Vec<ChunkGrant>,
    #[serde(default)]
    pub(crate) device_id: i32,
}

#[derive(Serialize)]
pub(crate) struct ChunksRequest {
    pub(crate) segment: u32,
    pub(crate) count: u32,
}

#[derive(Deserialize)]
pub(crate) struct ChunksReply {
    pub(crate) chunks: Vec<ChunkGrant>,
}

#[derive(Serialize)]
pub(crate) struct ReturnRequest {
    pub(crate) segment: u32,
    pub(crate) serial: u64,
}

#[derive(Serialize)]
pub(crate) struct AttachRequest<'a> {
    pub(crate) chunks: &'a [AttachChunk],
}

/// A grant of a chunk; with `file` the segment's descriptor is asked for too, for reading.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttachChunk {
    pub(crate) chunk: u32,
    pub(crate) serial: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) file: bool,
}

#[derive(Deserialize)]
pub(crate) struct AttachReply {
    /// One for each chunk that was asked for, in that order.
    pub(crate) chunks: Vec<AttachAnswer>,
}

/// Whether the session is attached to a chunk. Where `bytes` is not 0 the descriptor of the segment came with the
/// answer, and that is its size.
#[derive(Deserialize)]
pub(crate) struct AttachAnswer {
    #[serde(default)]
    pub(crate) error: Option<WireError>,
    #[serde(default)]
    pub(crate) segment: u32,
    #[serde(default)]
    pub(crate) segment_serial: u64,
    #[serde(default)]
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) custody: bool,
}

/// A session by its slot and serial.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerSession {
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

#[derive(Serialize)]
pub(crate) struct PeerRequest<'a> {
    pub(crate) sessions: &'a [PeerSession],
}

#[derive(Deserialize)]
pub(crate) struct PeerReply {
    /// One for each session that was asked for, in that order.
    pub(crate) sessions: Vec<PeerAnswer>,
}

/// What there is of a session: where there is no error its file came with the answer.
#[derive(Deserialize)]
pub(crate) struct PeerAnswer {
    #[serde(default)]
    pub(crate) error: Option<WireError>,
    #[serde(default)]
    pub(crate) custody: bool,
}

/// Asks what to keep and to close, and says what was done of the answer before.
#[derive(Serialize, Default)]
pub(crate) struct CustodyRequest {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) kept: Vec<KeptItem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) closed: Vec<KeptItem>,
}

/// What a session is to keep for the next broker, whose descriptors came with the answer, and what it closes.
#[derive(Deserialize)]
pub(crate) struct CustodyReply {
    pub(crate) given: Vec<KeptItem>,
    pub(crate) ended: Vec<KeptItem>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct KeptItem {
    pub(crate) role: String,
    pub(crate) serial: u64,
}

#[derive(Serialize)]
pub(crate) struct SegmentRequest {
    pub(crate) segment: u32,
    pub(crate) serial: u64,
    pub(crate) write: bool,
}

#[derive(Deserialize)]
pub(crate) struct SegmentReply {
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) custody: bool,
    /// The GPU on which it lies; empty for memory of the machine.
    #[serde(default)]
    pub(crate) device: String,
    #[serde(default)]
    pub(crate) device_id: i32,
    /// Whether it ends with its owner's session; the descriptor carries the driver's handle.
    #[serde(default)]
    pub(crate) borrowed: bool,
}

#[derive(Serialize, Default)]
pub(crate) struct TopicOpen<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<&'a str>,
    pub(crate) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overwrite: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redeliver: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) linger: Option<f64>,
    pub(crate) create: bool,
}

#[derive(Deserialize, Debug, Clone)]
pub(crate) struct TopicInfo {
    /// The number of this opening among the session's.
    pub(crate) opening: u64,
    pub(crate) topic: u32,
    #[serde(rename = "topic_id")]
    pub(crate) id: u64,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) token: String,
    pub(crate) kind: String,
    pub(crate) depth: u32,
    pub(crate) slots: u32,
    pub(crate) stride: u32,
    pub(crate) overwrite: bool,
    #[serde(default)]
    pub(crate) redeliver: bool,
}

#[derive(Serialize, Deserialize, Debug, Clone, Copy)]
pub(crate) struct TopicRef {
    pub(crate) topic: u32,
    #[serde(rename = "topic_id")]
    pub(crate) id: u64,
}

#[derive(Serialize)]
pub(crate) struct TopicWrite {
    #[serde(flatten)]
    pub(crate) topic: TopicRef,
    pub(crate) offset: u64,
}

#[derive(Serialize)]
pub(crate) struct TopicRead<'a> {
    #[serde(flatten)]
    pub(crate) topic: TopicRef,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<&'a str>,
    /// The number that it is to have, so that it can be asked for again and left.
    pub(crate) reader: u64,
}

/// Makes a reader a provider of a function.
#[derive(Serialize)]
pub(crate) struct FunctionRegister<'a> {
    #[serde(flatten)]
    pub(crate) topic: TopicRef,
    pub(crate) reader: u64,
    pub(crate) description: &'a str,
    pub(crate) concurrency: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) idempotent: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) exclusive: bool,
    #[serde(rename = "override", skip_serializing_if = "std::ops::Not::not")]
    pub(crate) replace: bool,
    /// Seconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) linger: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

#[derive(Deserialize, Debug)]
pub(crate) struct FunctionRegistered {
    pub(crate) registration: u32,
    /// Whether the ProviderRecord of its reader may be written.
    #[serde(default)]
    pub(crate) counted: bool,
}

/// Asks what became of a provider.
#[derive(Serialize)]
pub(crate) struct FunctionFate {
    #[serde(flatten)]
    pub(crate) topic: TopicRef,
    pub(crate) member: u16,
    /// Of a call that it had.
    pub(crate) lane: u32,
    pub(crate) message: u64,
}

#[derive(Deserialize)]
pub(crate) struct FunctionRemoved {
    pub(crate) providers: u32,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct Fate {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) reason: String,
    /// Whether it provides the function still.
    pub(crate) lives: bool,
    /// Whether one that lives got no memory for the reply.
    pub(crate) no_reply: bool,
    /// Whether its session was evicted, by an operator or since its user may not have one.
    pub(crate) evicted: bool,
    /// What ended its process, or what that exited with, where the system tells.
    pub(crate) signal: u32,
    pub(crate) status: Option<i32>,
    /// For how long the function had run for the call.
    pub(crate) seconds: Option<f64>,
}

#[derive(Serialize)]
pub(crate) struct TopicGroupFile {
    #[serde(flatten)]
    pub(crate) topic: TopicRef,
    pub(crate) group: u32,
}

#[derive(Serialize)]
pub(crate) struct TopicLeave {
    #[serde(flatten)]
    topic: Option<TopicRef>,
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reader: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opening: Option<u64>,
}

impl TopicLeave {
    /// Leaves the lane at an offset of the session's own file.
    pub(crate) fn lane(topic: TopicRef, offset: u64) -> TopicLeave {
        TopicLeave { topic: Some(topic), role: "write", offset: Some(offset), reader: None, opening: None }
    }

    /// Leaves as a reader.
    pub(crate) fn reader(topic: TopicRef, number: u64) -> TopicLeave {
        TopicLeave { topic: Some(topic), role: "read", offset: None, reader: Some(number), opening: None }
    }

    /// Ends an opening, of whatever topic.
    pub(crate) fn opening(number: u64) -> TopicLeave {
        TopicLeave { topic: None, role: "open", offset: None, reader: None, opening: Some(number) }
    }
}

/// A request to open something, with the number by which the opening is found where it is asked for again.
#[derive(Serialize)]
pub(crate) struct Numbered<'a, B> {
    #[serde(flatten)]
    pub(crate) of: &'a B,
    pub(crate) opening: u64,
}

#[derive(Deserialize, Debug)]
pub(crate) struct TopicWriteReply {
    pub(crate) lane: u32,
}

#[derive(Deserialize, Debug)]
pub(crate) struct TopicReadReply {
    pub(crate) reader: u64,
    #[serde(default)]
    pub(crate) member: u16,
    /// Its number in the topic's record, of a reader that is in one.
    #[serde(default)]
    pub(crate) group: Option<u32>,
    #[serde(default)]
    pub(crate) group_id: u64,
    /// Whether the record of the reader's number has memory, and may be written.
    #[serde(default)]
    pub(crate) counted: bool,
}

#[derive(Serialize)]
pub(crate) struct StorageRef {
    pub(crate) index: u32,
    pub(crate) serial: u64,
    pub(crate) generation: u64,
}

#[derive(Serialize)]
pub(crate) struct NameSet<'a> {
    pub(crate) name: &'a str,
    /// Chosen at random, so that a set is known that is asked for again.
    pub(crate) setting: u64,
    pub(crate) live: bool,
    pub(crate) ephemeral: bool,
    pub(crate) refs: Vec<StorageRef>,
    pub(crate) spilled: bool,
    pub(crate) bytes: u64,
    pub(crate) tensors: u16,
    pub(crate) body: String,
}

#[derive(Deserialize)]
pub(crate) struct NameSetReply {
    pub(crate) revision: u64,
}

#[derive(Serialize)]
pub(crate) struct NameRef<'a> {
    pub(crate) name: &'a str,
}

#[derive(Serialize)]
pub(crate) struct LeaseRequest {
    /// Chosen at random, so that one lease is made where the request is made again.
    pub(crate) lease: u64,
    pub(crate) refs: Vec<StorageRef>,
    pub(crate) seconds: Option<f64>,
    pub(crate) once: bool,
}

#[derive(Serialize)]
pub(crate) struct LeaseRef {
    pub(crate) lease: u64,
}

#[derive(Deserialize)]
pub(crate) struct Status {
    #[serde(default)]
    pub(crate) unread_pickles: Unread,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Unread {
    pub(crate) waiting: u64,
    pub(crate) oldest_seconds: f64,
    pub(crate) may_go: u64,
    pub(crate) given_up: u64,
}

#[derive(Deserialize)]
pub(crate) struct WireError {
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) remedy: String,
    #[serde(default)]
    pub(crate) detail: Option<Map<String, Value>>,
}
