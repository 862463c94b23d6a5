package protocol_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// messageCase is a request with its reply, or an event. The fds name the
// descriptors that travel with each, in order.
type messageCase struct {
	Name       string          `json:"name"`
	Request    json.RawMessage `json:"request,omitempty"`
	RequestFDs []string        `json:"request_fds,omitempty"`
	Reply      json.RawMessage `json:"reply,omitempty"`
	ReplyFDs   []string        `json:"reply_fds,omitempty"`
	Event      json.RawMessage `json:"event,omitempty"`
}

type messageFile struct {
	Op    string        `json:"op,omitempty"`
	Event string        `json:"event,omitempty"`
	Cases []messageCase `json:"cases"`
}

// empty is what an op without fields has.
type empty struct{}

// opTypes are the Go types of each op's request and reply.
var opTypes = map[string][2]any{
	protocol.OpHello:            {protocol.Hello{}, protocol.HelloReply{}},
	protocol.OpRestore:          {protocol.Restore{}, empty{}},
	protocol.OpRestored:         {protocol.Restored{}, protocol.HelloReply{}},
	protocol.OpGrant:            {protocol.Grant{}, protocol.GrantReply{}},
	protocol.OpOffer:            {protocol.Offer{}, empty{}},
	protocol.OpChunks:           {protocol.Chunks{}, protocol.ChunksReply{}},
	protocol.OpReturn:           {protocol.Return{}, empty{}},
	protocol.OpAttach:           {protocol.Attach{}, protocol.AttachReply{}},
	protocol.OpPeer:             {protocol.Peer{}, protocol.PeerReply{}},
	protocol.OpSegment:          {protocol.Segment{}, protocol.SegmentReply{}},
	protocol.OpCustody:          {protocol.Custody{}, protocol.CustodyReply{}},
	protocol.OpTopicOpen:        {protocol.TopicOpenRequest{}, protocol.TopicInfo{}},
	protocol.OpTopicWrite:       {protocol.TopicWrite{}, protocol.TopicWriteReply{}},
	protocol.OpTopicRead:        {protocol.TopicRead{}, protocol.TopicReadReply{}},
	protocol.OpTopicGroupFile:   {protocol.TopicGroupFile{}, empty{}},
	protocol.OpTopicLeave:       {protocol.TopicLeave{}, empty{}},
	protocol.OpTopicClose:       {protocol.TopicRef{}, empty{}},
	protocol.OpFunctionRegister: {protocol.FunctionRegister{}, protocol.FunctionRegistered{}},
	protocol.OpFunctionFate:     {protocol.FunctionFate{}, protocol.FateReply{}},
	protocol.OpFunctionRemove:   {protocol.FunctionByName{}, protocol.FunctionRemoved{}},
	protocol.OpNameSet:          {protocol.NameSet{}, protocol.NameSetReply{}},
	protocol.OpNameOpen:         {protocol.NameOpen{}, protocol.TopicInfo{}},
	protocol.OpNameDelete:       {protocol.NameRef{}, empty{}},
	protocol.OpLease:            {protocol.LeaseRequest{}, protocol.LeaseReply{}},
	protocol.OpLeaseClaim:       {protocol.LeaseRef{}, empty{}},
	protocol.OpLeaseRelease:     {protocol.LeaseRef{}, empty{}},
	protocol.OpHandleFetch:      {protocol.HandleFetch{}, protocol.HandleFetched{}},
	protocol.OpList:             {protocol.List{}, protocol.ListReply{}},
	protocol.OpStatus:           {empty{}, map[string]any{}},
	protocol.OpBye:              {protocol.Bye{}, protocol.ByeReply{}},
	protocol.OpStop:             {protocol.Stop{}, empty{}},
	protocol.OpReplace:          {protocol.Replace{}, protocol.ReplaceReply{}},
	protocol.OpReplaceFiles:     {protocol.ReplaceFiles{}, protocol.ReplaceFilesReply{}},
	protocol.OpReplaceReady:     {empty{}, protocol.ReplaceReadyReply{}},
	protocol.OpEvents:           {protocol.Events{}, protocol.EventsReply{}},
	protocol.OpEvict:            {protocol.Evict{}, protocol.EvictReply{}},
	protocol.OpPing:             {empty{}, protocol.PingReply{}},
	protocol.OpPurge:            {protocol.TopicByName{}, protocol.PurgeReply{}},
	protocol.OpTopicDelete:      {protocol.TopicByName{}, protocol.PurgeReply{}},
	protocol.OpLeaseRevoke:      {protocol.LeaseRef{}, protocol.RevokeReply{}},
	protocol.OpCollect:          {protocol.Collect{}, protocol.CollectReply{}},
	protocol.OpLimit:            {protocol.Limit{}, protocol.LimitReply{}},
	protocol.OpReclaimed:        {empty{}, empty{}},
}

