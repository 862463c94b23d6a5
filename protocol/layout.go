package protocol

import "math/bits"

// Versions of this build. Version is the control protocol's; Layout is that of
// the shared structures, standing in each file head and in hello. The vectors know
// the shape that each number stood for: a test fails while one stands for two.
const (
	Version = 1
	Layout  = 15
)

// Sizes that are part of the layout.
const (
	MaxSessions = 4096
	MaxSegments = 65536
	MaxTopics   = 24576
	MaxGroups   = 64   // per topic
	MaxMembers  = 4095 // per group
	MaxLanes    = 4096 // per topic
	MaxLeases   = 262144

	ChunkIndices = 128
	MaxChunks    = 32768
	MaxStorages  = MaxChunks * ChunkIndices

	BitmapWords = MaxSessions / 64

	// BrokerSlot is the session slot of the broker itself.
	BrokerSlot = 0

	// PageBytes is the unit that lanes and files are aligned to.
	PageBytes = 4096
	// Alignment of every storage, so that each consumer may use it uncopied
	// (JAX copies below 64; 256 covers GPU coalescing as well).
	Alignment = 256
)

// FileHead begins every shared file but a segment.
const (
	HeadMagic    = 0
	HeadLayout   = 8
	HeadRole     = 12
	HeadInstance = 16
	HeadSerial   = 32
	HeadSlot     = 40
	HeadFlags    = 44
	HeadBytes    = 48
	HeadSize     = 64

	// HeadEnded is a flag of the broker file: its broker was stopped for good, and no
	// other one takes the instance over.
	HeadEnded uint32 = 1
	// HeadCleared is a flag of a session file: a broker has ended the session while its
	// refcounts counted something, and emptied it.
	HeadCleared uint32 = 1

	// Magic is the ASCII "BATON\0v1" as a little-endian word.
	Magic uint64 = 0x3176004e4f544142
)

// Roles of shared files.
const (
	RoleBroker  = 1
	RoleSession = 2
	RoleBell    = 3
	RoleGroup   = 4
)

// Broker file.
const (
	// Records from these numbers on were never used, and have no pages: they are not looked
	// at. Behind the file's head, u32 each.
	BrokerSessionsEnd = 0x40
	BrokerChunksEnd   = 0x44
	BrokerSegmentsEnd = 0x48
	BrokerTopicsEnd   = 0x4c

	BrokerSessions  = 0x1000
	BrokerSegments  = 0x200000
	BrokerLeases    = 0x1000000
	BrokerChunks    = 0x4000000
	BrokerTopics    = 0x8000000
	BrokerFunctions = 0xd4000000
	BrokerBytes     = 0xec000000
)

// SessionRecord in the broker file.
const (
	SessionSerial     = 0
	SessionState      = 8
	SessionPID        = 12
	SessionStartTime  = 16
	SessionUID        = 24
	SessionLanguage   = 28
	SessionSecretHash = 32
	SessionConnected  = 48
	SessionPIDNS      = 56
	SessionName       = 64
	SessionNamespace  = 128
	SessionRecordSize = 256

	SessionNameBytes      = 64
	SessionNamespaceBytes = 64
)

// States of a session.
const (
	SessionLive         = 1
	SessionDisconnected = 2
	SessionDead         = 3
	SessionClosed       = 4 // it said bye, and its refcounts still count
)

// Languages of a session's client.
const (
	LanguageUnknown = 0
	LanguageGo      = 1
	LanguageRust    = 2
	LanguageC       = 3
	LanguagePython  = 4
)

// ChunkRecord in the broker file.
const (
	ChunkSerial        = 0
	ChunkOwnerSerial   = 8
	ChunkOwner         = 16
	ChunkSegment       = 20
	ChunkOffset        = 24
	ChunkBytes         = 32
	ChunkSegmentSerial = 40
	ChunkEpoch         = 48
	ChunkAttachedWords = 56 // bit w: the word w of attached is not 0
	ChunkAttached      = 64
	ChunkRecordSize    = 1024
)

// SegmentRecord in the broker file.
const (
	SegmentSerial      = 0
	SegmentBytes       = 8
	SegmentKind        = 16
	SegmentOwner       = 20
	SegmentOwnerSerial = 24
	SegmentState       = 32
	SegmentDeviceType  = 36
	SegmentDeviceID    = 40
	SegmentMadeAt      = 48
	SegmentRecordSize  = 64
)

// Kinds and states of a segment.
const (
	KindMemfd      = 1
	KindFile       = 2
	KindHugePages  = 3
	KindCUDA       = 4
	KindCUDALegacy = 5

	SegmentGranted = 1
	SegmentOrphan  = 2
)

