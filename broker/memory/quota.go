package memory

import (
	"math/bits"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// What a grant must leave free on the machine, so that a tensor is refused before another
	// process runs out of memory.
	minMargin = 64 << 20
	maxMargin = 1 << 30
	// placeMargin is what a directory of files must keep free for records.
	placeMargin = 1 << 20
	// orWait begins the remedy of a refusal after which memory of others may come.
	orWait = "wait until others hold less, "
)

// lacking is what is known of a request that may be refused.
type lacking struct {
	fallback bool // its client asks for less after a refusal
	last     bool // it has waited for a round
}

// checkRoom asks check whether a session may have a grant. What dead sessions left and
// no holder counts any more, such as a name that was just deleted, is freed before a grant
// is refused.
//
// Before a client is refused at last, sessions are asked for what they do not hold, in a round, and then pickles that
// were not read are given up for it: those that want selects.
func (m *Memory) checkRoom(s *Account, how lacking, want unreadFor, check func() error) error {
	err := check()
	if err != nil && m.ReclaimOrphans(reclaimTime) {
		err = check()
	}
	if err != nil && !how.fallback && !how.last {
		if later := m.later(err); later != nil {
			return later
		}
	}
	if err != nil {
		err = m.giveUpFor(s, want, err, check)
	}
	if err != nil {
		m.refused[s] = struct{}{}
		m.nameLargest(err)
	}
	return err
}

// checkLimits refuses a grant beyond the quotas, the machine's memory, or what the
// client said is free where it runs.
func (m *Memory) checkLimits(s *Account, r *protocol.Grant, bytes uint64) error {
	if err := m.checkQuota(s, bytes); err != nil {
		return err
	}
	if r.PageBytes != 0 {
		return m.checkHugePages(bytes, r.PageBytes)
	}
	return m.checkPages(bytes, r.Free)
}

// checkPages refuses a grant that does not fit beside the pages that are in use.
func (m *Memory) checkPages(bytes uint64, clientFree *uint64) error {
	if err := m.checkMachine(bytes, clientFree != nil); err != nil {
		return err
	}
	if clientFree != nil && bytes+minMargin > *clientFree {
		return m.noRoom(lack{code: protocol.CodeOutOfMemory, remedy: "release tensors, or raise the limit of the client's container", limit: *clientFree, missing: bytes + minMargin - *clientFree},
			"%d bytes more would leave the client's container less than the %d that are kept free (%d are free)", bytes, uint64(minMargin), *clientFree)
	}
	return m.checkPlace(bytes)
}

// notifyRefused tells the sessions whose grants were refused that memory has come free.
func (m *Memory) notifyRefused() {
	for s := range m.refused {
		s.client.Room()
	}
	clear(m.refused)
}

func (m *Memory) checkQuota(s *Account, bytes uint64) error {
	if limit, has := m.limits.SessionMemory, s.granted+s.lanes+s.refcountsBytes(); m.isBeyondOwn(s, bytes) {
		return m.noRoom(lack{code: protocol.CodeQuota, remedy: lessThan(bytes, limit, releaseOf(s.lanes, has)) + "or raise --session-memory", limit: limit, used: has, missing: has + bytes - limit, of: s, alone: bytes > limit},
			"%d bytes more would exceed the %d that one session may have (it has %d, of them %d in lanes)", bytes, limit, has, s.lanes)
	}
	if limit, used := m.limits.Memory, m.used+m.lanes; m.isBeyondAll(bytes) {
		return m.noRoom(lack{code: protocol.CodeQuota, remedy: lessThan(bytes, limit, orWait+releaseOf(m.lanes, used)) + "or raise --memory", limit: limit, used: used, missing: used + bytes - limit, alone: bytes > limit},
			"%d bytes more would exceed the broker's %d (%d are granted, of them %d in lanes)", bytes, limit, used, m.lanes)
	}
	return nil
}

