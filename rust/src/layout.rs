//! Offsets of the shared structures (docs/protocol.md, section 3), written once in tables that
//! give constants, checks at compile time, and the list that a test compares with
//! `protocol/testdata/v1/layout.json`.
//!
//! Shared memory is never viewed as a Rust structure: other processes write it, so every word is
//! loaded by an atomic of `shm` at one of these offsets.

/// One field of a shared structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Name in the protocol.
    pub name: &'static str,
    /// `u8`, `u16`, `u32`, `u64`, `i32`, `i64`, `char`, or the name of a structure.
    pub kind: &'static str,
    /// Bytes from the structure's begin.
    pub offset: u64,
    /// Bytes of one element.
    pub width: u64,
    /// Elements, 1 unless an array.
    pub count: u64,
}

/// A shared structure, or the fixed start of one whose length varies.
#[derive(Debug, Clone, Copy)]
pub struct Struct {
    /// Name in the protocol.
    pub name: &'static str,
    /// Bytes.
    pub size: u64,
    /// Its fields in order.
    pub fields: &'static [Field],
}

const fn width_of(kind: &str) -> u64 {
    match kind.as_bytes() {
        b"u8" | b"char" => 1,
        b"u16" => 2,
        b"u32" | b"i32" => 4,
        b"u64" | b"i64" => 8,
        b"GroupRecord" => 64,
        b"LaneRecord" => 32,
        _ => panic!("unknown type"),
    }
}

/// The structure, whose fields lie in order, apart, aligned, and inside.
const fn checked(s: Struct) -> Struct {
    let (mut i, mut end) = (0, 0);
    while i < s.fields.len() {
        let f = &s.fields[i];
        assert!(f.offset >= end, "fields overlap");
        assert!(f.width > 8 || f.offset.is_multiple_of(f.width), "field is not aligned");
        end = f.offset + f.width * f.count;
        i += 1;
    }
    assert!(end <= s.size, "fields reach past the structure");
    s
}

