package protocol

import "encoding/json"

// MaxFrame is the largest JSON of one control frame, MaxFrameFDs the most
// descriptors that travel with it.
const (
	MaxFrame    = 4 << 20
	MaxFrameFDs = 64
	FrameHead   = 8
)

// Ops of the control protocol.
const (
	OpHello            = "hello"
	OpRestore          = "restore"
	OpRestored         = "restored"
	OpGrant            = "grant"
	OpOffer            = "offer"
	OpChunks           = "chunks"
	OpReturn           = "return"
	OpAttach           = "attach"
	OpPeer             = "peer"
	OpSegment          = "segment"
	OpCustody          = "custody"
	OpTopicOpen        = "topic.open"
	OpTopicWrite       = "topic.write"
	OpTopicRead        = "topic.read"
	OpTopicGroupFile   = "topic.groupfile"
	OpTopicLeave       = "topic.leave"
	OpTopicClose       = "topic.close"
	OpFunctionRegister = "function.register"
	OpFunctionFate     = "function.fate"
	OpFunctionRemove   = "function.remove"
	OpNameSet          = "name.set"
	OpNameOpen         = "name.open"
	OpNameDelete       = "name.delete"
	OpLease            = "lease"
	OpLeaseClaim       = "lease.claim"
	OpLeaseRelease     = "lease.release"
	OpHandleFetch      = "handle.fetch"
	OpList             = "list"
	OpStatus           = "status"
	OpBye              = "bye"
	OpStop             = "stop"
	OpReplace          = "replace"
	OpReplaceFiles     = "replace.files"
	OpReplaceReady     = "replace.ready"
	OpEvict            = "evict"
	OpEvents           = "events"
	OpPing             = "ping"
	OpPurge            = "topic.purge"
	OpTopicDelete      = "topic.delete"
	OpLeaseRevoke      = "lease.revoke"
	OpCollect          = "collect"
	OpLimit            = "limit"
	OpReclaimed        = "reclaimed"
)

// Events from the broker.
const (
	EventTrim    = "trim"
	EventCollect = "collect"
	EventReclaim = "reclaim" // others lack memory: answered by OpReclaimed
	EventClosing = "closing" // this broker goes; another one may take over
	EventStopped = "stopped" // the broker ended for good, and the session with it
	EventRoom    = "room"
	EventCustody = "custody" // OpCustody has something to tell
	EventEvicted = "evicted" // why EventStopped comes: an operator ends this session, and not the broker
)

// Envelope is what every frame's JSON has in common. A request has ID and Op,
// a reply ID and OK or Error, an event Event.
type Envelope struct {
	ID    uint64          `json:"id,omitempty"`
	Op    string          `json:"op,omitempty"`
	OK    json.RawMessage `json:"ok,omitempty"`
	Error *Error          `json:"error,omitempty"`
	Event string          `json:"event,omitempty"`
}

// Client describes the program that connects; shown in listings.
type Client struct {
	Name     string `json:"name"`
	Language string `json:"language"`
	Version  string `json:"version"`
}

// Resume names the session that a reconnecting client had.
type Resume struct {
	Instance string `json:"instance"`
	Serial   uint64 `json:"serial"`
	Secret   string `json:"secret"`
}

// FeatureCUDA in a hello says that the client can use memory of CUDA devices.
const FeatureCUDA = "cuda"

// Hello opens a session. Descriptors: a pidfd of the client, optional, and with Alive
// the memfd that only this program maps for writing.
type Hello struct {
	Protocol  int      `json:"protocol"`
	Layout    int      `json:"layout"`
	Features  []string `json:"features,omitempty"`
	Client    Client   `json:"client"`
	Namespace string   `json:"namespace,omitempty"`
	PID       int      `json:"pid"`
	Resume    *Resume  `json:"resume,omitempty"`
	Alive     bool     `json:"alive,omitempty"`
}

// Limits that the broker sets for a session.
type Limits struct {
	SessionBytes uint64 `json:"session_bytes"` // quota of this session, 0: none but the whole
	MemoryBytes  uint64 `json:"memory_bytes"`  // quota of all together
}