// someEvents are what `events` answers.
var someEvents = protocol.EventsReply{Epoch: 77, Last: 43, Events: []protocol.Event{
	{Number: 42, At: time.Unix(1700000000, 5e8).UTC(), Level: "warn", Kind: "refused", Text: "refused",
		Details: json.RawMessage(`{"code":"Quota","op":"grant","name":"trainer","pid":4242}`), Times: 3, Until: pointer(time.Unix(1700000001, 0).UTC())},
	{Number: 43, At: time.Unix(1700000002, 0).UTC(), Level: "info", Kind: "broker", Text: "serving"},
}}

// eventTypes are the Go types of each event.
var eventTypes = map[string]any{
	protocol.EventTrim:    empty{},
	protocol.EventCollect: empty{},
	protocol.EventReclaim: empty{},
	protocol.EventClosing: empty{},
	protocol.EventStopped: empty{},
	protocol.EventRoom:    empty{},
	protocol.EventCustody: empty{},
	protocol.EventEvicted: empty{},
}

const exampleDevice = "cuda:GPU-5b8d1c1e-0f3a-4d52-9c6e-3a7f1e2d4c5b"

type exchange struct {
	name       string
	request    any
	requestFDs []string
	reply      any // a *protocol.Error is a refusal
	replyFDs   []string
}

func pointer[T any](v T) *T { return &v }