// releaseOf begins the remedy of a quota: where lanes are an eighth of what it counts or more, they matter.
func releaseOf(lanes, used uint64) string {
	if lanes >= used/8 && lanes > 0 {
		return "release tensors, close queues and topics, "
	}
	return "release tensors, "
}

// lessThan is what may help where so much is refused: that others let go of something does only below the limit.
func lessThan(bytes, limit uint64, others string) string {
	if bytes > limit {
		return "ask for less, "
	}
	return others
}

// isBeyondOwn tells whether so much more is over the quota of the session.
func (m *Memory) isBeyondOwn(s *Account, bytes uint64) bool {
	limit, has := m.limits.SessionMemory, s.granted+s.lanes+s.refcountsBytes()
	return limit > 0 && (has > limit || bytes > limit-has)
}

// isBeyondAll tells whether so much more is over the quota of all sessions together.
func (m *Memory) isBeyondAll(bytes uint64) bool {
	limit, used := m.limits.Memory, m.used+m.lanes
	return used > limit || bytes > limit-used
}

// refcountsBytes is the size of the part of refcounts that is for the chunks that the session is attached
// to.
func (s *Account) refcountsBytes() uint64 {
	n := 0
	for _, w := range s.attached {
		n += bits.OnesCount64(w)
	}
	return uint64(n) * protocol.ChunkIndices * protocol.RefcountWordSize
}

// CheckLane tells whether the quotas have room for a lane of a session. Its client
// reserves the pages. last is as of Grant.
func (m *Memory) CheckLane(p *sessionfiles.SessionFile, bytes uint64, last bool) error {
	s := m.accountOf(p)
	if s == nil {
		return nil
	}
	return m.checkRoom(s, lacking{last: last}, m.unreadForLane(bytes), func() error { return m.checkQuota(s, bytes) })
}

// AddLane counts a lane to the quotas, until SubLane, which may come when the session
// has ended: the pages outlive it.
func (m *Memory) AddLane(p *sessionfiles.SessionFile, bytes uint64) {
	m.lanes += bytes
	if s := m.accountOf(p); s != nil {
		s.lanes += bytes
	}
}

// SubLane ends what AddLane began.
func (m *Memory) SubLane(p *sessionfiles.SessionFile, bytes uint64) {
	m.lanes -= bytes
	if s := m.accountOf(p); s != nil {
		s.lanes -= bytes
	}
	m.notifyRefused()
}

func (m *Memory) accountOf(p *sessionfiles.SessionFile) *Account {
	if s := m.accounts[p.Slot]; s != nil && s.SessionFile == p {
		return s
	}
	return nil
}

// checkMachine refuses a grant that would leave the machine less than a margin. A memfd itself
// gives no error when memory is full: the out-of-memory killer ends a process. The client pays
// for its pages, within the limits of its own control groups, and may report how much these
// leave free (elsewhere). For a client that reports nothing the broker's control groups count,
// as if it ran in them.
func (m *Memory) checkMachine(bytes uint64, elsewhere bool) error {
	machine, err := m.limits.ReadMemory()
	if err != nil {
		m.log.Warn("cannot read how much memory is free; granting without a check", "error", err)
		return nil
	}
	if elsewhere {
		machine.Limit, machine.Used = 0, 0
	}
	margin, free := marginOf(machine), machine.Free()
	promised := m.promised()
	if need := bytes + promised + margin; need > free {
		return m.noRoom(lack{code: protocol.CodeOutOfMemory, remedy: orWait + "release tensors, end what else uses memory, or raise the container's limit",
			limit: free, used: promised, missing: need - free}, "%d bytes more would leave this machine less than the %d it keeps free (%d are free, %d of them promised)",
			bytes, margin, free, promised)
	}
	return nil
}

// marginOf is what a grant must leave free on a machine.
func marginOf(machine sys.Memory) uint64 { return min(max(machine.Bound()/32, minMargin), maxMargin) }