macro_rules! layout {
    ($($module:ident $name:ident $size:literal { $($konst:ident $field:ident: $kind:ident $([$count:literal])? @ $at:literal;)* })*) => {
        $(
            #[doc = concat!("Offsets in a ", stringify!($name), ".")]
            pub mod $module {
                use super::{Field, Struct};
                $(#[doc = concat!("Offset of `", stringify!($field), "`.")] pub const $konst: u64 = $at;)*
                /// Bytes of the structure, or of its fixed begin.
                pub const SIZE: u64 = $size;
                /// The structure.
                pub const STRUCT: Struct = super::checked(Struct { name: stringify!($name), size: $size, fields: &[$(Field {
                    name: stringify!($field), kind: stringify!($kind), offset: $at,
                    width: super::width_of(stringify!($kind)), count: layout!(@count $($count)?),
                },)*] });
            }
        )*
        /// Every structure of the layout.
        pub const STRUCTS: &[Struct] = &[$($module::STRUCT,)*];
    };
    (@count) => { 1 };
    (@count $n:literal) => { $n };
}

layout! {
    file_head FileHead 64 {
        MAGIC magic: u64 @ 0; LAYOUT layout: u32 @ 8; ROLE role: u32 @ 12; INSTANCE instance: u8[16] @ 16;
        SERIAL serial: u64 @ 32; SLOT slot: u32 @ 40; FLAGS flags: u32 @ 44; BYTES bytes: u64 @ 48;
    }
    session_record SessionRecord 256 {
        SERIAL serial: u64 @ 0; STATE state: u32 @ 8; PID pid: u32 @ 12; START_TIME start_time: u64 @ 16;
        UID uid: u32 @ 24; LANGUAGE language: u32 @ 28; SECRET_HASH secret_hash: u8[16] @ 32;
        CONNECTED_AT connected_at: u64 @ 48; PID_NS pid_ns: u64 @ 56; NAME name: char[64] @ 64;
        NAMESPACE namespace: char[64] @ 128;
    }
    chunk_record ChunkRecord 1024 {
        SERIAL serial: u64 @ 0; OWNER_SERIAL owner_serial: u64 @ 8; OWNER owner: u32 @ 16;
        SEGMENT segment: u32 @ 20; OFFSET offset: u64 @ 24; BYTES bytes: u64 @ 32;
        SEGMENT_SERIAL segment_serial: u64 @ 40; EPOCH epoch: u64 @ 48; ATTACHED_WORDS attached_words: u64 @ 56;
        ATTACHED attached: u64[64] @ 64;
    }
    segment_record SegmentRecord 64 {
        SERIAL serial: u64 @ 0; BYTES bytes: u64 @ 8; KIND kind: u32 @ 16; OWNER owner: u32 @ 20;
        OWNER_SERIAL owner_serial: u64 @ 24; STATE state: u32 @ 32; DEVICE_TYPE device_type: i32 @ 36;
        DEVICE_ID device_id: i32 @ 40; MADE_AT made_at: u64 @ 48;
    }
    topic_record TopicRecord 139264 {
        VERSION version: u64 @ 0; ID id: u64 @ 8; STATE state: u32 @ 16; KIND kind: u32 @ 20;
        FLAGS flags: u32 @ 24; DEPTH depth: u32 @ 28; SLOTS slots: u32 @ 32; STRIDE stride: u32 @ 36;
        LANES_END lanes_end: u32 @ 40; GROUPS_END groups_end: u32 @ 44; MADE_AT made_at: u64 @ 48;
        LINGER linger: u64 @ 56; READERS readers: u64[64] @ 64; NAME name: char[256] @ 576;
        NAMESPACE namespace: char[64] @ 832; CREATOR creator: char[64] @ 896; TOKEN token: u8[16] @ 960;
        GONE gone: u64 @ 1024; LAST_LEFT last_left: char[64] @ 1032;
        GONE_BYTES gone_bytes: u64 @ 1096; GROUPS groups: GroupRecord[64] @ 4096;
        LANES lanes: LaneRecord[4096] @ 8192;
    }
    group_record GroupRecord 64 {
        ID id: u64 @ 0; MEMBERS members: u32 @ 8; FLAGS flags: u32 @ 12; NAME name: char[40] @ 16;
    }
    lane_record LaneRecord 32 {
        SERIAL serial: u64 @ 0; OFFSET offset: u64 @ 8; SLOT slot: u32 @ 16; STATE state: u32 @ 20;
        INCARNATION incarnation: u64 @ 24;
    }
    function_record FunctionRecord 16384 {
        TOPIC_ID topic_id: u64 @ 0; REGISTRATION registration: u32 @ 8; PROVIDERS providers: u32 @ 12;
        FLAGS flags: u32 @ 16; UID uid: u32 @ 20; VERSION version: u64 @ 24; BYTES bytes: u32 @ 32;
        CONCURRENCY concurrency: u32 @ 36; MADE_AT made_at: u64 @ 40; DESCRIPTION description: char[16320] @ 64;
    }
    storage_entry StorageEntry 32 {
        OFFSET offset: u64 @ 0; BYTES bytes: u64 @ 8; GENERATION generation: u64 @ 16; MADE_AT made_at: u64 @ 24;
    }
    lane Lane 128 {
        TOPIC_ID topic_id: u64 @ 0; SLOTS slots: u32 @ 8; STRIDE stride: u32 @ 12; HEAD head: u64 @ 64;
        TOTAL total: u64 @ 72;
    }
    reader_record ReaderRecord 32 {
        NUMBER number: u64 @ 0; TAKEN taken: u64 @ 8; LOST lost: u64 @ 16;
    }
    provider_record ProviderRecord 4096 {
        NUMBER number: u64 @ 0; SINCE since: u64 @ 8; FAILED failed: u64 @ 16; TOOK took: u64 @ 24;
        COUNTS counts: u64[248] @ 64; BEGUN begun: u64[256] @ 2048;
    }
    slot Slot 40 {
        SEQ seq: u64 @ 0; STAMP stamp: u64 @ 8; FLAGS flags: u32 @ 16; NREF nref: u16 @ 20;
        TENSORS tensors: u16 @ 22; BYTES bytes: u64 @ 24; BODY body: u32 @ 32; CANCELLED cancelled: u32 @ 36;
    }
    brief Brief 64 {
        SEQ seq: u64 @ 0; STAMP stamp: u64 @ 8; FLAGS flags: u16 @ 16; NDIM ndim: u8 @ 18; ZERO zero: u8 @ 19;
        INDEX index: u32 @ 20; SERIAL serial: u64 @ 24; GENERATION generation: u64 @ 32; CODE code: u8 @ 40;
        BITS bits: u8 @ 41; LANES lanes: u16 @ 42; REST rest: u32 @ 44; EXTENTS extents: u32[4] @ 48;
    }
    reference Ref 24 {
        SERIAL serial: u64 @ 0; GENERATION generation: u64 @ 8; INDEX index: u32 @ 16; ZERO zero: u32 @ 20;
    }
    order Order 16 {
        STREAM stream: u32 @ 0; READY ready: u64 @ 8;
    }
    agreed Agreed 24 {
        REVISION revision: u64 @ 0; AGE age: u64 @ 8; BUCKET bucket: u64 @ 16;
    }
    spill Spill 16 {
        MAGIC magic: u64 @ 0; NREF nref: u32 @ 8; BODY body: u32 @ 12;
    }
    body Body 16 {
        TENSORS tensors: u32 @ 0; TABLE table: u32 @ 4; TREE tree: u32 @ 8; META meta: u32 @ 12;
    }
    tensor_desc TensorDesc 32 {
        SIZE_AT size: u16 @ 0; REF ref: u16 @ 2; CODE code: u8 @ 4; BITS bits: u8 @ 5; LANES lanes: u16 @ 6;
        NDIM ndim: u16 @ 8; NAME name: u16 @ 10; FLAGS flags: u16 @ 12; ZERO zero: u16 @ 14;
        DEVICE_TYPE device_type: i32 @ 16; DEVICE_ID device_id: i32 @ 20; OFFSET offset: u64 @ 24;
    }
    call_record Call 72 {
        KIND kind: u32 @ 0; FLAGS flags: u32 @ 4; CALL call: u64 @ 8; DEADLINE deadline: u64 @ 16;
        TOPIC topic: u32 @ 24; ARGS args: u16 @ 28; CHAIN chain: u16 @ 30; TOPIC_ID topic_id: u64 @ 32;
        TOKEN token: u8[16] @ 40; TEXTS texts: u32 @ 56; WINDOW window: u32 @ 60; OBJECT object: u64 @ 64;
    }
    bell_record BellRecord 128 {
        PARKED parked: u64 @ 0; BELL bell: u32 @ 64;
    }
    wait_area WaitArea 36864 {
        WORDS words: u64[65] @ 0; ACTIVE active: u64[86] @ 576; MEMBERS members: u64[4160] @ 1280;
    }
    group_area GroupArea 64 {
        HINT hint: u64 @ 0; START start: u64 @ 8; BASE base: u64 @ 16; NEXT next: u64 @ 24;
    }
    frame_head FrameHead 8 {
        LENGTH length: u32 @ 0; FDS fds: u16 @ 4; ZERO zero: u16 @ 6;
    }
}

/// Version of the control protocol.
pub const PROTOCOL: u32 = 1;
/// Version of the shared structures.
pub const LAYOUT: u32 = 15;
/// `BATON\0v1`, little-endian.
pub const MAGIC: u64 = 0x3176_004e_4f54_4142;
const _: () = assert!(matches!(&MAGIC.to_le_bytes(), b"BATON\0v1"));

/// Limits of the broker's tables.
pub mod limits {
    /// Session slots.
    pub const SESSIONS: u32 = 4096;
    /// Topic records.
    pub const TOPICS: u32 = 24_576;
    /// Lanes of one topic.
    pub const LANES: u32 = 4096;
    /// Groups of one topic.
    pub const GROUPS: u32 = 64;
    /// Members of one group.
    pub const MEMBERS: u16 = 4095;
    /// Sessions whose files one request may ask for.
    pub const PEERS: usize = FRAME_FDS;
    /// Segment records.
    pub const SEGMENTS: u32 = 65_536;
    /// Chunk records.
    pub const CHUNKS: u32 = 32_768;
    /// Storage indices of one chunk.
    pub const CHUNK_INDICES: u32 = 128;
    /// Storage indices.
    pub const STORAGES: u32 = CHUNKS * CHUNK_INDICES;
    /// Words of a bitmap of session slots.
    pub const BITMAP_WORDS: usize = SESSIONS as usize / 64;
    /// Storages that one message names.
    pub const REFS: usize = 65535;
    /// Tensors of one message.
    pub const TENSORS: usize = 65535;
    /// Bytes of a message's body.
    pub const BODY: usize = 64 << 20;
    /// Dimensions of a tensor.
    pub const NDIM: usize = 64;
    /// Streams of a session that are numbered, from 1.
    pub const STREAMS: u32 = 256;
    /// Depth of a topic.
    pub const DEPTH: u32 = 65536;
    /// Bytes of one control frame's JSON.
    pub const FRAME: usize = 4 << 20;
    /// Descriptors of one control frame.
    pub const FRAME_FDS: usize = 64;
}

/// Slot of the broker itself.
pub const BROKER_SLOT: u32 = 0;
/// Unit that lanes and files are aligned to.
pub const PAGE: u64 = 4096;
/// Alignment of every storage.
pub const ALIGNMENT: u64 = 256;

/// Roles of shared files.
pub mod role {
    /// Broker file.
    pub const BROKER: u32 = 1;
    /// Session file.
    pub const SESSION: u32 = 2;
    /// Bell file.
    pub const BELL: u32 = 3;
    /// Group file.
    pub const GROUP: u32 = 4;
}

/// Where the parts of the broker file are.
pub mod broker_file {
    /// Flag of its head: its broker was stopped for good, and no other one takes the instance over.
    pub const ENDED: u32 = 1;
    use super::*;
    /// How many sessions have records: those from this number on were never used, and have no pages.
    pub const SESSIONS_END: u64 = 0x40;
    /// The same of chunks.
    pub const CHUNKS_END: u64 = 0x44;
    /// The same of segments.
    pub const SEGMENTS_END: u64 = 0x48;
    /// The same of topics.
    pub const TOPICS_END: u64 = 0x4c;
    /// 4,096 SessionRecords.
    pub const SESSIONS: u64 = 0x1000;
    /// In a SessionRecord, the broker's own: 1 while an operator has ended the session, and its client may not
    /// know of it yet.
    pub const SESSION_EVICTED: u64 = 232;
    /// 65,536 SegmentRecords.
    pub const SEGMENTS: u64 = 0x200000;
    /// 32,768 ChunkRecords.
    pub const CHUNKS: u64 = 0x4000000;
    /// 24,576 TopicRecords.
    pub const TOPICS: u64 = 0x8000000;
    /// 24,576 FunctionRecords.
    pub const FUNCTIONS: u64 = 0xd4000000;
    /// Size of the file.
    pub const BYTES: u64 = 0xec000000;

    /// Where the record of a session is.
    pub const fn session(slot: u32) -> u64 {
        SESSIONS + slot as u64 * session_record::SIZE
    }

    /// Where the record of a chunk is.
    pub const fn chunk(number: u32) -> u64 {
        CHUNKS + number as u64 * chunk_record::SIZE
    }

    /// Where the record of a segment is.
    pub const fn segment(index: u32) -> u64 {
        SEGMENTS + index as u64 * segment_record::SIZE
    }

    /// Where the record of a topic is.
    pub const fn topic(index: u32) -> u64 {
        TOPICS + index as u64 * topic_record::SIZE
    }

    /// Where the record of the function is that a topic is.
    pub const fn function(topic_index: u32) -> u64 {
        FUNCTIONS + topic_index as u64 * function_record::SIZE
    }

    /// Where the record of a group of a topic is.
    pub const fn group(topic_index: u32, number: u32) -> u64 {
        topic(topic_index) + topic_record::GROUPS + number as u64 * group_record::SIZE
    }

    /// Where the record of a lane of a topic is.
    pub const fn lane(topic_index: u32, number: u32) -> u64 {
        topic(topic_index) + topic_record::LANES + number as u64 * lane_record::SIZE
    }

    const _: () = {
        assert!(session(limits::SESSIONS) <= SEGMENTS);
        assert!(segment(limits::SEGMENTS) <= CHUNKS);
        assert!(chunk(limits::CHUNKS) <= TOPICS);
        assert!(topic(limits::TOPICS) == FUNCTIONS);
        assert!(function(limits::TOPICS) == BYTES);
        assert!(topic_record::LANES + limits::LANES as u64 * lane_record::SIZE == topic_record::SIZE);
    };
}

/// Where the parts of a session file are.
pub mod session_file {
    /// In the head: 1 once this process allocates, recycles and counts up nothing more in the session, which is over.
    pub const LOST: u64 = 56;
    use super::*;
    /// When a fork of the process began, by CLOCK_MONOTONIC in nanoseconds; 0: none is under way.
    pub const FORKING: u64 = 0x88;
    /// The name of the session, for its receivers.
    pub const SENDER: u64 = 0x100;
    /// Bytes of that name.
    pub const SENDER_BYTES: usize = 64;
    /// Whether traces are written.
    pub const TRACE_ON: u64 = 0x1000;
    /// The page that processes register with a device's driver.
    pub const DEVICE_PAGE: u64 = 0x1000;
    /// A word for each stream: the last value that it has written.
    pub const STREAMS: u64 = 0x1800;
    /// A record for each reader: its number modulo their count.
    pub const READERS: u64 = 0x2000;
    /// The refcounts: a word for each storage index.
    pub const REFCOUNTS: u64 = 0x10000;
    /// The storage entries.
    pub const ENTRIES: u64 = 0x4000000;
    /// A ProviderRecord for each reader that provides a function.
    pub const PROVIDERS: u64 = 0x3000000;
    /// Trace texts.
    pub const TRACES: u64 = 0x10000000;
    /// Bytes of one, which ends with a zero unless it takes all of them.
    pub const TRACE_BYTES: usize = 64;
    /// Lanes, to the end.
    pub const LANES: u64 = 0x20000000;
    /// Size of the file.
    pub const BYTES: u64 = 0x40000000;
    /// Bytes of a refcount word.
    pub const WORD: u64 = 8;

    /// Where the record of a reader is.
    pub const fn reader(number: u64) -> u64 {
        READERS + number % ((REFCOUNTS - READERS) / reader_record::SIZE) * reader_record::SIZE
    }

    /// Where the record of a reader that provides a function is.
    pub const fn provider(number: u64) -> u64 {
        PROVIDERS + number % ((ENTRIES - PROVIDERS) / provider_record::SIZE) * provider_record::SIZE
    }

    const _: () = {
        assert!(REFCOUNTS + limits::STORAGES as u64 * WORD <= PROVIDERS);
        assert!(ENTRIES + limits::STORAGES as u64 * storage_entry::SIZE <= TRACES);
    };
}

/// The refcount word: sequence in the high 44 bits, count in the low 20.
pub mod refcount_word {
    /// Bits of the count.
    pub const COUNT_MASK: u64 = (1 << 20) - 1;
    /// Added by a take.
    pub const TAKE: u64 = (1 << 20) + 1;
    /// Added by a drop.
    pub const DROP: u64 = (1 << 20) - 1;
    /// A count at or above it is refused, so that no number of threads taking
    /// at once can carry into the sequence.
    pub const LIMIT: u64 = (1 << 20) - 1024;
}

/// Bits of a generation.
pub const GENERATION_MASK: u64 = (1 << 52) - 1;
/// The mark of a storage that its owner has not sent, named or exported yet.
pub const PRIVATE: u64 = 1 << 62;
/// The mark of a free test under way.
pub const RETIRING: u64 = 1 << 63;
/// Added to a stream's word by the broker when its session is over: it is larger than all values.
pub const STREAM_POISON: u64 = 1 << 62;
/// Begin of a spill storage: `BATSPILL`.
pub const SPILL_MAGIC: u64 = 0x4c4c_4950_5354_4142;
const _: () = assert!(matches!(&SPILL_MAGIC.to_le_bytes(), b"BATSPILL"));
/// A TensorDesc's `ref` without a storage.
pub const NO_REF: u16 = 0xffff;
/// Bit of a TensorDesc's flags: strides given.
pub const DESC_STRIDES: u16 = 1;
/// Bit of a TensorDesc's flags: read-only.
pub const DESC_READ_ONLY: u16 = 2;

/// Flag of a FunctionRecord: traces of errors stay in the process of the provider.
pub const NO_TRACES: u32 = 4;

/// Flags of a slot.
pub mod slot_flag {
    /// Receivers may write.
    pub const WRITABLE: u32 = 1;
    /// Refs and body stand in a storage.
    pub const SPILLED: u32 = 2;
    /// All sessions may write in place.
    pub const LIVE: u32 = 4;
    /// The bytes are written when a stream of the sender's has come to an Order.
    pub const ORDERED: u32 = 8;
    /// The slot is a Brief.
    pub const BRIEF: u32 = 16;
    /// Of a Brief: its tensor is read-only.
    pub const READ_ONLY: u32 = 32;
    /// An Agreed stands before the body.
    pub const AGREED: u32 = 64;
}

/// Bit of a TopicRecord's flags: a name that is not set.
pub const TOPIC_DELETED: u32 = 8;
/// Bit of a TopicRecord's flags: a newer revision of the name may be set on another host.
pub const TOPIC_STALE: u32 = 16;

/// Values of `state` in a TopicRecord and a LaneRecord.
pub mod state {
    /// A topic that may be sent to.
    pub const TOPIC_OPEN: u32 = 1;
    /// A session that was closed.
    pub const SESSION_CLOSED: u32 = 4;
    /// A lane whose writer is there.
    pub const LANE_LIVE: u32 = 1;
    /// A lane with nothing left in it.
    pub const LANE_CLOSED: u32 = 3;
}

/// Where the parts of the bell file are. Every session writes it.
pub mod bell_file {
    use super::*;
    /// A word for each processor: which session waited there last, and when.
    pub const WAITERS: u64 = 0x40;
    pub const MOST_WAITERS: u64 = 504;
    /// A BellRecord for each session slot.
    pub const RECORDS: u64 = 0x1000;
    /// A WaitArea for each topic.
    pub const WAITS: u64 = 0x100000;
    /// Size of the file.
    pub const BYTES: u64 = waits(limits::TOPICS);
    /// Wait sets of a topic: one whose sessions are all rung at each message, and one for each group.
    pub const SETS: u32 = 1 + limits::GROUPS;

    /// Where the bell of a session slot is.
    pub const fn record(slot: u32) -> u64 {
        RECORDS + slot as u64 * bell_record::SIZE
    }

    /// Where the wait sets of a topic are.
    pub const fn waits(topic: u32) -> u64 {
        WAITS + topic as u64 * wait_area::SIZE
    }

    /// Lanes in one word of the active ones; what stands above them counts how often lanes were cleared.
    pub const ACTIVE_LANES: u32 = 48;

    /// Where the members of a set are, in a topic's area.
    pub const fn members(set: u32) -> u64 {
        wait_area::MEMBERS + set as u64 * 8 * limits::BITMAP_WORDS as u64
    }

    const _: () = {
        assert!(record(limits::SESSIONS) <= WAITS);
        assert!(wait_area::WORDS + SETS as u64 * 8 <= wait_area::ACTIVE);
        assert!(wait_area::ACTIVE + 8 * limits::LANES.div_ceil(ACTIVE_LANES) as u64 <= wait_area::MEMBERS);
        assert!(members(SETS) <= wait_area::SIZE);
    };
}

/// Where the areas of a group file begin.
pub const GROUP_AREAS: u64 = 4096;
/// A start that promises nothing.
pub const NO_START: u64 = u64::MAX;
/// Default bytes of a slot for what describes a message.
pub const DEFAULT_DESCRIPTION: u32 = 1024;

/// An Arg of a call's record: where its parts are.
pub mod arg {
    /// What it is.
    pub const CODE: u64 = 0;
    /// Zero.
    pub const ZERO: u64 = 1;
    /// Bytes of its name.
    pub const NAME: u64 = 2;
    /// A number of 32 bits.
    pub const N: u64 = 4;
    /// A value of 64 bits.
    pub const VALUE: u64 = 8;
    /// Bytes of it.
    pub const SIZE: u64 = 16;
}

/// A link of a call's chain: where its parts are.
pub mod chain_link {
    /// The function's topic.
    pub const TOPIC_ID: u64 = 0;
    /// The slot of the provider's session.
    pub const SLOT: u64 = 8;
    /// Zero.
    pub const ZERO: u64 = 12;
    /// Bytes of it.
    pub const SIZE: u64 = 16;
}

/// States of a claim.
pub mod claim {
    /// No session's.
    pub const FREE: u8 = 0;
    /// A member works on it.
    pub const CLAIMED: u8 = 1;
    /// The group is finished with it.
    pub const DONE: u8 = 2;
    /// Of a call: the function runs.
    pub const BEGUN: u8 = 3;

    /// Packs a claim: number 50 bits, member 12, state 2.
    pub fn pack(number: u64, member: u16, state: u8) -> u64 {
        number << 14 | u64::from(member & 0xfff) << 2 | u64::from(state & 3)
    }

    /// Unpacks a claim.
    pub fn split(word: u64) -> (u64, u16, u8) {
        (word >> 14, (word >> 2) as u16 & 0xfff, word as u8 & 3)
    }

    /// Packs a hint: number 50 bits, version 14.
    pub fn pack_hint(number: u64, version: u16) -> u64 {
        number << 14 | u64::from(version & 0x3fff)
    }

    /// Unpacks a hint.
    pub fn split_hint(word: u64) -> (u64, u16) {
        (word >> 14, word as u16 & 0x3fff)
    }
}

/// Bytes of a lane, a multiple of [`PAGE`].
pub fn lane_bytes(slots: u32, stride: u32) -> u64 {
    (lane::SIZE + u64::from(slots) * u64::from(stride)).next_multiple_of(PAGE)
}

/// Bytes that one lane takes in a group file.
pub fn group_area_bytes(slots: u32) -> u64 {
    (group_area::SIZE + 8 * u64::from(slots)).next_multiple_of(64)
}

/// Bytes of a group file.
pub fn group_bytes(slots: u32) -> u64 {
    (GROUP_AREAS + u64::from(limits::LANES) * group_area_bytes(slots)).next_multiple_of(PAGE)
}