// LeaseRecord in the broker file.
const (
	LeaseID         = 0
	LeaseExpires    = 8  // ns, CLOCK_MONOTONIC; 0: with its session
	LeaseSession    = 16 // serial of the session that made it
	LeaseSerial     = 24 // of the chunk
	LeaseGeneration = 32
	LeaseIndex      = 40
	LeaseFlags      = 44 // 1: claimed once
	LeaseBundle     = 48 // leases made by one call share it
	LeaseRecordSize = 64
)

// TopicRecord in the broker file.
const (
	TopicVersion    = 0 // low half: changes of lanes; high half: of readers and groups
	TopicID         = 8
	TopicState      = 16
	TopicKind       = 20
	TopicFlags      = 24
	TopicDepth      = 28
	TopicSlots      = 32
	TopicStride     = 36
	TopicLanesEnd   = 40 // lanes from this number on are free
	TopicGroupsEnd  = 44 // and groups
	TopicMadeAt     = 48
	TopicLinger     = 56
	TopicReaders    = 64 // bit n: session slot n reads the topic
	TopicName       = 576
	TopicNamespace  = 832
	TopicCreator    = 896
	TopicToken      = 960
	TopicGone       = 1024 // messages that were sent in lanes that are no more
	TopicLastLeft   = 1032 // name of the session that left last
	TopicGoneBytes  = 1096 // as gone, the bytes of their tensors
	TopicGroups     = 4096
	TopicLanes      = 8192
	TopicRecordSize = 139264

	TopicNameBytes = 256
)

// States, kinds and flags of a topic.
const (
	TopicOpen   = 1
	TopicClosed = 2

	TopicKindTopic    = 1
	TopicKindQueue    = 2
	TopicKindName     = 3
	TopicKindFunction = 4

	TopicLossless  = 1
	TopicRedeliver = 2
	TopicPrivate   = 4
	TopicDeleted   = 8
	TopicStale     = 16 // a name: a newer revision may be set on another host
)

// FunctionRecord in the broker file, of a topic of kind function.
const (
	FunctionTopicID      = 0
	FunctionRegistration = 8
	FunctionProviders    = 12
	FunctionFlags        = 16
	FunctionUID          = 20
	FunctionVersion      = 24 // a seqlock of what follows
	FunctionBytes        = 32
	FunctionConcurrency  = 36
	FunctionMadeAt       = 40
	FunctionDescription  = 64
	FunctionRecordSize   = 16384

	MaxFunctionDescription = FunctionRecordSize - FunctionDescription

	FunctionIdempotent = 1
	FunctionExclusive  = 2
	FunctionNoTraces   = 4 // of all functions of a broker: traces stay in the provider's process
)

// GroupRecord and LaneRecord in a topic.
const (
	GroupID         = 0
	GroupMembers    = 8
	GroupFlags      = 12
	GroupName       = 16
	GroupRecordSize = 64
	GroupNameBytes  = 40

	GroupAcknowledged = 1

	LaneRecordSerial      = 0
	LaneRecordOffset      = 8
	LaneRecordSlot        = 16
	LaneRecordState       = 20
	LaneRecordIncarnation = 24
	LaneRecordSize        = 32

	LaneLive    = 1
	LaneAdopted = 2
	LaneClosed  = 3
)

// Session file.
const (
	SessionForking   = 0x88  // ns, CLOCK_MONOTONIC: when a fork began; 0: none is under way
	SessionSender    = 0x100 // char[64]: its name, for sessions that receive from it
	SessionTraceOn   = 0x1000
	SessionStreams   = 0x1800
	SessionReaders   = 0x2000 // a ReaderRecord for each reader, its number modulo their count
	SessionRefcounts = 0x10000
	// A ProviderRecord for each reader that provides a function, its number modulo their count.
	SessionProviders = 0x3000000
	SessionEntries   = 0x4000000
	SessionTraces    = 0x10000000
	SessionLanes     = 0x20000000
	SessionBytes     = 0x40000000

	RefcountWordSize = 8
	TraceSize        = 64

	// SessionDevicePage is the page that processes register with a device's driver,
	// so that streams write and wait for the words in it.
	SessionDevicePage = 0x1000
	// MaxStreams is how many streams of a session are numbered, from 1.
	MaxStreams = 256
	// StreamPoison is added to a word by the broker when the session is over: it is
	// at least what any stream waits for, and the value below it is the last one
	// that the stream came to.
	StreamPoison uint64 = 1 << 62
)

// ReaderRecord in a session file: what one reader has received and lost, for listings.
const (
	ReaderNumber     = 0 // of the reader among the session's; 0: of none
	ReaderTaken      = 8
	ReaderLost       = 16
	ReaderRecordSize = 32
	// MaxReaderRecords is how many readers of a session are counted.
	MaxReaderRecords = (SessionRefcounts - SessionReaders) / ReaderRecordSize
)

