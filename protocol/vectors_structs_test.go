package protocol_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// structCase is one example of a structure. Fields has every field of the
// layout; Tail what follows them where the structure varies. Hex is the start
// of its Bytes bytes; the rest is zero.
type structCase struct {
	Name   string      `json:"name"`
	Fields fieldValues `json:"fields"`
	Tail   any         `json:"tail,omitempty"`
	Bytes  int         `json:"bytes"`
	Hex    string      `json:"hex"`
}

type structFile struct {
	Struct string       `json:"struct"`
	Cases  []structCase `json:"cases"`
}

func instance() (id [16]byte) {
	for i := range id {
		id[i] = byte(0xa0 + i)
	}
	return id
}

var host = func() string { id := instance(); return hex.EncodeToString(id[:]) }()

// example makes a case of a structure from the values of some of its fields.
func example(name, structName string, values fieldValues) structCase {
	s := structNamed(structName)
	b := make([]byte, s.Size)
	s.write(b, values)
	return exampleBytes(name, structName, b, nil)
}

func exampleBytes(name, structName string, b []byte, tail any) structCase {
	return structCase{Name: name, Fields: structNamed(structName).read(b), Tail: tail, Bytes: len(b),
		Hex: hex.EncodeToString(trimmed(b))}
}

// trimmed cuts zeros off the end, in words of 8 bytes.
func trimmed(b []byte) []byte {
	for len(b) > 8 && len(b)%8 == 0 && zero(b[len(b)-8:]) {
		b = b[:len(b)-8]
	}
	return b
}