// HelloReply opens the session. Descriptors, unless Resumed: broker file (read
// only), own session file, bell file, the broker's session file (read only). With Restore
// the broker waits for restore calls first.
type HelloReply struct {
	Protocol int      `json:"protocol"`
	Layout   int      `json:"layout"`
	Features []string `json:"features"`
	Instance string   `json:"instance"`
	Version  string   `json:"version"`
	Slot     uint32   `json:"slot"`
	Serial   uint64   `json:"serial"`
	Secret   string   `json:"secret,omitempty"`
	Resumed  bool     `json:"resumed,omitempty"`
	Restore  bool     `json:"restore,omitempty"`
	Limits   Limits   `json:"limits"`
}

// RestoreItem is one mapped file handed to a new broker; its descriptor travels
// with the request. Serial is the session's for session and bell files, the
// segment's for segments, the group's id for group files, 0 for the broker file.
type RestoreItem struct {
	Role   string `json:"role"`
	Serial uint64 `json:"serial"`
}

// Restore hands descriptors to a new broker, one for each item.
type Restore struct {
	Items []RestoreItem `json:"items"`
}

// Restored ends what a client hands over. Unanswered are its requests to read whose
// answers it has not taken over: a previous broker may have carried them out, and the
// client has nothing of them. Sessions and Segments are the serials of what it has mapped
// besides, without a descriptor to hand over.
type Restored struct {
	Unanswered []Reading `json:"unanswered,omitempty"`
	Sessions   []uint64  `json:"sessions,omitempty"`
	Segments   []uint64  `json:"segments,omitempty"`
}

// Reading is a request of topic.read.
type Reading struct {
	TopicRef
	Reader uint64 `json:"reader"`
}

// Roles of a RestoreItem.
const (
	RestoreBroker  = "broker"
	RestoreSession = "session"
	RestoreBell    = "bell"
	RestoreSegment = "segment"
	RestoreGroup   = "group"
)

// Grant asks for a segment to allocate in and index chunks for it. Free is how
// many bytes the client's own machine or container has left, where it can tell:
// its container pays for the pages, and may be smaller than the broker's. With Device
// ("cuda:GPU-…") the session makes its memory and offers it.
type Grant struct {
	Bytes  uint64  `json:"bytes"`
	Chunks int     `json:"chunks"`
	Free   *uint64 `json:"free,omitempty"`
	Device string  `json:"device,omitempty"`
	// Borrowed: the session has the memory already, and lends it as long as it lives.
	Borrowed bool `json:"borrowed,omitempty"`
	// PageBytes is the size of the huge pages to lie in; 0 for the machine's pages.
	PageBytes uint64 `json:"page_bytes,omitempty"`
	// Fallback: where there is no room the session asks for less, or once more, before its
	// program gets it as an error. Such a refusal is no news to an operator.
	Fallback bool `json:"fallback,omitempty"`
}

// ChunkGrant is one chunk of 128 storage indices.
type ChunkGrant struct {
	Chunk  uint32 `json:"chunk"`
	Serial uint64 `json:"serial"`
}

// Details of a refusal for want of memory, after which the client asks once more: how many handles in pickles were
// given up for it, and whether memory of other sessions came free by that, which are asked for it.
const (
	DetailGivenUp   = "given_up"
	DetailElsewhere = "elsewhere"
)

// GrantReply carries the segment, writable, as its one descriptor. The client
// reserves its pages before use. For a device it carries none, and the number by
// which this broker knows the device.
type GrantReply struct {
	Segment       uint32       `json:"segment"`
	SegmentSerial uint64       `json:"segment_serial"`
	Bytes         uint64       `json:"bytes"`
	Chunks        []ChunkGrant `json:"chunks"`
	DeviceID      int32        `json:"device_id,omitempty"`
}

// Offer gives the broker the memory of a segment on a device, as the driver's
// descriptor, or of one that is borrowed as a memfd with the handle in it.
type Offer struct {
	Segment uint32 `json:"segment"`
	Serial  uint64 `json:"serial"`
}

// Chunks asks for more indices over a segment that the session has.
type Chunks struct {
	Segment uint32 `json:"segment"`
	Count   int    `json:"count"`
}

// ChunksReply lists the new chunks.
type ChunksReply struct {
	Chunks []ChunkGrant `json:"chunks"`
}