// Left is how much could be granted now, to a session that has no limits of its own, on a
// machine with so much memory.
func (m *Memory) Left(machine sys.Memory) uint64 {
	less := func(a uint64, b ...uint64) uint64 {
		for _, n := range b {
			a -= min(a, n)
		}
		return a
	}
	promised := m.promised()
	left := min(less(m.limits.Memory, m.used, m.lanes), less(machine.Free(), marginOf(machine), promised))
	if free, ok := m.store.Files.Free(); ok {
		left = min(left, less(free, placeMargin, promised))
	}
	return left
}

// checkPlace refuses a grant that does not fit into the file system of the files. A file system
// gives an error when it is full, so it needs no margin for tensors, only for the records of
// names and messages.
func (m *Memory) checkPlace(bytes uint64) error {
	free, ok := m.store.Files.Free()
	if !ok {
		return nil
	}
	promised := m.promised()
	if need := bytes + promised + placeMargin; need > free {
		return m.noRoom(lack{code: protocol.CodeOutOfMemory, remedy: orWait + "release tensors, make room there, or name a larger --memory-dir",
			limit: free, used: promised, missing: need - free}, "%d bytes more do not fit into %s (%d are free there, %d of them promised and %d kept for records)",
			bytes, m.limits.MemoryDir, free, promised, placeMargin)
	}
	return nil
}

// promised returns how much of what was granted has no pages yet.
func (m *Memory) promised() (n uint64) {
	for g := range m.unreserved {
		got, err := g.view.FD().Allocated()
		if err != nil || got >= g.bytes {
			delete(m.unreserved, g)
			continue
		}
		n += g.bytes - got
	}
	return n
}

// Held sums the bytes of the storages that a session's refcounts count.
func (m *Memory) Held(s *Account) uint64 {
	own, ofOthers := m.HeldApart(s)
	return own + ofOthers
}

// HeldApart is Held of the storages in the session's own segments and in those of others.
func (m *Memory) HeldApart(s *Account) (own, ofOthers uint64) {
	s.eachAttached(func(chunk uint32) {
		c := m.chunkOf[chunk]
		switch {
		case c == nil:
		case c.segment.holder == s:
			own += m.heldInChunk(s.SessionFile, c)
		default:
			ofOthers += m.heldInChunk(s.SessionFile, c)
		}
	})
	return own, ofOthers
}

func (m *Memory) heldInChunk(p *sessionfiles.SessionFile, c *chunk) (n uint64) {
	m.eachHeldInChunk(p, c, func(_ uint32, bytes uint64) { n += bytes })
	return n
}

// eachHeldInChunk calls f for each storage of a chunk that a holder's refcounts count.
func (m *Memory) eachHeldInChunk(p *sessionfiles.SessionFile, c *chunk, f func(index uint32, bytes uint64)) {
	if !p.There() || !c.segment.owner.There() {
		return
	}
	for i := range uint32(protocol.ChunkIndices) {
		index := c.index*protocol.ChunkIndices + i
		if p.Refcounts.Count(index) != 0 {
			// The owner wrote it: at most the segment's size counts.
			f(index, min(c.segment.owner.Entries.Load(index).Bytes, c.segment.bytes))
		}
	}
}

// eachAttached calls f for every chunk that the session is attached to.
func (s *Account) eachAttached(f func(chunk uint32)) {
	for w, word := range s.attached {
		for i := range uint32(64) {
			if word>>i&1 != 0 {
				f(uint32(w)*64 + i)
			}
		}
	}
}

// AskToCollect asks every session to recycle and to return empty slabs: an idle owner keeps what others have released
// until it is asked. One that works keeps the slab in which it allocates.
func (m *Memory) AskToCollect() {
	for _, s := range m.accounts[:] {
		if s != nil && len(s.segments) > 0 {
			s.client.Collect()
		}
	}
}
