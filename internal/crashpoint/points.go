package crashpoint

import "strings"

// Env names the environment variable that arms a point: name or name:n.
const Env = "BATON_CRASH_AT"

// Point is one step of the protocol between two instructions of which a process
// may be killed.
type Point struct {
	Name string
	What string // what has just happened, and what has not yet
}

// InAWait tells whether only a waiting process comes by the point.
func (p Point) InAWait() bool {
	return p.Name == "room-waiting" || p.ForMessages() || strings.HasPrefix(p.Name, "park-")
}

// ForMessages tells whether only one that waits for messages does.
func (p Point) ForMessages() bool { return p.Name == "wait-member" }

// Points lists every step. A test kills a process at each.
var Points = []Point{
	{"grant-received", "the broker has granted a segment, whose pages are not reserved"},
	{"grant-reserved", "its pages are reserved, nothing of it is in use"},
	{"grant-prepared", "the entries of its chunks are reserved, the pool does not know of them"},
	{"chunks-received", "more indices were granted, and their entries are not reserved"},
	{"alloc-cut", "a range is cut off, its entry says something else"},
	{"alloc-described", "the entry is written, nothing counts the storage"},
	{"alloc-counted", "the session's own refcounts count it, no other process knows of it"},
	{"spill-written", "a spill storage is filled, nothing names it"},

	{"lane-reserved", "a lane's pages are reserved, the broker does not know of it"},
	{"lane-joined", "the broker lists the lane, nothing stands in it"},
	{"send-counting", "some of a message's storages are counted up"},
	{"send-counted", "all of them are"},
	{"send-written", "the slot is written, its number is not"},
	{"publish-seq", "the slot has its number, the lane's head does not"},
	{"send-published", "the message is published, the one it replaces still named"},
	{"send-unnamed", "the replaced message is un-named, its storages are still counted"},
	{"send-dropping", "some of them are counted down"},
	{"send-ring", "everything is done and no session was rung"},
	{"room-waiting", "the queue is full and the sender about to wait"},

	{"attach-asked", "the broker has attached this session to a chunk, nothing is counted"},
	{"attach-mapped", "its segment and its owner's pages are mapped"},
	{"take-read", "a message was copied, nothing is counted"},
	{"take-counting", "some of its storages are counted up"},
	{"take-counted", "all of them are, and the slot was not looked at again"},
	{"take-looked", "the slot still names the message, the lane's incarnation was not looked at"},
	{"take-unspilled", "a spilled message's storages are counted, its spill storage no longer"},
	{"take-held", "the slot was looked at again: the message is held"},
	{"claim-before", "a group's message is held and not claimed"},
	{"claim-swapped", "it is claimed, the hint still names it"},
	{"claim-hinted", "the hint is beyond it, its writer was not rung"},
	{"ack-before", "its storages are counted down, it is not acknowledged"},
	{"ack-done", "it is acknowledged, its writer was not rung"},
	{"drop-before", "a message is about to be let go"},
	{"drop-between", "some of its storages are counted down"},

	{"recycle-collected", "the first look at all refcounts found nothing"},
	{"recycle-retiring", "the storage is marked as retiring"},
	{"recycle-checked", "the second look found nothing either"},
	{"recycle-next", "its next generation has begun, the pool does not know"},
	{"return-before", "a segment is empty and about to be given back"},
	{"return-done", "the broker has it back, it is still mapped here"},

	{"park-begin", "the session says that it sleeps, and has not looked again"},
	{"park-sleep", "it has looked and is about to sleep"},
	{"park-woken", "it was woken and still says that it sleeps"},
	{"wait-member", "a sleeper's bit stands in its wait set, and the bit of its word may not yet"},
	{"wait-tidied", "the bit of a word of a wait set is cleared, and the word was not looked at once more"},
	{"wait-claimed", "a sleeper was taken out of its wait set, and was not rung"},
	{"bell-added", "a bell's count is up, its sleeper was not woken"},

	{"lease-made", "the broker holds a handle's storage, the handle is not given out"},
	{"open-counted", "a handle's storage is counted, its generation not looked at"},
	{"open-held", "the handle's storage is held, its lease not claimed"},
	{"name-asked", "a name's revision is described and the broker not asked"},
	{"name-set", "the broker holds the revision, its setter does not know"},
	{"reader-joined", "the broker lists a reader that has not looked yet"},
	{"leave-read", "a reader has left and keeps what it received"},
	{"leave-write", "the broker has adopted the lane, its messages are counted twice"},
	{"leave-placed", "its place is noted or free, its messages are counted twice"},
	{"bye-said", "the session is over for the broker, the process has all mapped"},
}

// KeeperPoints lists the steps of the Go client when counts of a closed session move
// to that of the process which keeps them.
var KeeperPoints = []Point{
	{"bye-counted", "the broker counts what the lanes of a closed session named, and its refcounts do no more"},
	{"keeper-attached", "the keeper is attached to what the closed session holds, nothing is counted"},
	{"keeper-raised", "both sessions count it"},
	{"keeper-overlaid", "the keeper's refcounts are at the addresses of the other, which still counts"},
	{"keeper-emptied", "the other refcounts are empty, the broker was not notified"},
	{"keeper-told", "the keeper has said bye, the other session not"},
}