func structFiles(t *testing.T) map[string]structFile {
	files := map[string]structFile{}
	add := func(structName string, cases ...structCase) {
		files["structs/"+snake(structName)+".json"] = structFile{structName, cases}
	}
	head := func(role, slot int, serial uint64, bytes int) fieldValues {
		return fieldValues{"magic": protocol.Magic, "layout": protocol.Layout, "role": role, "instance": instance(),
			"serial": serial, "slot": slot, "bytes": bytes}
	}
	add("FileHead",
		example("broker file", "FileHead", head(protocol.RoleBroker, 0, 1, protocol.BrokerBytes)),
		example("session file of slot 3", "FileHead", head(protocol.RoleSession, 3, 1<<60, protocol.SessionBytes)),
		example("bell file", "FileHead", head(protocol.RoleBell, 0, 1, protocol.BellBytes)),
		example("group file", "FileHead", head(protocol.RoleGroup, 0, 77, int(protocol.GroupBytes(16)))))
	secret := sha256.Sum256([]byte("secret"))
	add("SessionRecord",
		example("live python session", "SessionRecord", fieldValues{"serial": 12, "state": protocol.SessionLive, "pid": 4242,
			"start_time": 987654321, "uid": 1000, "language": protocol.LanguagePython, "secret_hash": [16]byte(secret[:16]),
			"connected_at": uint64(1700000000123456789), "pid_ns": uint64(4026531836), "name": "trainer-0", "namespace": "default"}),
		example("dead, all bits set", "SessionRecord", fieldValues{"serial": ^uint64(0), "state": protocol.SessionDead, "pid": 1<<32 - 1,
			"start_time": ^uint64(0), "uid": 1<<32 - 1, "name": strings.Repeat("n", 64), "namespace": strings.Repeat("s", 32)}),
		example("free", "SessionRecord", nil))
	add("ChunkRecord",
		example("attached to sessions 0, 3, 64 and 4095", "ChunkRecord", fieldValues{"serial": 41, "owner_serial": 12, "owner": 3, "segment": 7,
			"offset": 1 << 20, "bytes": 64 << 20, "segment_serial": 9, "epoch": 5,
			"attached_words": uint64(1<<63 | 3), "attached": append([]uint64{1<<0 | 1<<3, 1}, append(make([]uint64, 61), 1<<63)...)}),
		example("free", "ChunkRecord", nil))
	add("SegmentRecord",
		example("memfd", "SegmentRecord", fieldValues{"serial": 9, "bytes": 64 << 20, "kind": protocol.KindMemfd, "owner": 3, "owner_serial": 12,
			"state": protocol.SegmentGranted, "device_type": 1, "made_at": uint64(1700000000123456789)}),
		example("orphan on a GPU", "SegmentRecord", fieldValues{"serial": 10, "bytes": uint64(1) << 40, "kind": protocol.KindCUDA, "owner": 1023,
			"owner_serial": 13, "state": protocol.SegmentOrphan, "device_type": 2, "device_id": -1}))
	add("LeaseRecord",
		example("of one storage, claimed once", "LeaseRecord", fieldValues{"id": 5, "expires": uint64(123456789012345), "session": 12, "serial": 41,
			"generation": protocol.GenerationMask, "index": protocol.MaxStorages - 1, "flags": 1, "bundle": 4}))
	add("TopicRecord", topicCases()...)
	add("FunctionRecord",
		example("provided by two processes", "FunctionRecord", fieldValues{"topic_id": 33, "registration": 1, "providers": 2, "flags": protocol.FunctionIdempotent,
			"uid": 1000, "version": 2, "bytes": len(aDescription), "concurrency": 5, "made_at": uint64(1700000000123456789), "description": aDescription}),
		example("not registered yet", "FunctionRecord", fieldValues{"topic_id": 34}))
	add("Call", callCases(t)...)
	add("StorageEntry",
		example("in use", "StorageEntry", fieldValues{"offset": 1 << 20, "bytes": 4096, "generation": 6, "made_at": uint64(123456789012345)}),
		example("retiring", "StorageEntry", fieldValues{"offset": 1 << 20, "bytes": 4096, "generation": protocol.Retiring | protocol.GenerationMask}))
	add("Ref",
		example("first", "Ref", fieldValues{"serial": 1}),
		example("last", "Ref", fieldValues{"serial": ^uint64(0), "generation": protocol.GenerationMask, "index": protocol.MaxStorages - 1}))
	add("Order",
		example("first", "Order", fieldValues{"stream": 1, "ready": uint64(1)}),
		example("last", "Order", fieldValues{"stream": protocol.MaxStreams, "ready": protocol.StreamPoison - 1}))
	add("Agreed",
		example("in the first epoch", "Agreed", fieldValues{"revision": 17, "age": uint64(1500), "bucket": uint64(1764500000000000000)}),
		example("in the last epoch", "Agreed", fieldValues{"revision": uint64(1)<<48 - 1, "age": ^uint64(0), "bucket": ^uint64(0)}))
	add("FrameHead",
		example("two descriptors", "FrameHead", fieldValues{"length": 300, "fds": 2}),
		example("largest", "FrameHead", fieldValues{"length": protocol.MaxFrame, "fds": protocol.MaxFrameFDs}))
	add("BellRecord",
		example("parked, rung seven times", "BellRecord", fieldValues{"parked": 11, "bell": 7}))
	add("ReaderRecord",
		example("of the third reader", "ReaderRecord", fieldValues{"number": uint64(3), "taken": uint64(1000), "lost": uint64(12)}))
	add("ProviderRecord", providerExample())
	waits := make([]uint64, protocol.WaitSets*protocol.BitmapWords)
	waits[0], waits[2*protocol.BitmapWords-1] = 1<<3, 1<<63
	add("WaitArea",
		example("slot 3 waits, and slot 4095 in group 0", "WaitArea", fieldValues{
			"words": append([]uint64{1, 1 << 63}, make([]uint64, protocol.WaitSets-2)...), "members": waits}))
	add("GroupArea", groupCases()...)
	add("TensorDesc", descCases(t)...)
	add("Body", bodyCases(t)...)
	add("Spill", spillCases(t)...)
	add("Slot", slotCases(t)...)
	add("Brief",
		example("a tensor of 2 by 3", "Brief", fieldValues{"seq": uint64(45), "stamp": uint64(123456789012345), "flags": protocol.SlotBrief, "ndim": 2,
			"index": 300, "serial": uint64(7), "generation": uint64(9), "code": 2, "bits": 32, "lanes": 1, "extents": []uint32{2, 3, 0, 0}}),
		example("largest, read-only, writable in place", "Brief", fieldValues{"seq": uint64(1<<48 - 2), "stamp": ^uint64(0),
			"flags": protocol.SlotBrief | protocol.SlotWritable | protocol.SlotLive | protocol.SlotReadOnly, "ndim": protocol.BriefMaxNdim,
			"index": protocol.MaxStorages - 1, "serial": ^uint64(0), "generation": protocol.GenerationMask, "code": 255, "bits": 255, "lanes": 65535,
			"extents": []uint32{1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1}}))
	add("Lane", laneCase(t))
	return files
}