// ReaderRecordAt is where the record of a reader stands in its session's file.
func ReaderRecordAt(number uint64) uint64 {
	return SessionReaders + number%MaxReaderRecords*ReaderRecordSize
}

// ProviderRecord in a session file: what one provider of a function says of its calls, for
// listings, and for callers whose calls it had when it ended.
const (
	ProviderNumber     = 0  // of the reader among the session's; 0: of none
	ProviderSince      = 8  // ns, CLOCK_REALTIME
	ProviderFailed     = 16 // calls that ended by an error
	ProviderTook       = 24 // ns, of all calls
	ProviderCounts     = 64 // calls, by how long they ran
	ProviderBegun      = 2048
	ProviderRecordSize = 4096

	// ProviderBuckets is how many counts there are: four for each power of two of nanoseconds.
	ProviderBuckets = (ProviderBegun - ProviderCounts) / 8
	// MaxBegun is how many calls that run are noted, with the time at which they began.
	MaxBegun = (ProviderRecordSize - ProviderBegun) / 8
	// MaxProviderRecords is how many providers of a session are counted.
	MaxProviderRecords = (SessionEntries - SessionProviders) / ProviderRecordSize
)

// Refcount word: sequence in the high 44 bits, count in the low 20.
const (
	CountBits        = 20
	CountMask uint64 = 1<<CountBits - 1
	Take      uint64 = 1<<CountBits + 1
	Drop      uint64 = 1<<CountBits - 1
	// CountLimit is the count at or above which a take is undone and refused,
	// so that no number of threads taking at once can carry into the sequence.
	CountLimit uint64 = 1<<CountBits - 1024
)

// StorageEntry in a session file.
const (
	EntryOffset     = 0
	EntryBytes      = 8
	EntryGeneration = 16
	EntryMadeAt     = 24
	EntrySize       = 32

	GenerationMask uint64 = 1<<52 - 1
	// Private says that the storage's owner has not sent, named or exported it yet.
	Private  uint64 = 1 << 62
	Retiring uint64 = 1 << 63
)

// Lane in a session file.
const (
	LaneTopicID = 0
	LaneSlots   = 8
	LaneStride  = 12
	LaneHead    = 64
	LaneTotal   = 72 // bytes of the tensors of all messages so far
	LaneSlotsAt = 128
)

// Slot of a lane.
const (
	SlotSeq       = 0
	SlotStamp     = 8
	SlotFlags     = 16
	SlotNref      = 20
	SlotTensors   = 22
	SlotBytes     = 24
	SlotBody      = 32
	SlotCancelled = 36 // u32, of a call: the caller wants it no more
	SlotSize      = 40 // of the head; refs and body follow: one ref shares its line

	SlotWritable = 1
	SlotSpilled  = 2
	SlotLive     = 4
	SlotOrdered  = 8  // an Order stands between refs and body
	SlotBrief    = 16 // the slot is a Brief
	SlotReadOnly = 32 // of a Brief: its tensor is read-only
	SlotAgreed   = 64 // an Agreed stands before the body
)

// Brief is a slot of one line: a message of one tensor that is compact, has no name,
// and begins with its storage in the machine's memory, with nothing beside it.
const (
	BriefSeq        = SlotSeq
	BriefStamp      = SlotStamp
	BriefFlags      = SlotFlags // u16
	BriefNdim       = 18        // u8
	BriefZero       = 19
	BriefIndex      = 20
	BriefSerial     = 24
	BriefGeneration = 32
	BriefCode       = 40
	BriefBits       = 41
	BriefLanes      = 42
	BriefRest       = 44 // zero
	BriefExtents    = 48
	BriefSize       = 64

	BriefMaxNdim = 4 // extents of 32 bits
)

// Order says when the bytes of a message are written: when the sender's stream has
// come to a value.
const (
	OrderStream = 0 // u32: number of the word in the sender's session file, from 1
	OrderReady  = 8 // u64: the value
	OrderSize   = 16
)

// Agreed is what hosts have agreed of a revision of a name that several have. It stands behind refs and Order.
const (
	AgreedRevision = 0  // u64: its number on all of them
	AgreedAge      = 8  // u64: how old it was when it was published here, ns
	AgreedBucket   = 16 // u64: where it was agreed; for the broker
	AgreedSize     = 24
)

