package protocol_test

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// fieldSpec is one field of a structure. Type is u8, u16, u32, u64, i32, i64,
// char, or the name of another structure; Count more than 1 is an array. An
// array of u8 stands as hex in the vectors, one of char as text, 64-bit numbers
// as decimal strings, an array of structures as an object of those not zero.
type fieldSpec struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	Offset int    `json:"offset"`
	Width  int    `json:"width"` // bytes, of all elements
	Count  int    `json:"count"`
}

// structSpec is a structure, or the fixed start of one whose length varies.
type structSpec struct {
	Name   string      `json:"name"`
	Size   int         `json:"size"`
	Align  int         `json:"align"`
	Varies bool        `json:"varies"`
	Fields []fieldSpec `json:"fields"`
}

func (s *structSpec) field(name, typ string, offset int, count ...int) *structSpec {
	f := fieldSpec{Name: name, Type: typ, Offset: offset, Count: 1}
	if len(count) > 0 {
		f.Count = count[0]
	}
	f.Width = f.Count * widthOf(typ)
	s.Fields = append(s.Fields, f)
	return s
}

func widthOf(typ string) int {
	switch typ {
	case "u8", "char":
		return 1
	case "u16":
		return 2
	case "u32", "i32":
		return 4
	case "u64", "i64":
		return 8
	}
	if s := structNamed(typ); s != nil {
		return s.Size
	}
	panic("unknown type " + typ)
}

var structs []*structSpec