func snake(name string) string {
	var b strings.Builder
	for i, c := range name {
		if i > 0 && c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(c)))
	}
	return b.String()
}

func topicCases() []structCase {
	return []structCase{
		example("lossless, two groups, three lanes", "TopicRecord", fieldValues{"version": 19, "id": 33, "state": protocol.TopicOpen,
			"kind": protocol.TopicKindTopic, "flags": protocol.TopicLossless, "depth": 8, "slots": 16, "stride": 1088, "lanes_end": 4096, "groups_end": 64, "gone": 12, "last_left": "eval-2",
			"made_at": uint64(1700000000123456789), "linger": uint64(60_000_000_000),
			"readers": append([]uint64{1<<2 | 1<<63}, make([]uint64, protocol.BitmapWords-1)...),
			"name":    "ranks/0", "namespace": "default", "creator": "trainer-0",
			"groups": map[int]fieldValues{
				0:  {"id": 90, "members": 2, "flags": protocol.GroupAcknowledged, "name": "eval"},
				63: {"id": 91, "members": protocol.MaxMembers, "name": strings.Repeat("g", protocol.GroupNameBytes)},
			},
			"lanes": map[int]fieldValues{
				0:    {"serial": 12, "offset": protocol.SessionLanes, "slot": 3, "state": protocol.LaneLive, "incarnation": 12},
				1:    {"serial": 1, "offset": protocol.SessionLanes + 4096, "slot": 0, "state": protocol.LaneAdopted, "incarnation": 8},
				4095: {"serial": ^uint64(0), "offset": protocol.SessionBytes - 4096, "slot": 4095, "state": protocol.LaneClosed, "incarnation": ^uint64(0)},
			}}),
		example("private queue with redelivery, closed", "TopicRecord", fieldValues{"version": 2, "id": 34, "state": protocol.TopicClosed,
			"kind": protocol.TopicKindQueue, "flags": protocol.TopicLossless | protocol.TopicRedeliver | protocol.TopicPrivate, "depth": 64,
			"slots": 128, "stride": 1088, "groups_end": 1, "namespace": "team", "creator": "loader", "token": instance(),
			"groups": map[int]fieldValues{0: {"id": 92, "flags": protocol.GroupAcknowledged, "name": "queue"}}}),
		example("deleted name", "TopicRecord", fieldValues{"version": 1 << 50, "id": 35, "state": protocol.TopicClosed, "kind": protocol.TopicKindName,
			"flags": protocol.TopicDeleted, "depth": 1, "slots": 2, "stride": 1088, "name": strings.Repeat("n", protocol.MaxName), "namespace": "default"}),
		example("free", "TopicRecord", nil),
	}
}