func exchanges() map[string][]exchange {
	const secret = "5ec8e75ec8e75ec8e75ec8e75ec8e75e"
	me := protocol.Client{Name: "trainer-0", Language: "go", Version: "0.1.0"}
	welcome := protocol.HelloReply{Protocol: protocol.Version, Layout: protocol.Layout, Features: []string{}, Instance: host,
		Version: "0.1.0", Slot: 3, Serial: 12, Secret: secret, Limits: protocol.Limits{SessionBytes: 0, MemoryBytes: 8 << 30}}
	resumed, waiting := welcome, welcome
	resumed.Resumed, waiting.Restore = true, true
	hello := protocol.Hello{Protocol: protocol.Version, Layout: protocol.Layout, Features: []string{protocol.FeatureCUDA}, Client: me, Namespace: "default", PID: 4242}
	again, other := hello, hello
	again.Resume = &protocol.Resume{Instance: host, Serial: 12, Secret: secret}
	other.Protocol = 2
	alive := hello
	alive.Alive = true
	topic := protocol.TopicRef{Topic: 5, ID: 33}
	info := protocol.TopicInfo{Topic: 5, ID: 33, Name: "batches", Kind: protocol.KindTopic, Depth: 8, Slots: 16, Stride: 1088, Overwrite: true,
		Description: 1024, Linger: 60}
	private, name := info, info
	private.Name, private.Token, private.Kind, private.Overwrite, private.Redeliver, private.Depth, private.Slots = "", "0a1b2c3d4e5f60718293a4b5c6d7e8f9", protocol.KindQueue, false, true, 64, 128
	name.Name, name.Kind, name.Depth, name.Slots = "weights/actor", protocol.KindName, 1, 2
	refs := []protocol.StorageRef{{Index: 300, Serial: 41, Generation: 6}}
	body, err := protocol.AppendBody(nil, exampleBodies()["one tensor"])
	if err != nil {
		panic(err)
	}
	far := protocol.Handle{Host: "ffeeddccbbaa99887766554433221100", Segment: 3, Serial: 41, Index: 300, Generation: 6, Offset: 4096, Bytes: 1024,
		DType: "float32", Shape: []int64{16}, ByteOffset: 64, Device: "cpu", Lease: pointer(uint64(7))}
	near := far
	near.Host, near.Segment, near.Serial, near.Index, near.Generation, near.Offset, near.ReadOnly, near.Lease = host, 5, 52, 640, 2, 0, true, pointer(uint64(8))
	welcomeFDs := []string{"broker file", "own session file", "bell file", "broker's session file"}
	refused := func(code protocol.Code, message, remedy string) *protocol.Error {
		return &protocol.Error{Code: code, Message: message, Remedy: remedy}
	}
	return map[string][]exchange{
		protocol.OpFunctionRegister: {
			{"a provider of four calls at a time", protocol.FunctionRegister{TopicRef: topic, Reader: 7, Description: aDescription, Concurrency: 4, Idempotent: true}, nil,
				protocol.FunctionRegistered{Registration: 1}, nil},
			{"one whose function stays listed for an hour after it", protocol.FunctionRegister{TopicRef: topic, Reader: 7, Description: aDescription, Concurrency: 1, Linger: 3600}, nil,
				protocol.FunctionRegistered{Registration: 2}, nil},
			{"another signature", protocol.FunctionRegister{TopicRef: topic, Reader: 7, Description: "{}"}, nil, refused(protocol.CodeConflict,
				"function vision/normalize is registered by worker (pid 4242) as {\"parameters\":[]}, and here as {}", "use another name or version, or override it"), nil},
		},
		protocol.OpFunctionFate: {
			{"a process that has ended", protocol.FunctionFate{TopicRef: topic, Member: 3}, nil, protocol.FateReply{PID: 4242, Name: "worker", Reason: "its process has ended"}, nil},
			{"one that lives", protocol.FunctionFate{TopicRef: topic, Member: 3}, nil, protocol.FateReply{PID: 4242, Name: "worker", Lives: true}, nil},
			{"one that lives, and had no memory for the reply", protocol.FunctionFate{TopicRef: topic, Member: 3, Lane: 2, Message: 7}, nil, protocol.FateReply{PID: 4242, Name: "worker", Lives: true, NoReply: true}, nil},
		},
		protocol.OpFunctionRemove: {{"all providers", protocol.FunctionByName{Name: "vision/normalize@1.2", Namespace: "default"}, nil, protocol.FunctionRemoved{Providers: 2}, nil}},
		protocol.OpHello: {
			{"new session", hello, []string{"pidfd"}, welcome, welcomeFDs},
			{"without pidfd", hello, nil, welcome, welcomeFDs},
			{"with the file that an exec unmaps", alive, []string{"pidfd", "memfd mapped by this program alone"}, welcome, welcomeFDs},
			{"resumed", again, nil, resumed, nil},
			{"broker wants restoring", again, nil, waiting, nil},
			{"other version", other, nil, refused(protocol.CodeVersion, "protocol 2 is not spoken here, only 1", "install the same version of client and broker").
				With("protocol", json.Number("1")), nil},
		},
		protocol.OpRestore: {{"all kinds of files", protocol.Restore{Items: []protocol.RestoreItem{{Role: protocol.RestoreBroker},
			{Role: protocol.RestoreSession, Serial: 12}, {Role: protocol.RestoreBell}, {Role: protocol.RestoreSegment, Serial: 9},
			{Role: protocol.RestoreGroup, Serial: 90}}}, []string{"broker file", "session file", "bell file", "segment", "group file"}, empty{}, nil}},
		protocol.OpRestored: {
			{"done", protocol.Restored{}, nil, resumed, nil},
			{"a reader that was not told that it is one", protocol.Restored{Unanswered: []protocol.Reading{
				{TopicRef: protocol.TopicRef{Topic: 3, ID: 77}, Reader: 5}}}, nil, resumed, nil},
			{"files mapped whose descriptors others keep", protocol.Restored{Sessions: []uint64{3, 9}, Segments: []uint64{10}}, nil, resumed, nil},
		},
		protocol.OpGrant: {
			{"one chunk", protocol.Grant{Bytes: 64 << 20, Chunks: 1}, nil, protocol.GrantReply{Segment: 7, SegmentSerial: 9, Bytes: 64 << 20,
				Chunks: []protocol.ChunkGrant{{Chunk: 2, Serial: 41}}}, []string{"segment"}},
			{"little left", protocol.Grant{Bytes: 64 << 20, Chunks: 1, Free: pointer(uint64(100 << 20))}, nil, refused(protocol.CodeOutOfMemory,
				"67108864 bytes more would leave the client's container less than the 67108864 that are kept free (104857600 are free)",
				"release tensors, or raise the limit of the client's container"), nil},
			{"on a device", protocol.Grant{Bytes: 64 << 20, Chunks: 1, Device: exampleDevice}, nil, protocol.GrantReply{Segment: 8, SegmentSerial: 43, Bytes: 64 << 20,
				Chunks: []protocol.ChunkGrant{{Chunk: 3, Serial: 44}}, DeviceID: 1}, nil},
			{"in huge pages", protocol.Grant{Bytes: 3 << 20, Chunks: 1, PageBytes: 2 << 20}, nil, protocol.GrantReply{Segment: 9, SegmentSerial: 45, Bytes: 4 << 20,
				Chunks: []protocol.ChunkGrant{{Chunk: 4, Serial: 46}}}, []string{"segment"}},
			{"quota reached", protocol.Grant{Bytes: 1 << 40, Chunks: 1}, nil, refused(protocol.CodeQuota,
				"a segment of 1099511627776 bytes is above the quota of 8589934592", "release tensors, or raise --memory"), nil},
			{"more than is needed", protocol.Grant{Bytes: 1 << 40, Chunks: 1, Fallback: true}, nil, refused(protocol.CodeQuota,
				"a segment of 1099511627776 bytes is above the quota of 8589934592", "release tensors, or raise --memory"), nil},
		},
		protocol.OpOffer: {
			{"a slab", protocol.Offer{Segment: 8, Serial: 43}, []string{"memory of the driver's"}, empty{}, nil},
			{"offered before", protocol.Offer{Segment: 8, Serial: 43}, []string{"memory of the driver's"}, refused(protocol.CodeConflict,
				"segment 8 has its memory", "offer each segment's memory once"), nil},
		},
		protocol.OpChunks: {{"two more", protocol.Chunks{Segment: 7, Count: 2}, nil,
			protocol.ChunksReply{Chunks: []protocol.ChunkGrant{{Chunk: 3, Serial: 42}, {Chunk: 4, Serial: 43}}}, nil}},
		protocol.OpReturn: {
			{"empty segment", protocol.Return{Segment: 7, Serial: 901}, nil, empty{}, nil},
			{"still held", protocol.Return{Segment: 7, Serial: 901}, nil, refused(protocol.CodeBusy, "a storage of segment 7 is held", "try again when it is released"), nil},
		},
		protocol.OpAttach: {
			{"live owner", protocol.Attach{Chunks: []protocol.AttachChunk{{Chunk: 2, Serial: 41}}}, nil,
				protocol.AttachReply{Chunks: []protocol.AttachAnswer{{Owner: 3, OwnerSerial: 12, Segment: 7, SegmentSerial: 9}}}, nil},
			{"with the files, one of them in custody, and a chunk of another grant", protocol.Attach{Chunks: []protocol.AttachChunk{
				{Chunk: 2, Serial: 41, File: true}, {Chunk: 4, Serial: 40, File: true}, {Chunk: 5, Serial: 43, File: true}}}, nil,
				protocol.AttachReply{Chunks: []protocol.AttachAnswer{{Owner: 3, OwnerSerial: 12, Segment: 7, SegmentSerial: 9, Bytes: 64 << 20, Custody: true},
					{Error: refused(protocol.CodeExpired, "chunk 4 with serial 40 is gone", "receive the message or get the name again")},
					{Owner: 4, OwnerSerial: 13, Segment: 8, SegmentSerial: 10, Bytes: 64 << 20}}}, []string{"segment", "segment"}},
			{"memory of a device, which has no file to map", protocol.Attach{Chunks: []protocol.AttachChunk{{Chunk: 3, Serial: 44, File: true}}}, nil,
				protocol.AttachReply{Chunks: []protocol.AttachAnswer{{Owner: 3, OwnerSerial: 12, Segment: 8, SegmentSerial: 43}}}, nil},
		},
		protocol.OpPeer: {{"one there, one over, one that is not back", protocol.Peer{Sessions: []protocol.PeerSession{{Slot: 3, Serial: 12}, {Slot: 4, Serial: 2}, {Slot: 5, Serial: 6}}}, nil,
			protocol.PeerReply{Sessions: []protocol.PeerAnswer{{},
				{Error: refused(protocol.CodeExpired, "session 2 of slot 4 is over and nothing of it is left", "look at the topic's members again")},
				{Error: refused(protocol.CodeBusy, "this broker was not handed pages of trainer-1 yet", "try again in a moment")}}}, []string{"session file"}}},
		protocol.OpCustody: {
			{"files to keep, and one that is over", protocol.Custody{}, nil, protocol.CustodyReply{
				Given: []protocol.RestoreItem{{Role: protocol.RestoreSession, Serial: 12}, {Role: protocol.RestoreSegment, Serial: 9}},
				Ended: []protocol.RestoreItem{{Role: protocol.RestoreSegment, Serial: 4}}}, []string{"session file", "segment"}},
			{"that is done", protocol.Custody{Kept: []protocol.RestoreItem{{Role: protocol.RestoreSession, Serial: 12}, {Role: protocol.RestoreSegment, Serial: 9}},
				Closed: []protocol.RestoreItem{{Role: protocol.RestoreSegment, Serial: 4}}}, nil, protocol.CustodyReply{Given: []protocol.RestoreItem{}, Ended: []protocol.RestoreItem{}}, nil},
		},
		protocol.OpSegment: {{"in custody", protocol.Segment{Segment: 7, Serial: 9}, nil, protocol.SegmentReply{Bytes: 64 << 20, Custody: true}, []string{"segment"}}, {"writable", protocol.Segment{Segment: 7, Serial: 9, Write: true}, nil, protocol.SegmentReply{Bytes: 64 << 20}, []string{"segment"}},
			{"on a device", protocol.Segment{Segment: 8, Serial: 43}, nil, protocol.SegmentReply{Bytes: 64 << 20, Device: exampleDevice, DeviceID: 1}, []string{"memory of the driver's"}}},
		protocol.OpTopicOpen: {
			{"defaults", protocol.TopicOpenRequest{Name: "batches", Kind: protocol.KindTopic, Create: true}, nil, info, nil},
			{"all options, private", protocol.TopicOpenRequest{Kind: protocol.KindQueue, Depth: pointer[uint32](64), Overwrite: pointer(false),
				Redeliver: pointer(true), Description: pointer[uint32](1024), Linger: pointer(0.5), Create: true}, nil, private, nil},
			{"by token", protocol.TopicOpenRequest{Token: private.Token, Kind: protocol.KindQueue}, nil, private, nil},
			{"differing", protocol.TopicOpenRequest{Name: "batches", Kind: protocol.KindTopic, Depth: pointer[uint32](4), Create: true}, nil,
				refused(protocol.CodeConflict, "topic batches has depth 8, not 4, made by trainer-0", "leave the option out, or use another name"), nil},
		},
		protocol.OpTopicWrite: {{"first lane", protocol.TopicWrite{TopicRef: topic, Offset: protocol.SessionLanes}, nil, protocol.TopicWriteReply{Lane: 0}, nil}},
		protocol.OpTopicRead: {
			{"by itself", protocol.TopicRead{TopicRef: topic}, nil, protocol.TopicReadReply{Reader: 70}, nil},
			{"in a group", protocol.TopicRead{TopicRef: topic, Group: pointer("eval"), Reader: 71}, nil,
				protocol.TopicReadReply{Reader: 71, Member: 1, Group: pointer[uint32](0), GroupID: 90}, []string{"group file"}},
			{"alone in a group", protocol.TopicRead{TopicRef: topic, Group: pointer("")}, nil,
				protocol.TopicReadReply{Reader: 72, Member: 1, Group: pointer[uint32](1), GroupID: 91}, []string{"group file"}},
		},
		protocol.OpTopicGroupFile: {{"first", protocol.TopicGroupFile{TopicRef: topic, Group: 0}, nil, empty{}, []string{"group file"}}},
		protocol.OpTopicLeave: {
			{"as a writer", protocol.TopicLeave{TopicRef: topic, Role: protocol.RoleNameWrite, Offset: 67108864}, nil, empty{}, nil},
			{"as a reader", protocol.TopicLeave{TopicRef: topic, Role: protocol.RoleNameRead, Reader: 71}, nil, empty{}, nil},
			{"for good", protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: 2}, nil, empty{}, nil},
		},
		protocol.OpTopicClose: {{"close", topic, nil, empty{}, nil}},
		protocol.OpNameSet: {
			{"revision", protocol.NameSet{Name: "weights/actor", Refs: refs, Bytes: 4 << 20, Tensors: 1, Body: body}, nil, protocol.NameSetReply{Revision: 7}, nil},
			{"live, ephemeral, spilled", protocol.NameSet{Name: "weights/live", Live: true, Ephemeral: true, Refs: refs, Spilled: true, Bytes: 4 << 20, Tensors: 300, Body: []byte{}}, nil,
				protocol.NameSetReply{Revision: 1}, nil},
			{"in the place of a revision that is no more", protocol.NameSet{Name: "weights/actor", Refs: refs, Bytes: 4 << 20, Tensors: 1, Body: body, Replaces: 6}, nil,
				refused(protocol.CodeConflict, "name weights/actor has revision 7 by now, and not 6", "get it anew"), nil},
		},
		protocol.OpNameOpen: {{"name", protocol.NameOpen{Name: "weights/actor", Opening: 3}, nil, name, nil}, {"in time", protocol.NameOpen{Name: "weights/actor", Opening: 4, Seconds: 2.7}, nil, name, nil}},
		protocol.OpNameDelete: {
			{"name", protocol.NameRef{Name: "weights/actor"}, nil, empty{}, nil},
			{"no such name", protocol.NameRef{Name: "weights/other"}, nil, refused(protocol.CodeNotFound, "no name weights/other", "see baton ls names"), nil},
		},
		protocol.OpLease: {
			{"for a time", protocol.LeaseRequest{Lease: 5, Refs: refs, Seconds: pointer(30.0)}, nil, protocol.LeaseReply{Lease: 5, ExpiresIn: 30}, nil},
			{"until the session ends, once", protocol.LeaseRequest{Refs: refs, Once: true}, nil, protocol.LeaseReply{Lease: 6}, nil},
		},
		protocol.OpLeaseClaim: {
			{"claim", protocol.LeaseRef{Lease: 5}, nil, empty{}, nil},
			{"too late", protocol.LeaseRef{Lease: 4}, nil, refused(protocol.CodeExpired, "lease 4 is over", "take a new handle"), nil},
		},
		protocol.OpLeaseRelease: {{"release", protocol.LeaseRef{Lease: 5}, nil, empty{}, nil}},
		protocol.OpHandleFetch: {
			{"of another host", protocol.HandleFetch{Handle: far, Seconds: 10}, nil, protocol.HandleFetched{Handle: near}, nil},
			{"the host is gone", protocol.HandleFetch{Handle: far}, nil, refused(protocol.CodeHostLost, "host "+far.Host+" has ended, or cannot be reached", "have it made again"), nil},
		},
		protocol.OpList: {{"second page", protocol.List{What: protocol.ListNames, Pattern: "weights/*", Cursor: "100", Limit: 100}, nil,
			protocol.ListReply{Rows: []json.RawMessage{json.RawMessage(`{"name":"weights/actor"}`)}, Cursor: "200"}, nil}},
		protocol.OpStatus: {{"status", empty{}, nil, map[string]any{"broker": map[string]any{"version": "0.1.0", "instance": host}}, nil}},
		protocol.OpBye: {
			{"nothing is held", protocol.Bye{}, nil, protocol.ByeReply{}, nil},
			{"the refcounts still count", protocol.Bye{}, nil, protocol.ByeReply{Held: true}, nil},
			{"the memory stays the client's", protocol.Bye{Keep: true}, nil, protocol.ByeReply{Held: true}, nil},
		},
		protocol.OpEvents: {{"since an event", protocol.Events{After: 41, Limit: 100}, nil, someEvents, nil}, {"or when there is one", protocol.Events{After: 41, Wait: 2.5}, nil, someEvents, nil}},
		protocol.OpEvict: {
			{"its process is gone", protocol.Evict{Serial: 9}, nil, protocol.EvictReply{Name: "trainer", PID: 4242, State: protocol.EvictedOver}, nil},
			{"its process holds", protocol.Evict{Serial: 7}, nil, protocol.EvictReply{Name: "trainer", PID: 4242, State: protocol.EvictedClosed, Held: 4096, Items: 2}, nil},
			{"its process is suspended", protocol.Evict{Serial: 8}, nil, protocol.EvictReply{Name: "loader", PID: 4243, State: protocol.EvictedUnheard, Held: 4096, Granted: 1 << 20, HeldOfOthers: 1024}, nil},
			{"killed", protocol.Evict{Serial: 6, Kill: true}, nil, protocol.EvictReply{Name: "loader", PID: 4244, State: protocol.EvictedOver, Killed: true}, nil},
			{"it is not back", protocol.Evict{Serial: 5}, nil, refused(protocol.CodeBusy, "session 5 (trainer) belongs to process 4242, which lives and is not back", "end its process"), nil},
		},
		protocol.OpPing: {
			{"serves", empty{}, nil, protocol.PingReply{Instance: host, Version: "0.1.0", PID: 4000, State: protocol.BrokerServes}, nil},
			{"takes over", empty{}, nil, protocol.PingReply{Instance: host, Version: "0.1.0", PID: 4000, State: protocol.BrokerTakingOver}, nil},
		},
		protocol.OpPurge: {{"a queue", protocol.TopicByName{Name: "work", Kind: protocol.KindQueue, Namespace: "default"}, nil,
			protocol.PurgeReply{Kind: protocol.KindQueue, Messages: 12, Openers: 2}, nil}},
		protocol.OpTopicDelete: {{"a topic", protocol.TopicByName{Name: "batches"}, nil, protocol.PurgeReply{Kind: protocol.KindTopic, Messages: 8}, nil}},
		protocol.OpLeaseRevoke: {{"revoke", protocol.LeaseRef{Lease: 5}, nil, protocol.RevokeReply{Maker: "trainer", Storages: 1}, nil}},
		protocol.OpReclaimed:   {{"reclaimed", empty{}, nil, empty{}, nil}},
		protocol.OpCollect: {
			{"collect", protocol.Collect{}, nil, protocol.CollectReply{Sessions: 3, Granted: 64 << 20}, nil},
			{"again", protocol.Collect{Again: true}, nil, protocol.CollectReply{Sessions: 3, Granted: 32 << 20}, nil},
		},
		protocol.OpLimit: {
			{"look", protocol.Limit{}, nil, protocol.LimitReply{Memory: 8 << 30, Granted: 64 << 20, Lanes: 4 << 20}, nil},
			{"change", protocol.Limit{Memory: pointer(uint64(20 << 30)), SessionMemory: pointer(uint64(0))}, nil, protocol.LimitReply{Memory: 20 << 30, Granted: 64 << 20, Lanes: 4 << 20}, nil},
		},
		protocol.OpReplace: {
			{"a broker that a client started", protocol.Replace{Protocol: protocol.Version, Layout: protocol.Layout, Version: "1.2.3", Files: 900}, nil,
				protocol.ReplaceReply{Instance: "00112233445566778899aabbccddeeff", Files: 70}, []string{"lock", "listener"}},
			{"another layout", protocol.Replace{Protocol: protocol.Version, Layout: protocol.Layout + 1, Version: "2.0.0", MemoryDir: "/var/lib/baton", Files: 900, Force: true}, nil,
				protocol.Errorf(protocol.CodeVersion, "stop the old broker first: its sessions end", "another layout"), nil},
		},
		protocol.OpReplaceFiles: {{"the first", protocol.ReplaceFiles{}, nil,
			protocol.ReplaceFilesReply{Items: []protocol.RestoreItem{{Role: protocol.RestoreBroker}, {Role: protocol.RestoreSession, Serial: 1}}}, []string{"broker", "session"}}},
		protocol.OpReplaceReady: {{"ready", empty{}, nil, protocol.ReplaceReadyReply{Events: someEvents}, nil}},
		protocol.OpStop: {
			{"for good", protocol.Stop{}, nil, empty{}, nil},
			{"with what stands in files", protocol.Stop{Discard: true}, nil, empty{}, nil},
			{"another user's", protocol.Stop{}, nil, protocol.Errorf(protocol.CodePermission, "ask the user who started it", "user 1001 may not stop this broker"), nil},
		},
	}
}