// Ref, spill storage, body, tensor description.
const (
	RefSerial     = 0
	RefGeneration = 8
	RefIndex      = 16
	RefSize       = 24

	SpillMagicAt        = 0
	SpillNref           = 8
	SpillBody           = 12
	SpillSize           = 16
	SpillMagic   uint64 = 0x4c4c495053544142

	BodyTensors = 0
	BodyTable   = 4
	BodyTree    = 8
	BodyMeta    = 12
	BodySize    = 16

	DescSize       = 0
	DescRef        = 2
	DescCode       = 4
	DescBits       = 5
	DescLanes      = 6
	DescNdim       = 8
	DescName       = 10
	DescFlags      = 12
	DescDeviceType = 16
	DescDeviceID   = 20
	DescOffset     = 24
	DescShape      = 32

	DescStrides  = 1
	DescReadOnly = 2
	NoRef        = 0xffff
	MaxNdim      = 64
	// MaxRefs bounds the storages that one message names.
	MaxRefs = 65535
	// MaxBody bounds what a receiver copies for one message.
	MaxBody = 64 << 20
)

// Bell file: one for the instance. Every session writes it, and nothing but when a process
// looks again depends on it.
const (
	BellWaiters    = 0x40 // u64 for each processor: which session waited there last, and when
	MostWaiters    = 504
	BellRecords    = 0x1000
	BellParked     = 0  // u64
	BellWord       = 64 // u32
	BellRecordSize = 128

	// The wait sets of a topic: set 0, whose sessions are all rung at each message, and
	// one for each group, of which one session is rung.
	BellWaits = 0x100000
	WaitSets  = 1 + MaxGroups
	WaitWords = 0 // u64 for each set; bit w: the word w of the set may not be 0
	// Which lanes have sent of late: bits 0 to 47 of a word are lanes, those above count how
	// often lanes were cleared in it.
	WaitActive   = 576
	WaitMembers  = 1280
	WaitAreaSize = 0x9000
	BellBytes    = BellWaits + MaxTopics*WaitAreaSize
)

// Words of the active lanes.
const (
	ActiveLanes = 48 // in one word
	ActiveWords = (MaxLanes + ActiveLanes - 1) / ActiveLanes
)

// Group file.
const (
	GroupAreas         = 4096
	GroupHint          = 0
	GroupStart         = 8
	GroupBase          = 16
	GroupNext          = 24
	GroupClaims        = 64
	NoStart     uint64 = 1<<64 - 1

	ClaimFree    = 0
	ClaimClaimed = 1
	ClaimDone    = 2
	ClaimBegun   = 3 // of a call: the function runs
)

// Call is the start of the meta of a call's request or reply.
const (
	CallKind     = 0
	CallFlags    = 4
	CallNumber   = 8
	CallDeadline = 16
	CallTopic    = 24
	CallArgs     = 28
	CallChain    = 30
	CallTopicID  = 32
	CallToken    = 40
	CallTexts    = 56
	CallWindow   = 60
	CallObject   = 64
	CallSize     = 72

	CallArgSize   = 16
	CallChainSize = 16
	MaxCallChain  = 64

	CallRequest = 1
	CallReply   = 2

	CallTakesParts = 1 // of a request
	CallFailed     = 1 // of a reply
	CallPart       = 2 // of a reply: more follow
)

// Codes of an argument.
const (
	ArgNone   = 0
	ArgInt    = 1
	ArgBool   = 2
	ArgFloat  = 3
	ArgTensor = 4
	ArgTree   = 5
	ArgStr    = 6
	ArgBytes  = 7
	ArgDType  = 8
	ArgDevice = 9
)

// Defaults that the broker fills in.
const (
	DefaultTopicDepth  = 8
	DefaultQueueDepth  = 64
	DefaultDescription = 1024
	DefaultLinger      = 60 // seconds
	DefaultLease       = 30 // seconds
	MaxDepth           = 65536
	MaxDescription     = 60 << 10
)

// Slots returns the number of slots of a lane: the power of two that holds
// depth messages and the one being written. A depth beyond MaxDepth, which is
// to be refused before, counts as MaxDepth.
func Slots(depth uint32) uint32 {
	return max(2, uint32(1)<<bits.Len32(min(depth, MaxDepth)))
}

// Stride returns the bytes of a slot whose refs and body have description
// bytes. More than MaxDescription, to be refused before, counts as that.
func Stride(description uint32) uint32 {
	return (SlotSize + min(description, MaxDescription) + 63) &^ 63
}

// LaneBytes returns the bytes of a lane, a multiple of PageBytes.
func LaneBytes(slots, stride uint32) uint64 {
	n := uint64(LaneSlotsAt) + uint64(slots)*uint64(stride)
	return (n + PageBytes - 1) &^ (PageBytes - 1)
}

// GroupAreaBytes returns the bytes that one lane takes in a group file.
func GroupAreaBytes(slots uint32) uint64 { return (GroupClaims + 8*uint64(slots) + 63) &^ 63 }

// GroupBytes returns the bytes of a group file.
func GroupBytes(slots uint32) uint64 {
	n := GroupAreas + MaxLanes*GroupAreaBytes(slots)
	return (n + PageBytes - 1) &^ (PageBytes - 1)
}