func groupCases() []structCase {
	area := func(name string, hint, start uint64, claims ...uint64) structCase {
		b := make([]byte, protocol.GroupAreaBytes(uint32(len(claims))))
		structNamed("GroupArea").write(b, fieldValues{"hint": hint, "start": start})
		for i, c := range claims {
			putNumber(b[protocol.GroupClaims+8*i:protocol.GroupClaims+8*i+8], c)
		}
		return exampleBytes(name, "GroupArea", b, groupTail(b, groupSlots(len(b))))
	}
	return []structCase{
		area("new", protocol.HintWord(0, 0), protocol.NoStart, 0, 0),
		area("one done, one claimed, one free again", protocol.HintWord(7, 3), 5,
			protocol.ClaimWord(8, 0, protocol.ClaimFree), protocol.ClaimWord(5, 1, protocol.ClaimDone),
			protocol.ClaimWord(6, protocol.MaxMembers, protocol.ClaimClaimed), protocol.ClaimWord(7, 2, protocol.ClaimFree)),
		area("highest", protocol.HintWord(1<<50-1, 1<<14-1), 1<<50-1, protocol.ClaimWord(1<<50-1, protocol.MaxMembers, protocol.ClaimDone), 0),
	}
}

func groupTail(b []byte, slots int) any {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	hint, version := protocol.SplitHint(word(b, protocol.GroupHint))
	claims := []any{}
	for i := range slots {
		n, member, state := protocol.SplitClaim(word(b, protocol.GroupClaims+8*i))
		claims = append(claims, map[string]any{"number": number(n), "member": int(member), "state": int(state)})
	}
	return map[string]any{"hint": map[string]any{"number": number(hint), "version": int(version)}, "claims": claims}
}

func word(b []byte, at int) (n uint64) {
	for i := range 8 {
		if at+i < len(b) {
			n |= uint64(b[at+i]) << (8 * i)
		}
	}
	return n
}

// exampleTensors are the views that the vectors show.
func exampleTensors() map[string]protocol.Tensor {
	f32 := protocol.Tensor{Code: 2, Bits: 32, Lanes: 1, DeviceType: 1}
	plain, strided, readonly, scalar, empty, named, most := f32, f32, f32, f32, f32, f32, f32
	plain.Shape = []int64{1024, 1024}
	strided.Shape, strided.Strides, strided.Offset = []int64{4, 3}, []int64{-3, 1}, 36
	readonly.Shape, readonly.ReadOnly, readonly.Name, readonly.Ref = []int64{2}, true, "weights/actor/w", 65534
	scalar.Shape = []int64{}
	empty.Shape, empty.Ref = []int64{3, 0}, -1
	named.Shape, named.Name, named.DeviceType, named.DeviceID = []int64{1, 2, 3}, "größe~1x", 2, 7
	most.Offset, most.Code, most.Bits, most.Lanes = 1<<63, 255, 255, 65535
	for range protocol.MaxNdim {
		most.Shape = append(most.Shape, 1<<62)
		most.Strides = append(most.Strides, -1<<63)
	}
	return map[string]protocol.Tensor{"plain": plain, "strided": strided, "readonly": readonly, "scalar": scalar,
		"empty": empty, "named": named, "most": most}
}

func descCases(t *testing.T) []structCase {
	var out []structCase
	tensors := exampleTensors()
	for _, name := range []string{"plain", "strided", "readonly", "scalar", "empty", "named", "most"} {
		x := tensors[name]
		wire := appendBody(t, &protocol.Body{Tensors: []protocol.Tensor{x}})[protocol.BodySize:]
		out = append(out, exampleBytes(name, "TensorDesc", wire, tensorTail(&x)))
	}
	return out
}

func appendBody(t *testing.T, b *protocol.Body) []byte {
	t.Helper()
	wire, err := protocol.AppendBody(nil, b)
	require.NoError(t, err)
	return wire
}

func tensorTail(x *protocol.Tensor) any {
	out := map[string]any{"shape": dims(x.Shape), "strides": nil, "name": x.Name}
	if x.Strides != nil {
		out["strides"] = dims(x.Strides)
	}
	return out
}

func dims(list []int64) []any {
	out := []any{}
	for _, d := range list {
		out = append(out, strconv.FormatInt(d, 10))
	}
	return out
}

// tensorValue is a whole tensor as the vectors have it.
func tensorValue(x *protocol.Tensor) any {
	out := tensorTail(x).(map[string]any)
	for k, v := range map[string]any{"ref": x.Ref, "code": int(x.Code), "bits": int(x.Bits), "lanes": int(x.Lanes), "device_type": int(x.DeviceType),
		"device_id": int(x.DeviceID), "offset": strconv.FormatUint(x.Offset, 10), "read_only": x.ReadOnly} {
		out[k] = v
	}
	return out
}