// Return gives an empty segment back. Said twice it gives back once: the serial tells
// the segment from another one that has its place by then.
type Return struct {
	Segment uint32 `json:"segment"`
	Serial  uint64 `json:"serial"`
}

// Attach makes the owners of up to MaxPeers chunks look at this session's refcounts.
type Attach struct {
	Chunks []AttachChunk `json:"chunks"`
}

// AttachChunk names a grant of a chunk. With File the segment's descriptor is asked for too,
// for reading.
type AttachChunk struct {
	Chunk  uint32 `json:"chunk"`
	Serial uint64 `json:"serial"`
	File   bool   `json:"file,omitempty"`
}

// AttachReply says what there is of each chunk, in order. The descriptors are those of the
// answers with Bytes.
type AttachReply struct {
	Chunks []AttachAnswer `json:"chunks"`
}

// AttachAnswer tells where a chunk's entries and bytes are, or why this session is not
// attached to it: CodeExpired (it has been given back), CodeOutOfMemory (no room for the refcounts),
// CodeBusy (only a session that is not back has the file that was asked for). Bytes is the
// segment's size where its descriptor came along, which it does where it was asked for and the
// segment is memory of the machine; Custody is as in PeerAnswer.
type AttachAnswer struct {
	Error         *Error `json:"error,omitempty"`
	Owner         uint32 `json:"owner,omitempty"`
	OwnerSerial   uint64 `json:"owner_serial,omitempty"`
	Segment       uint32 `json:"segment,omitempty"`
	SegmentSerial uint64 `json:"segment_serial,omitempty"`
	Bytes         uint64 `json:"bytes,omitempty"`
	Custody       bool   `json:"custody,omitempty"`
}

// Peer asks for the session files of up to MaxPeers other sessions.
type Peer struct {
	Sessions []PeerSession `json:"sessions"`
}

// PeerSession names a session by its slot and serial.
type PeerSession struct {
	Slot   uint32 `json:"slot"`
	Serial uint64 `json:"serial"`
}

// MaxPeers is how many sessions one request of OpPeer may name, and how many chunks one of
// OpAttach: their files come with one frame.
const MaxPeers = MaxFrameFDs

// PeerReply says what there is of each session, in order. The descriptors are those of the
// answers without an error, read only.
type PeerReply struct {
	Sessions []PeerAnswer `json:"sessions"`
}

// PeerAnswer is about one session: nil where its file is there, else CodeExpired (it
// is over and nothing of it is left) or CodeBusy (only a session that is not back has the
// file). With Custody the client keeps the descriptor, to hand it to the next broker, until
// OpCustody says that the file is over; without, it closes it once the file is mapped.
type PeerAnswer struct {
	Error   *Error `json:"error,omitempty"`
	Custody bool   `json:"custody,omitempty"`
}

// Custody asks what the client is to keep and to close, and says what it has done of the
// answer before. It asks until it is told nothing more.
type Custody struct {
	Kept   []RestoreItem `json:"kept,omitempty"`
	Closed []RestoreItem `json:"closed,omitempty"`
}

// CustodyReply answers OpCustody: the descriptor of each file of Given comes with it, for the
// client to keep; those of Ended it closes.
type CustodyReply struct {
	Given []RestoreItem `json:"given"`
	Ended []RestoreItem `json:"ended"`
}

// Segment asks for a segment's descriptor.
type Segment struct {
	Segment uint32 `json:"segment"`
	Serial  uint64 `json:"serial"`
	Write   bool   `json:"write,omitempty"`
}

// SegmentReply carries the descriptor: a file to map, or, with Device, memory of
// that device's driver, or, with Borrowed, the handle by which the driver opens it.
// Custody is as in PeerAnswer; a descriptor of a device's driver always stays.
type SegmentReply struct {
	Bytes    uint64 `json:"bytes"`
	Custody  bool   `json:"custody,omitempty"`
	Device   string `json:"device,omitempty"`
	DeviceID int32  `json:"device_id,omitempty"`
	Borrowed bool   `json:"borrowed,omitempty"`
}

// Kinds of a topic on the wire.
const (
	KindTopic    = "topic"
	KindQueue    = "queue"
	KindName     = "name"
	KindFunction = "function"
)