// flatObject gives the JSON of v with more keys in front.
func flatObject(t *testing.T, v any, members ...any) json.RawMessage {
	t.Helper()
	var out bytes.Buffer
	for i := 0; i < len(members); i += 2 {
		text, err := json.Marshal(members[i+1])
		require.NoError(t, err)
		out.WriteString(map[bool]string{true: "{", false: ","}[i == 0] + `"` + members[i].(string) + `":`)
		out.Write(text)
	}
	text, err := json.Marshal(v)
	require.NoError(t, err)
	var own map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &own))
	for i := 0; i < len(members); i += 2 {
		require.NotContains(t, own, members[i], "%T and its envelope both have it", v)
	}
	if string(text) != "{}" {
		out.WriteByte(',')
	}
	out.Write(text[1:])
	return out.Bytes()
}

func messageFiles(t *testing.T) map[string]messageFile {
	files := map[string]messageFile{}
	for op, list := range exchanges() {
		f := messageFile{Op: op}
		for i, x := range list {
			c := messageCase{Name: x.name, RequestFDs: x.requestFDs, ReplyFDs: x.replyFDs}
			c.Request = flatObject(t, x.request, "id", 7+i, "op", op)
			key := "ok"
			if _, refused := x.reply.(*protocol.Error); refused {
				key = "error"
			}
			c.Reply = flatObject(t, empty{}, "id", 7+i, key, x.reply)
			f.Cases = append(f.Cases, c)
		}
		files["messages/"+op+".json"] = f
	}
	for _, event := range []string{protocol.EventTrim, protocol.EventCollect, protocol.EventReclaim, protocol.EventClosing, protocol.EventStopped, protocol.EventRoom, protocol.EventCustody, protocol.EventEvicted} {
		files["messages/event."+event+".json"] = messageFile{Event: event, Cases: []messageCase{{Name: event, Event: flatObject(t, empty{}, "event", event)}}}
	}
	return files
}