func bodyValue(b *protocol.Body) any {
	tensors := []any{}
	for i := range b.Tensors {
		tensors = append(tensors, tensorValue(&b.Tensors[i]))
	}
	return map[string]any{"tensors": tensors, "tree": string(b.Tree), "meta": string(b.Meta)}
}

// exampleBodies are the messages that the vectors show.
func exampleBodies() map[string]*protocol.Body {
	x := exampleTensors()
	image, label, rest := x["plain"], x["readonly"], x["empty"]
	image.Name, label.Name, label.Ref, label.Offset, rest.Name = "0/image", "0/label", 1, 4096, "1"
	return map[string]*protocol.Body{
		"one tensor": {Tensors: []protocol.Tensor{x["plain"]}},
		"strided":    {Tensors: []protocol.Tensor{x["strided"]}},
		"bundle of three with tree and meta": {
			Tensors: []protocol.Tensor{image, label, rest},
			Tree:    []byte(`[{"image":{"$":"tensor","i":0},"label":{"$":"tensor","i":1}},{"$":"tensor","i":2},"ü"]`),
			Meta:    []byte(`{"epoch":3}`),
		},
		"no tensors": {Tensors: []protocol.Tensor{}, Tree: []byte(`"stop"`)},
		"nothing":    {Tensors: []protocol.Tensor{}},
	}
}

var bodyNames = []string{"one tensor", "strided", "bundle of three with tree and meta", "no tensors", "nothing"}

func bodyCases(t *testing.T) []structCase {
	var out []structCase
	for _, name := range bodyNames {
		b := exampleBodies()[name]
		out = append(out, exampleBytes(name, "Body", appendBody(t, b), bodyValue(b)))
	}
	return out
}

var exampleRefs = []protocol.Ref{
	{Serial: 41, Generation: 6, Index: 300},
	{Serial: 41, Generation: protocol.GenerationMask, Index: 301},
}

func refValues(refs []protocol.Ref) any {
	out := []any{}
	for _, r := range refs {
		out = append(out, map[string]any{"serial": strconv.FormatUint(r.Serial, 10),
			"generation": strconv.FormatUint(r.Generation, 10), "index": int(r.Index)})
	}
	return out
}

func messageTail(refs []protocol.Ref, b *protocol.Body) any {
	out := map[string]any{"refs": refValues(refs), "body": nil}
	if b != nil {
		out["body"] = bodyValue(b)
	}
	return out
}

func spillCases(t *testing.T) []structCase {
	var out []structCase
	for _, name := range bodyNames[:3] {
		b := exampleBodies()[name]
		refs := exampleRefs[:1]
		if len(b.Tensors) > 1 {
			refs = exampleRefs
		}
		wire, err := protocol.AppendSpill(nil, refs, appendBody(t, b))
		require.NoError(t, err)
		out = append(out, exampleBytes(name, "Spill", wire, messageTail(refs, b)))
	}
	return out
}

// slotBytes makes a slot of a message; body is nil for a spilled one.
func slotBytes(t *testing.T, seq uint64, flags, tensors int, bytes uint64, refs []protocol.Ref, body *protocol.Body) []byte {
	var wire []byte
	if body != nil {
		wire = appendBody(t, body)
	}
	b := make([]byte, protocol.SlotSize)
	structNamed("Slot").write(b, fieldValues{"seq": seq, "stamp": uint64(123456789012345), "flags": flags, "nref": len(refs),
		"tensors": tensors, "bytes": bytes, "body": len(wire)})
	return append(protocol.AppendRefs(b, refs), wire...)
}