// TopicOpenRequest opens or makes a topic or queue. Options left out take what
// exists, else the default; one that differs from the existing is Conflict.
type TopicOpenRequest struct {
	Name        string   `json:"name,omitempty"`
	Token       string   `json:"token,omitempty"`
	Kind        string   `json:"kind"`
	Depth       *uint32  `json:"depth,omitempty"`
	Overwrite   *bool    `json:"overwrite,omitempty"`
	Redeliver   *bool    `json:"redeliver,omitempty"`
	Description *uint32  `json:"description,omitempty"`
	Linger      *float64 `json:"linger,omitempty"`
	Create      bool     `json:"create"`
	// Opening is the number that this opening is to have among the session's, by which it
	// is found where it is asked for again, and left; 0: the broker chooses one.
	Opening uint64 `json:"opening,omitempty"`
}

// TopicInfo tells what a topic is.
type TopicInfo struct {
	Topic       uint32  `json:"topic"`
	ID          uint64  `json:"topic_id"`
	Name        string  `json:"name"`
	Token       string  `json:"token,omitempty"`
	Kind        string  `json:"kind"`
	Depth       uint32  `json:"depth"`
	Slots       uint32  `json:"slots"`
	Stride      uint32  `json:"stride"`
	Overwrite   bool    `json:"overwrite"`
	Redeliver   bool    `json:"redeliver"`
	Description uint32  `json:"description"`
	Linger      float64 `json:"linger"`
	Opening     uint64  `json:"opening"` // number of this opening among the session's
}

// TopicRef names an open topic. In the JSON the topic's number is topic_id: a
// request stands beside its envelope, whose id is the request's.
type TopicRef struct {
	Topic uint32 `json:"topic"`
	ID    uint64 `json:"topic_id"`
}

// TopicWrite joins as a writer, with a lane ready at Offset of the session's own file.
type TopicWrite struct {
	TopicRef
	Offset uint64 `json:"offset"`
}

// TopicRead joins as a reader; with Group as a member of it ("": alone in one).
// Reader is the number that it is to have among the session's readers of the topic, 0
// for one of the broker's choice: a session that asks again for one that is there gets it.
type TopicRead struct {
	TopicRef
	Group  *string `json:"group,omitempty"`
	Reader uint64  `json:"reader,omitempty"`
}

// TopicGroupFile asks for a group's file.
type TopicGroupFile struct {
	TopicRef
	Group uint32 `json:"group"`
}

// Roles that a session leaves.
const (
	RoleNameWrite = "write"
	RoleNameRead  = "read"
	RoleNameOpen  = "open"
)

// TopicLeave ends one role in a topic: as a writer the lane at Offset of the session's own
// file, as a reader or opening the one with the number. An opening needs no topic.
type TopicLeave struct {
	TopicRef
	Role    string `json:"role"`
	Offset  uint64 `json:"offset,omitempty"`
	Reader  uint64 `json:"reader,omitempty"`
	Opening uint64 `json:"opening,omitempty"`
}

// TopicWriteReply tells the session's own lane's number and incarnation.
type TopicWriteReply struct {
	Lane        uint32 `json:"lane"`
	Incarnation uint64 `json:"incarnation"`
}

// TopicReadReply tells the reader's number, and in a group the member's.
type TopicReadReply struct {
	Reader  uint64  `json:"reader"`
	Member  uint16  `json:"member,omitempty"`
	Group   *uint32 `json:"group,omitempty"` // its number in the topic's record
	GroupID uint64  `json:"group_id,omitempty"`
	// Counted: the ReaderRecord of the reader's number has memory, and may be written.
	Counted bool `json:"counted,omitempty"`
}

// StorageRef is a Ref as JSON.
type StorageRef struct {
	Index      uint32 `json:"index"`
	Serial     uint64 `json:"serial"`
	Generation uint64 `json:"generation"`
}

