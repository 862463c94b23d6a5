//! The crate against the golden vectors in `protocol/testdata`.

use baton::{Code, layout};
use serde_json::Value;

fn vectors(path: &str) -> Value {
    let path = format!("{}/../protocol/testdata/{path}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(&path).expect(&path)).expect(&path)
}

fn number(v: &Value) -> u64 {
    v.as_u64().or_else(|| v.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{v} is no number"))
}

#[test]
fn structures_lie_as_the_vectors_say() {
    let v = vectors("v1/layout.json");
    assert_eq!((number(&v["protocol"]), number(&v["layout"])), (layout::PROTOCOL.into(), layout::LAYOUT.into()));
    let listed = v["structs"].as_array().unwrap();
    let theirs = ["LeaseRecord"]; // the broker's alone
    for s in listed {
        let name = s["name"].as_str().unwrap();
        let Some(ours) = layout::STRUCTS.iter().find(|o| o.name == name) else {
            assert!(theirs.contains(&name), "{name} is not in the crate");
            continue;
        };
        assert_eq!(ours.size, number(&s["size"]), "{name}");
        for f in s["fields"].as_array().unwrap() {
            let field = f["name"].as_str().unwrap();
            if field == "head" {
                continue; // a structure that is listed by itself
            }
            let o = ours.fields.iter().find(|o| o.name == field).unwrap_or_else(|| panic!("{name}.{field} is missing"));
            assert_eq!(
                (o.kind, o.offset, o.width * o.count, o.count),
                (f["type"].as_str().unwrap(), number(&f["offset"]), number(&f["width"]), number(&f["count"])),
                "{name}.{field}"
            );
        }
        assert_eq!(ours.fields.len(), s["fields"].as_array().unwrap().len(), "{name} has other fields");
    }
    for o in layout::STRUCTS {
        assert!(listed.iter().any(|s| s["name"] == o.name), "{} is not in the vectors", o.name);
    }
}

#[test]
fn constants_are_those_of_the_vectors() {
    let v = vectors("v1/layout.json");
    let c = |name: &str| number(&v["constants"][name]);
    use layout::*;
    assert_eq!(broker_file::SESSION_EVICTED, number(&v["broker_alone"]["sessionEvicted"]));
    for (name, ours) in [
        ("Alignment", ALIGNMENT),
        ("BellBytes", bell_file::BYTES),
        ("BellRecords", bell_file::RECORDS),
        ("BellWaits", bell_file::WAITS),
        ("BitmapWords", limits::BITMAP_WORDS as u64),
        ("BrokerBytes", broker_file::BYTES),
        ("BrokerFunctions", broker_file::FUNCTIONS),
        ("CallArgSize", arg::SIZE),
        ("CallChainSize", chain_link::SIZE),
        ("ClaimBegun", claim::BEGUN.into()),
        ("BrokerChunks", broker_file::CHUNKS),
        ("BrokerChunksEnd", broker_file::CHUNKS_END),
        ("BrokerSegments", broker_file::SEGMENTS),
        ("BrokerSegmentsEnd", broker_file::SEGMENTS_END),
        ("BrokerSessions", broker_file::SESSIONS),
        ("BrokerSessionsEnd", broker_file::SESSIONS_END),
        ("BrokerSlot", BROKER_SLOT.into()),
        ("BrokerTopics", broker_file::TOPICS),
        ("BrokerTopicsEnd", broker_file::TOPICS_END),
        ("ChunkIndices", limits::CHUNK_INDICES.into()),
        ("ClaimClaimed", claim::CLAIMED.into()),
        ("ClaimDone", claim::DONE.into()),
        ("ClaimFree", claim::FREE.into()),
        ("CountLimit", refcount_word::LIMIT),
        ("CountMask", refcount_word::COUNT_MASK),
        ("DefaultDescription", DEFAULT_DESCRIPTION.into()),
        ("FunctionNoTraces", NO_TRACES.into()),
        ("DescReadOnly", DESC_READ_ONLY.into()),
        ("DescStrides", DESC_STRIDES.into()),
        ("Drop", refcount_word::DROP),
        ("GenerationMask", GENERATION_MASK),
        ("GroupAreas", GROUP_AREAS),
        ("LaneClosed", state::LANE_CLOSED.into()),
        ("Magic", MAGIC),
        ("MaxBody", limits::BODY as u64),
        ("MaxChunks", limits::CHUNKS.into()),
        ("MaxDepth", limits::DEPTH.into()),
        ("MaxGroups", limits::GROUPS.into()),
        ("MaxLanes", limits::LANES.into()),
        ("MaxMembers", limits::MEMBERS.into()),
        ("MaxNdim", limits::NDIM as u64),
        ("MaxPeers", limits::PEERS as u64),
        ("MaxRefs", limits::REFS as u64),
        ("MaxStreams", limits::STREAMS.into()),
        ("MaxSegments", limits::SEGMENTS.into()),
        ("MaxSessions", limits::SESSIONS.into()),
        ("MaxStorages", limits::STORAGES.into()),
        ("MaxTopics", limits::TOPICS.into()),
        ("NoRef", NO_REF.into()),
        ("NoStart", NO_START),
        ("PageBytes", PAGE),
        ("Retiring", RETIRING),
        ("Private", PRIVATE),
        ("RoleBell", role::BELL.into()),
        ("RoleBroker", role::BROKER.into()),
        ("RoleGroup", role::GROUP.into()),
        ("RoleSession", role::SESSION.into()),
        ("SessionBytes", session_file::BYTES),
        ("SessionDevicePage", session_file::DEVICE_PAGE),
        ("SessionEntries", session_file::ENTRIES),
        ("SessionLanes", session_file::LANES),
        ("SessionNameBytes", session_file::SENDER_BYTES as u64),
        ("SessionReaders", session_file::READERS),
        ("SessionProviders", session_file::PROVIDERS),
        ("SessionRefcounts", session_file::REFCOUNTS),
        ("SessionSender", session_file::SENDER),
        ("SessionStreams", session_file::STREAMS),
        ("SessionTraceOn", session_file::TRACE_ON),
        ("SessionTraces", session_file::TRACES),
        ("SlotAgreed", slot_flag::AGREED.into()),
        ("SlotLive", slot_flag::LIVE.into()),
        ("SlotOrdered", slot_flag::ORDERED.into()),
        ("SlotSpilled", slot_flag::SPILLED.into()),
        ("SlotWritable", slot_flag::WRITABLE.into()),
        ("SpillMagic", SPILL_MAGIC),
        ("StreamPoison", STREAM_POISON),
        ("Take", refcount_word::TAKE),
        ("TopicOpen", state::TOPIC_OPEN.into()),
        ("TopicStale", TOPIC_STALE.into()),
        ("WaitSets", bell_file::SETS.into()),
    ] {
        assert_eq!(ours, c(name), "{name}");
    }
}

#[test]
fn codes_are_those_of_the_vectors() {
    let v = vectors("errors.json");
    let listed: Vec<&str> = v["errors"].as_array().unwrap().iter().map(|e| e["code"].as_str().unwrap()).collect();
    for text in &listed {
        assert_eq!(Code::parse(text).map(Code::as_str), Some(*text));
    }
    assert_eq!(listed.len(), Code::ALL.len());
    for e in v["errors"].as_array().unwrap() {
        let code = Code::parse(e["code"].as_str().unwrap()).unwrap();
        assert_eq!(e["rust"], format!("Code::{code:?}"));
    }
}