func slotCases(t *testing.T) []structCase {
	bodies := exampleBodies()
	slot := func(name string, seq uint64, flags, tensors int, bytes uint64, refs []protocol.Ref, body *protocol.Body) structCase {
		return exampleBytes(name, "Slot", slotBytes(t, seq, flags, tensors, bytes, refs, body), messageTail(refs, body))
	}
	three := bodies[bodyNames[2]]
	return []structCase{
		slot("one tensor", 41, 0, 1, 4<<20, exampleRefs[:1], bodies["one tensor"]),
		slot("strided, writable", 42, protocol.SlotWritable, 1, 48, exampleRefs[1:], bodies["strided"]),
		slot("bundle of three with tree and meta", 43, 0, 3, 4<<20+8, exampleRefs, three),
		slot("spilled", 44, protocol.SlotSpilled, 3, 4<<20+8, exampleRefs[:1], nil),
		slot("live name", 1, protocol.SlotWritable|protocol.SlotLive, 1, 4<<20, exampleRefs[:1], bodies["one tensor"]),
		slot("no tensors", 1<<52-1, protocol.SlotWritable, 0, 0, nil, bodies["no tensors"]),
	}
}

// laneCase is a lane of two slots after its third message: slot 1 has it, slot 0
// has been emptied, but for its number, which is 0, as it was left.
func laneCase(t *testing.T) structCase {
	const slots, stride = 2, 256
	b := make([]byte, protocol.LaneBytes(slots, stride))
	structNamed("Lane").write(b, fieldValues{"topic_id": 33, "slots": slots, "stride": stride, "head": 3, "total": uint64(12288)})
	body := exampleBodies()["one tensor"]
	for i, seq := range []uint64{0, 3} {
		copy(b[protocol.LaneSlotsAt+i*stride:], slotBytes(t, seq, 0, 1, 4<<20, exampleRefs[i:i+1], body))
	}
	return exampleBytes("third message of depth one", "Lane", b, laneTail(b, body))
}

func laneTail(b []byte, body *protocol.Body) any {
	s := structNamed("Slot")
	out := []any{}
	for i := range 2 {
		at := protocol.LaneSlotsAt + i*256
		out = append(out, map[string]any{"fields": s.read(b[at:]), "tail": messageTail(exampleRefs[i:i+1], body)})
	}
	return map[string]any{"slots": out}
}

// refcountCase is one change of a refcount word, or a take that is undone and refused.
type refcountCase struct {
	Name     string `json:"name"`
	Op       string `json:"op"` // take or drop
	Before   string `json:"before"`
	After    string `json:"after"`
	Sequence string `json:"sequence"` // of after
	Count    int    `json:"count"`    // of after
	Refused  bool   `json:"refused"`  // before is at the limit: after is undone again
	Hex      string `json:"hex"`      // of after
}

type refcountFile struct {
	Struct string         `json:"struct"`
	Cases  []refcountCase `json:"cases"`
}

func refcountCases() refcountFile {
	out := refcountFile{Struct: "RefcountWord"}
	for _, c := range []struct {
		name   string
		op     string
		before uint64
	}{
		{"first take", "take", 0},
		{"last drop", "drop", protocol.Take},
		{"take of many", "take", 12345<<20 | 678},
		{"drop of many", "drop", 12345<<20 | 678},
		{"last take below the limit", "take", 9<<20 | (protocol.CountLimit - 1)},
		{"take at the limit", "take", 9<<20 | protocol.CountLimit},
		{"sequence wraps", "take", (1<<44-1)<<20 | 1},
	} {
		after, refused := c.before+protocol.Take, false
		if c.op == "drop" {
			after = c.before + protocol.Drop
		} else if c.before&protocol.CountMask >= protocol.CountLimit {
			after, refused = after+protocol.Drop, true
		}
		b := make([]byte, 8)
		putNumber(b, after)
		out.Cases = append(out.Cases, refcountCase{c.name, c.op, strconv.FormatUint(c.before, 10), strconv.FormatUint(after, 10),
			strconv.FormatUint(after>>protocol.CountBits, 10), int(after & protocol.CountMask), refused, hex.EncodeToString(b)})
	}
	return out
}