// NameSet publishes a revision or sets a live name.
type NameSet struct {
	Name string `json:"name"`
	// Setting is a number of this set, which the client chooses at random: by it a set is known that is asked for
	// again; 0: the broker chooses.
	Setting   uint64       `json:"setting,omitempty"`
	Live      bool         `json:"live,omitempty"`
	Ephemeral bool         `json:"ephemeral,omitempty"`
	Refs      []StorageRef `json:"refs"`
	Spilled   bool         `json:"spilled,omitempty"`
	Bytes     uint64       `json:"bytes"`
	Tensors   uint16       `json:"tensors"`
	Body      []byte       `json:"body"` // base64; empty when spilled
	// Replaces is the revision that must be set now, else the name stays and the error is
	// ErrConflict; 0: any, or none.
	Replaces uint64 `json:"replaces,omitempty"`
	// Seconds is how long other hosts may take to agree, in a namespace that spans several; 0: as the broker is set.
	Seconds float64 `json:"seconds,omitempty"`
}

// NameSetReply is the revision.
type NameSetReply struct {
	Revision uint64 `json:"revision"`
}

// NameRef names a name.
type NameRef struct {
	Name string `json:"name"`
	// Namespace is the name's where there is no session, whose it is else.
	Namespace string `json:"namespace,omitempty"`
	// Seconds of name.delete is as of a NameSet.
	Seconds float64 `json:"seconds,omitempty"`
}

// NameOpen opens a name. Opening is as for topic.open.
type NameOpen struct {
	Name    string `json:"name"`
	Opening uint64 `json:"opening,omitempty"`
	// Seconds is how long what other hosts say of the name is waited for, in a namespace that spans several; 0: as long
	// as the broker does.
	Seconds float64 `json:"seconds,omitempty"`
}

// LeaseRequest asks the broker to hold storages for a time. Lease is the number of the
// lease, which the client chooses at random, so that it is found where it is asked for
// again; 0: the broker chooses.
type LeaseRequest struct {
	Lease   uint64       `json:"lease,omitempty"`
	Refs    []StorageRef `json:"refs"`
	Seconds *float64     `json:"seconds"` // null: until the session ends
	Once    bool         `json:"once,omitempty"`
}

// LeaseReply names the lease.
type LeaseReply struct {
	Lease     uint64  `json:"lease"`
	ExpiresIn float64 `json:"expires_in,omitempty"`
}

// LeaseRef names a lease.
type LeaseRef struct {
	Lease uint64 `json:"lease"`
}

// HandleFetch asks for what a handle of another host names. Seconds is how long the broker may take; 0: DefaultFetch.
type HandleFetch struct {
	Handle  Handle  `json:"handle"`
	Seconds float64 `json:"seconds,omitempty"`
}

// DefaultFetch is how many seconds a fetch from another host may take where its request does not say.
const DefaultFetch = 30

// HandleFetched is a handle of this host for the same bytes, with a lease of its own. They are never written again.
type HandleFetched struct {
	Handle Handle `json:"handle"`
}

// Replace asks a living broker to hand everything over to the one that asks. It needs
// no session, and the broker's own user.
type Replace struct {
	Protocol  int    `json:"protocol"`
	Layout    int    `json:"layout"`
	Version   string `json:"version"`
	MemoryDir string `json:"memory_dir,omitempty"`
	Files     uint64 `json:"files"` // that it may still open
	// Force: of a broker that an operator runs, too.
	Force bool `json:"force,omitempty"`
}

// ReplaceReply comes with the lock of the runtime directory and the listening socket.
type ReplaceReply struct {
	Instance string `json:"instance"`
	Files    int    `json:"files"` // how many OpReplaceFiles gives
}

// ReplaceFiles asks for the next files.
type ReplaceFiles struct {
	From int `json:"from"`
}

// ReplaceFilesReply names the files that come with it, in order.
type ReplaceFilesReply struct {
	Items []RestoreItem `json:"items"`
}

// Stop ends the broker for good. It needs no session, and the broker's own user.
type Stop struct {
	Discard bool `json:"discard,omitempty"` // what stands in files too
}

// Bye ends a session. With Keep its refcounts and its memory stay the client's, which holds
// something there and may use the session again.
type Bye struct {
	Keep bool `json:"keep,omitempty"`
}

// ByeReply tells whether the refcounts of the session that was closed still count
// anything: then the session stays, closed, until it does not.
type ByeReply struct {
	Held bool `json:"held"`
}