// textCase is JSON that stands for something, as its exact text.
type textCase struct {
	Name  string   `json:"name"`
	Text  string   `json:"text"`
	Names []string `json:"names,omitempty"` // of the tensors, for trees
	Same  []string `json:"same,omitempty"`  // other texts that read as the same; written, they give Text
	FDs   int      `json:"fds,omitempty"`   // for frames
	Hex   string   `json:"hex,omitempty"`   // for frames: head and text
}

type textFile struct {
	Kind  string     `json:"kind"`
	Cases []textCase `json:"cases"`
}

func textFiles(t *testing.T) map[string]textFile {
	marshal := func(name string, v any) textCase {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		return textCase{Name: name, Text: string(text)}
	}
	h := goodHandle()
	h.Host = host
	strided, last, none := h, h, emptyHandle()
	strided.Shape, strided.Strides, strided.ByteOffset, strided.ReadOnly, strided.Lease = []int64{3, 2}, []int64{1, -3}, 12, true, pointer[uint64](5)
	last.Segment, last.Serial, last.Index, last.Generation = protocol.MaxSafeInt, protocol.MaxSafeInt, protocol.MaxStorages-1, protocol.GenerationMask
	last.Offset, last.Bytes, last.DType, last.Device = 0, protocol.MaxSafeInt, "float8_e4m3fn", "cuda:2147483647"
	last.Shape, last.Lease = []int64{protocol.MaxSafeInt}, pointer[uint64](protocol.MaxSafeInt)
	none.Host = host
	plain, deep := goodTuple(), goodTuple()
	plain.Host, plain.Tensors[0].Handle.Host = host, host
	plain.Value, plain.Meta, plain.Tensors[0].Name = nil, nil, ""
	deep.Host = host
	deep.Tensors = []protocol.TupleTensor{{Name: "0", Handle: h}, {Name: "1/w", Handle: strided}}
	deep.Tensors[1].Handle.Lease = nil
	deep.Value = json.RawMessage(`[{"$":"tensor","i":0},{"w":{"$":"tensor","i":1}}]`)
	from := plain
	from.Origin = goodOrigin()
	reference := goodReference()
	reference.Host, reference.Subject = host, protocol.NameSubject("default", host, reference.Topic)
	unknown := reference
	unknown.Origin = protocol.Origin{}
	elsewhere := marshal("name of many tensors", reference)
	elsewhere.Same = []string{elsewhere.Text[:len(elsewhere.Text)-1] + `,"later":[{}]}`}
	short := marshal("handle without spaces", h)
	short.Same = []string{" " + short.Text + "\n", short.Text[:len(short.Text)-1] + `,"later":[{}]}`}

	return map[string]textFile{
		"messages/handle.json":    {"handle", []textCase{short, marshal("strided, read-only, leased", strided), marshal("largest numbers", last), marshal("no elements, no storage", none)}},
		"messages/tuple.json":     {"tuple", []textCase{marshal("one tensor", plain), marshal("tree and meta", deep), marshal("machine and processes", from)}},
		"messages/reference.json": {"reference", []textCase{elsewhere, marshal("of a machine that is not told", unknown)}},
		"messages/tree.json":      {"tree", treeCases()},
		"messages/frame.json": {"frame", []textCase{
			frameCase(t, "request", `{"id":1,"op":"bye"}`, 0),
			frameCase(t, "reply with descriptors", `{"id":2,"ok":{}}`, 2),
			frameCase(t, "least", `{}`, 0),
		}},
	}
}