func structNamed(name string) *structSpec {
	for _, s := range structs {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func fixed(name string, size int) *structSpec {
	s := &structSpec{Name: name, Size: size, Align: 8}
	structs = append(structs, s)
	return s
}

func varies(name string, size int) *structSpec {
	s := fixed(name, size)
	s.Varies = true
	return s
}

func init() {
	fixed("FileHead", protocol.HeadSize).
		field("magic", "u64", protocol.HeadMagic).
		field("layout", "u32", protocol.HeadLayout).
		field("role", "u32", protocol.HeadRole).
		field("instance", "u8", protocol.HeadInstance, 16).
		field("serial", "u64", protocol.HeadSerial).
		field("slot", "u32", protocol.HeadSlot).
		field("flags", "u32", protocol.HeadFlags).
		field("bytes", "u64", protocol.HeadBytes)
	fixed("SessionRecord", protocol.SessionRecordSize).
		field("serial", "u64", protocol.SessionSerial).
		field("state", "u32", protocol.SessionState).
		field("pid", "u32", protocol.SessionPID).
		field("start_time", "u64", protocol.SessionStartTime).
		field("uid", "u32", protocol.SessionUID).
		field("language", "u32", protocol.SessionLanguage).
		field("secret_hash", "u8", protocol.SessionSecretHash, 16).
		field("connected_at", "u64", protocol.SessionConnected).
		field("pid_ns", "u64", protocol.SessionPIDNS).
		field("name", "char", protocol.SessionName, protocol.SessionNameBytes).
		field("namespace", "char", protocol.SessionNamespace, protocol.SessionNamespaceBytes)
	fixed("ChunkRecord", protocol.ChunkRecordSize).
		field("serial", "u64", protocol.ChunkSerial).
		field("owner_serial", "u64", protocol.ChunkOwnerSerial).
		field("owner", "u32", protocol.ChunkOwner).
		field("segment", "u32", protocol.ChunkSegment).
		field("offset", "u64", protocol.ChunkOffset).
		field("bytes", "u64", protocol.ChunkBytes).
		field("segment_serial", "u64", protocol.ChunkSegmentSerial).
		field("epoch", "u64", protocol.ChunkEpoch).
		field("attached_words", "u64", protocol.ChunkAttachedWords).
		field("attached", "u64", protocol.ChunkAttached, protocol.BitmapWords)
	fixed("SegmentRecord", protocol.SegmentRecordSize).
		field("serial", "u64", protocol.SegmentSerial).
		field("bytes", "u64", protocol.SegmentBytes).
		field("kind", "u32", protocol.SegmentKind).
		field("owner", "u32", protocol.SegmentOwner).
		field("owner_serial", "u64", protocol.SegmentOwnerSerial).
		field("state", "u32", protocol.SegmentState).
		field("device_type", "i32", protocol.SegmentDeviceType).
		field("device_id", "i32", protocol.SegmentDeviceID).
		field("made_at", "u64", protocol.SegmentMadeAt)
	fixed("LeaseRecord", protocol.LeaseRecordSize).
		field("id", "u64", protocol.LeaseID).
		field("expires", "u64", protocol.LeaseExpires).
		field("session", "u64", protocol.LeaseSession).
		field("serial", "u64", protocol.LeaseSerial).
		field("generation", "u64", protocol.LeaseGeneration).
		field("index", "u32", protocol.LeaseIndex).
		field("flags", "u32", protocol.LeaseFlags).
		field("bundle", "u64", protocol.LeaseBundle)
	fixed("GroupRecord", protocol.GroupRecordSize).
		field("id", "u64", protocol.GroupID).
		field("members", "u32", protocol.GroupMembers).
		field("flags", "u32", protocol.GroupFlags).
		field("name", "char", protocol.GroupName, protocol.GroupNameBytes)
	fixed("LaneRecord", protocol.LaneRecordSize).
		field("serial", "u64", protocol.LaneRecordSerial).
		field("offset", "u64", protocol.LaneRecordOffset).
		field("slot", "u32", protocol.LaneRecordSlot).
		field("state", "u32", protocol.LaneRecordState).
		field("incarnation", "u64", protocol.LaneRecordIncarnation)
	fixed("TopicRecord", protocol.TopicRecordSize).
		field("version", "u64", protocol.TopicVersion).
		field("id", "u64", protocol.TopicID).
		field("state", "u32", protocol.TopicState).
		field("kind", "u32", protocol.TopicKind).
		field("flags", "u32", protocol.TopicFlags).
		field("depth", "u32", protocol.TopicDepth).
		field("slots", "u32", protocol.TopicSlots).
		field("stride", "u32", protocol.TopicStride).
		field("lanes_end", "u32", protocol.TopicLanesEnd).
		field("groups_end", "u32", protocol.TopicGroupsEnd).
		field("made_at", "u64", protocol.TopicMadeAt).
		field("linger", "u64", protocol.TopicLinger).
		field("readers", "u64", protocol.TopicReaders, protocol.BitmapWords).
		field("name", "char", protocol.TopicName, protocol.TopicNameBytes).
		field("namespace", "char", protocol.TopicNamespace, 64).
		field("creator", "char", protocol.TopicCreator, 64).
		field("token", "u8", protocol.TopicToken, 16).
		field("gone", "u64", protocol.TopicGone).
		field("last_left", "char", protocol.TopicLastLeft, 64).
		field("gone_bytes", "u64", protocol.TopicGoneBytes).
		field("groups", "GroupRecord", protocol.TopicGroups, protocol.MaxGroups).
		field("lanes", "LaneRecord", protocol.TopicLanes, protocol.MaxLanes)
	fixed("FunctionRecord", protocol.FunctionRecordSize).
		field("topic_id", "u64", protocol.FunctionTopicID).
		field("registration", "u32", protocol.FunctionRegistration).
		field("providers", "u32", protocol.FunctionProviders).
		field("flags", "u32", protocol.FunctionFlags).
		field("uid", "u32", protocol.FunctionUID).
		field("version", "u64", protocol.FunctionVersion).
		field("bytes", "u32", protocol.FunctionBytes).
		field("concurrency", "u32", protocol.FunctionConcurrency).
		field("made_at", "u64", protocol.FunctionMadeAt).
		field("description", "char", protocol.FunctionDescription, protocol.MaxFunctionDescription)
	fixed("StorageEntry", protocol.EntrySize).
		field("offset", "u64", protocol.EntryOffset).
		field("bytes", "u64", protocol.EntryBytes).
		field("generation", "u64", protocol.EntryGeneration).
		field("made_at", "u64", protocol.EntryMadeAt)
	varies("Lane", protocol.LaneSlotsAt).
		field("topic_id", "u64", protocol.LaneTopicID).
		field("slots", "u32", protocol.LaneSlots).
		field("stride", "u32", protocol.LaneStride).
		field("head", "u64", protocol.LaneHead).
		field("total", "u64", protocol.LaneTotal)
	fixed("ReaderRecord", protocol.ReaderRecordSize).
		field("number", "u64", protocol.ReaderNumber).
		field("taken", "u64", protocol.ReaderTaken).
		field("lost", "u64", protocol.ReaderLost)
	fixed("ProviderRecord", protocol.ProviderRecordSize).
		field("number", "u64", protocol.ProviderNumber).
		field("since", "u64", protocol.ProviderSince).
		field("failed", "u64", protocol.ProviderFailed).
		field("took", "u64", protocol.ProviderTook).
		field("counts", "u64", protocol.ProviderCounts, protocol.ProviderBuckets).
		field("begun", "u64", protocol.ProviderBegun, protocol.MaxBegun)
	varies("Slot", protocol.SlotSize).
		field("seq", "u64", protocol.SlotSeq).
		field("stamp", "u64", protocol.SlotStamp).
		field("flags", "u32", protocol.SlotFlags).
		field("nref", "u16", protocol.SlotNref).
		field("tensors", "u16", protocol.SlotTensors).
		field("bytes", "u64", protocol.SlotBytes).
		field("body", "u32", protocol.SlotBody).
		field("cancelled", "u32", protocol.SlotCancelled)
	fixed("Brief", protocol.BriefSize).
		field("seq", "u64", protocol.BriefSeq).
		field("stamp", "u64", protocol.BriefStamp).
		field("flags", "u16", protocol.BriefFlags).
		field("ndim", "u8", protocol.BriefNdim).
		field("zero", "u8", protocol.BriefZero).
		field("index", "u32", protocol.BriefIndex).
		field("serial", "u64", protocol.BriefSerial).
		field("generation", "u64", protocol.BriefGeneration).
		field("code", "u8", protocol.BriefCode).
		field("bits", "u8", protocol.BriefBits).
		field("lanes", "u16", protocol.BriefLanes).
		field("rest", "u32", protocol.BriefRest).
		field("extents", "u32", protocol.BriefExtents, protocol.BriefMaxNdim)
	fixed("Ref", protocol.RefSize).
		field("serial", "u64", protocol.RefSerial).
		field("generation", "u64", protocol.RefGeneration).
		field("index", "u32", protocol.RefIndex).
		field("zero", "u32", protocol.RefIndex+4)
	fixed("Order", protocol.OrderSize).
		field("stream", "u32", protocol.OrderStream).
		field("ready", "u64", protocol.OrderReady)
	fixed("Agreed", protocol.AgreedSize).
		field("revision", "u64", protocol.AgreedRevision).
		field("age", "u64", protocol.AgreedAge).
		field("bucket", "u64", protocol.AgreedBucket)
	varies("Spill", protocol.SpillSize).
		field("magic", "u64", protocol.SpillMagicAt).
		field("nref", "u32", protocol.SpillNref).
		field("body", "u32", protocol.SpillBody)
	varies("Body", protocol.BodySize).
		field("tensors", "u32", protocol.BodyTensors).
		field("table", "u32", protocol.BodyTable).
		field("tree", "u32", protocol.BodyTree).
		field("meta", "u32", protocol.BodyMeta)
	varies("Call", protocol.CallSize).
		field("kind", "u32", protocol.CallKind).
		field("flags", "u32", protocol.CallFlags).
		field("call", "u64", protocol.CallNumber).
		field("deadline", "u64", protocol.CallDeadline).
		field("topic", "u32", protocol.CallTopic).
		field("args", "u16", protocol.CallArgs).
		field("chain", "u16", protocol.CallChain).
		field("topic_id", "u64", protocol.CallTopicID).
		field("token", "u8", protocol.CallToken, 16).
		field("texts", "u32", protocol.CallTexts).
		field("window", "u32", protocol.CallWindow).
		field("object", "u64", protocol.CallObject)
	varies("TensorDesc", protocol.DescShape).
		field("size", "u16", protocol.DescSize).
		field("ref", "u16", protocol.DescRef).
		field("code", "u8", protocol.DescCode).
		field("bits", "u8", protocol.DescBits).
		field("lanes", "u16", protocol.DescLanes).
		field("ndim", "u16", protocol.DescNdim).
		field("name", "u16", protocol.DescName).
		field("flags", "u16", protocol.DescFlags).
		field("zero", "u16", protocol.DescFlags+2).
		field("device_type", "i32", protocol.DescDeviceType).
		field("device_id", "i32", protocol.DescDeviceID).
		field("offset", "u64", protocol.DescOffset)
	fixed("BellRecord", protocol.BellRecordSize).
		field("parked", "u64", protocol.BellParked).
		field("bell", "u32", protocol.BellWord)
	fixed("WaitArea", protocol.WaitAreaSize).
		field("words", "u64", protocol.WaitWords, protocol.WaitSets).
		field("active", "u64", protocol.WaitActive, protocol.ActiveWords).
		field("members", "u64", protocol.WaitMembers, protocol.WaitSets*protocol.BitmapWords)
	varies("GroupArea", protocol.GroupClaims).
		field("hint", "u64", protocol.GroupHint).
		field("start", "u64", protocol.GroupStart).
		field("base", "u64", protocol.GroupBase).
		field("next", "u64", protocol.GroupNext)
	frame := fixed("FrameHead", protocol.FrameHead).
		field("length", "u32", protocol.FrameLength).
		field("fds", "u16", protocol.FrameFDs).
		field("zero", "u16", protocol.FrameZero)
	frame.Align = 4
}

// part is one table or word of a shared file.
type part struct {
	Name   string `json:"name"`
	Type   string `json:"type"` // u32, u64, a structure, or a number of bytes that vary
	Offset int    `json:"offset"`
	Count  int    `json:"count"`
	Stride int    `json:"stride"`
}

type fileSpec struct {
	Name  string `json:"name"`
	Role  int    `json:"role"`
	Bytes int    `json:"bytes"` // 0: varies
	Parts []part `json:"parts"`
}

var sharedFiles = []fileSpec{
	{"broker", protocol.RoleBroker, protocol.BrokerBytes, []part{
		{"head", "FileHead", 0, 1, protocol.HeadSize},
		{"sessions_end", "u32", protocol.BrokerSessionsEnd, 1, 4},
		{"chunks_end", "u32", protocol.BrokerChunksEnd, 1, 4},
		{"segments_end", "u32", protocol.BrokerSegmentsEnd, 1, 4},
		{"topics_end", "u32", protocol.BrokerTopicsEnd, 1, 4},
		{"sessions", "SessionRecord", protocol.BrokerSessions, protocol.MaxSessions, protocol.SessionRecordSize},
		{"segments", "SegmentRecord", protocol.BrokerSegments, protocol.MaxSegments, protocol.SegmentRecordSize},
		{"leases", "LeaseRecord", protocol.BrokerLeases, protocol.MaxLeases, protocol.LeaseRecordSize},
		{"chunks", "ChunkRecord", protocol.BrokerChunks, protocol.MaxChunks, protocol.ChunkRecordSize},
		{"topics", "TopicRecord", protocol.BrokerTopics, protocol.MaxTopics, protocol.TopicRecordSize},
		{"functions", "FunctionRecord", protocol.BrokerFunctions, protocol.MaxTopics, protocol.FunctionRecordSize},
	}},
	{"session", protocol.RoleSession, protocol.SessionBytes, []part{
		{"head", "FileHead", 0, 1, protocol.HeadSize},
		{"forking", "u64", protocol.SessionForking, 1, 8},
		{"sender", "char", protocol.SessionSender, protocol.SessionNameBytes, 1},
		{"trace_on", "u32", protocol.SessionTraceOn, 1, 4},
		{"streams", "u64", protocol.SessionStreams, protocol.MaxStreams, 8},
		{"readers", "ReaderRecord", protocol.SessionReaders, protocol.MaxReaderRecords, protocol.ReaderRecordSize},
		{"refcounts", "u64", protocol.SessionRefcounts, protocol.MaxStorages, protocol.RefcountWordSize},
		{"providers", "ProviderRecord", protocol.SessionProviders, protocol.MaxProviderRecords, protocol.ProviderRecordSize},
		{"entries", "StorageEntry", protocol.SessionEntries, protocol.MaxStorages, protocol.EntrySize},
		{"traces", "char", protocol.SessionTraces, protocol.MaxStorages, protocol.TraceSize},
		{"lanes", "bytes", protocol.SessionLanes, protocol.SessionBytes - protocol.SessionLanes, 1},
	}},
	{"bell", protocol.RoleBell, protocol.BellBytes, []part{
		{"head", "FileHead", 0, 1, protocol.HeadSize},
		{"waiters", "u64", protocol.BellWaiters, protocol.MostWaiters, 8},
		{"bells", "BellRecord", protocol.BellRecords, protocol.MaxSessions, protocol.BellRecordSize},
		{"waits", "WaitArea", protocol.BellWaits, protocol.MaxTopics, protocol.WaitAreaSize},
	}},
	{"group", protocol.RoleGroup, 0, []part{
		{"head", "FileHead", 0, 1, protocol.HeadSize},
		{"areas", "GroupArea", protocol.GroupAreas, protocol.MaxLanes, 0},
	}},
}

// bitsSpec is a number that stands in some bits of a word.
type bitsSpec struct {
	Name  string `json:"name"`
	Shift int    `json:"shift"`
	Bits  int    `json:"bits"`
}

type wordSpec struct {
	Name  string     `json:"name"`
	Parts []bitsSpec `json:"parts"`
}

var words = []wordSpec{
	{"RefcountWord", []bitsSpec{{"sequence", protocol.CountBits, 64 - protocol.CountBits}, {"count", 0, protocol.CountBits}}},
	{"ClaimWord", []bitsSpec{{"number", 14, 50}, {"member", 2, 12}, {"state", 0, 2}}},
	{"HintWord", []bitsSpec{{"number", 14, 50}, {"version", 0, 14}}},
	{"ActiveWord", []bitsSpec{{"turn", protocol.ActiveLanes, 64 - protocol.ActiveLanes}, {"lanes", 0, protocol.ActiveLanes}}},
	{"BegunWord", []bitsSpec{{"lane", 52, 12}, {"message", 44, 8}, {"time", 0, 44}}},
	{"Generation", []bitsSpec{{"generation", 0, 52}, {"private", 62, 1}, {"retiring", 63, 1}}},
}

type layoutFile struct {
	Protocol  int               `json:"protocol"`
	Layout    int               `json:"layout"`
	Constants map[string]string `json:"constants"` // decimal
	Files     []fileSpec        `json:"files"`
	Words     []wordSpec        `json:"words"`
	Structs   []*structSpec     `json:"structs"`
	// BrokerAlone is where the parts stand that clients do not read.
	BrokerAlone map[string]string `json:"broker_alone"`
}

func currentLayout(t *testing.T) layoutFile {
	return layoutFile{protocol.Version, protocol.Layout, constants(t, "layout.go", "messages.go", "handle.go", "device.go", "tuple.go", "names.go", "value.go", "body.go", "refs.go", "json.go"),
		sharedFiles, words, structs, brokerAlone(t)}
}

// constants evaluates every exported number in these source files, so that
// none can be added without standing in the vectors.
func constants(t *testing.T, files ...string) map[string]string {
	t.Helper()
	return numbers(t, ast.IsExported, files...)
}

// numbers evaluates the constants in source files that are whole numbers.
func numbers(t *testing.T, wanted func(name string) bool, files ...string) map[string]string {
	t.Helper()
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range files {
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		var decls []ast.Decl
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				decls = append(decls, d)
			}
		}
		f.Decls, f.Imports = decls, nil
		parsed = append(parsed, f)
	}
	pkg, err := (&types.Config{}).Check("protocol", set, parsed, nil)
	require.NoError(t, err)
	out := map[string]string{}
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if ok && wanted(name) && c.Val().Kind() == constant.Int {
			out[name] = c.Val().ExactString()
		}
	}
	return out
}