func frameCase(t *testing.T, name, text string, fds int) textCase {
	head, err := protocol.AppendFrameHead(nil, len(text), fds)
	require.NoError(t, err)
	return textCase{Name: name, Text: text, FDs: fds, Hex: hex.EncodeToString(append(head, text...))}
}

// treeCases are values whose text all languages write alike.
func treeCases() []textCase {
	return []textCase{
		{Name: "plain", Text: `{"a":null,"b":[true,false,-7,9007199254740991],"c":"text"}`, Same: []string{` {"a" : null,"b":[true,false,-7,9007199254740991],"c":"\u0074ext"} `}},
		{Name: "floats", Text: `[0.5,-0.0,1.0,0.1]`, Same: []string{`[5e-1,-0e0,1E0,0.10]`}},
		{Name: "not finite", Text: `[{"$":"float","v":"nan"},{"$":"float","v":"inf"},{"$":"float","v":"-inf"}]`},
		{Name: "large integers", Text: `[{"$":"int","v":"9007199254740992"},{"$":"int","v":"-9007199254740992"},{"$":"int","v":"18446744073709551616"}]`},
		{Name: "bytes", Text: `[{"$":"bytes","v":""},{"$":"bytes","v":"AAH/"},{"$":"bytes","v":"AA=="}]`, Same: []string{`[{"v":"","$":"bytes"},{"$":"bytes","v":"AAH\/"},{"$":"bytes","v":"AA=="}]`}},
		{Name: "text", Text: `"\"\\/\n\r\t\u0000\u001fü€😀` + "\u2028\x7f" + `"`, Same: []string{`"\"\\\/\n\r\t\u0000\u001F\u00fc\u20AC\ud83d\uDE00\u2028\u007f"`}},
		{Name: "tuple of tensors", Text: `{"$":"tuple","v":[{"$":"tensor","i":0},[{"$":"tensor","i":1}]]}`, Names: []string{"0", "1/0"},
			Same: []string{`{"$":"tuple","type":"train.state:Pair","fields":["x","rest"],"v":[{"$":"tensor","i":0},[{"$":"tensor","i":1}]]}`}},
		{Name: "names are escaped", Text: `{"a/b~c":[{"$":"tensor","i":0}]}`, Names: []string{"a~1b~0c/0"}},
		{Name: "empty key", Text: `{"":{"$":"tensor","i":0}}`, Names: []string{""}},
		{Name: "empty key above", Text: `{"":[{"$":"tensor","i":0}]}`, Names: []string{"/0"}},
		{Name: "dict with other keys", Text: `{"$":"dict","v":[[1,{"$":"tensor","i":0}],[null,2],[{"$":"tuple","v":[1,"a"]},3],["1",{"$":"tensor","i":1}]]}`, Names: []string{"1", "1"}},
		{Name: "dict with the key $", Text: `{"$":"dict","v":[["$",1]]}`},
		{Name: "dataclass", Text: `{"$":"dataclass","type":"train.state:State","v":{"step":3,"w":{"$":"tensor","i":0}}}`, Names: []string{"w"}},
		{Name: "one unnamed tensor", Text: ``, Names: []string{""}, Same: []string{`{"$":"tensor","i":0}`}},
		{Name: "flat dict", Text: ``, Names: []string{"a~1b", "w"}, Same: []string{`{"a/b":{"$":"tensor","i":0},"w":{"$":"tensor","i":1}}`}},
		{Name: "empty dict", Text: ``, Same: []string{`{}`, ` { } `}},
	}
}

func newOf(v any) reflect.Value { return reflect.New(reflect.TypeOf(v)) }
