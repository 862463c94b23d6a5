package broker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// What a grant must leave free on the machine, so that the first to be
	// refused is a tensor and not somebody's process.
	minMargin = 64 << 20
	maxMargin = 1 << 30
	// collectPause is the least time between two requests to idle owners to
	// recycle.
	collectPause = 100 * time.Millisecond
	// orWait begins the remedy of a refusal after which memory of others may come.
	orWait = "wait for memory (others are asked for what nobody holds), "
)

// checkRoom asks check whether a session may have a grant. What the dead left and
// nobody holds any more, such as a name that was just deleted, is freed before anybody
// is refused.
func (b *Broker) checkRoom(s *session, check func() error) error {
	err := check()
	if err != nil && b.collectOrphans() {
		err = check()
	}
	if err != nil {
		b.askToCollect()
		b.refused[s] = struct{}{}
	}
	return err
}

// checkLimits refuses a grant beyond the quotas, the machine's memory, or what the
// client said is free where it runs.
func (b *Broker) checkLimits(s *session, r *protocol.Grant, bytes uint64) error {
	if err := b.checkQuota(s, bytes); err != nil {
		return err
	}
	if r.PageBytes != 0 {
		return b.checkHugePages(bytes, r.PageBytes)
	}
	return b.checkPages(bytes, r.Free)
}

// checkPages refuses what does not fit beside all else that has pages.
func (b *Broker) checkPages(bytes uint64, clientFree *uint64) error {
	if err := b.checkMachine(bytes); err != nil {
		return err
	}
	if clientFree != nil && bytes+minMargin > *clientFree {
		return b.noRoom(protocol.CodeOutOfMemory, "release tensors, or raise the limit of the client's container", *clientFree, 0,
			"%d bytes more would leave the client's container less than the %d that are kept free (%d are free)", bytes, uint64(minMargin), *clientFree)
	}
	return b.checkPlace(bytes)
}

// tellOfRoom tells those whose grants were refused that memory has come free.
func (b *Broker) tellOfRoom() {
	for s := range b.refused {
		if !s.ended {
			s.event(func(p *pending) { p.room = true })
		}
	}
	clear(b.refused)
}

func (b *Broker) checkQuota(s *session, bytes uint64) error {
	if limit := b.cfg.SessionMemory; limit > 0 && (s.granted > limit || bytes > limit-s.granted) {
		return b.noRoom(protocol.CodeQuota, "release tensors, or raise --session-memory", limit, s.granted,
			"%d bytes more would exceed the %d that one session may have (it has %d)", bytes, limit, s.granted)
	}
	if limit := b.cfg.Memory; b.used > limit || bytes > limit-b.used {
		return b.noRoom(protocol.CodeQuota, orWait+"release tensors, or raise --memory", limit, b.used,
			"%d bytes more would exceed the broker's %d (%d are granted)", bytes, limit, b.used)
	}
	return nil
}

// checkMachine refuses what would leave the machine, or the smallest limit of
// our control groups, with less than a margin. A memfd itself never says that
// memory is full: too much of it ends in the out-of-memory killer.
func (b *Broker) checkMachine(bytes uint64) error {
	m, err := b.cfg.ReadMemory()
	if err != nil {
		b.log.Warn("cannot read how much memory is free; granting without a check", "error", err)
		return nil
	}
	margin := min(max(m.Bound()/32, minMargin), maxMargin)
	free := m.Free()
	promised := b.promised()
	if need := bytes + promised + margin; need > free {
		return b.noRoom(protocol.CodeOutOfMemory, orWait+"release tensors, end what else uses memory, or raise the container's limit",
			free, promised, "%d bytes more would leave this machine less than the %d it keeps free (%d are free, %d of them promised)",
			bytes, margin, free, promised)
	}
	return nil
}

// checkPlace refuses what the directory of the files has no room for. A file
// system says by itself that it is full, so it needs no margin for tensors, only
// for the records of names and messages.
func (b *Broker) checkPlace(bytes uint64) error {
	free, ok := b.files.free()
	if !ok {
		return nil
	}
	const margin = 1 << 20
	if promised := b.promised(); bytes+promised+margin > free {
		return b.noRoom(protocol.CodeOutOfMemory, orWait+"release tensors, make room there, or name a larger --memory-dir",
			free, promised, "%d bytes more do not fit into %s (%d are free there, %d of them promised)", bytes, b.cfg.MemoryDir, free, promised)
	}
	return nil
}

// promised returns how much of what was granted has no pages yet.
func (b *Broker) promised() (n uint64) {
	for g := range b.unreserved {
		got, err := g.view.FD().Allocated()
		if err != nil || got >= g.bytes {
			delete(b.unreserved, g)
			continue
		}
		n += g.bytes - got
	}
	return n
}

// HolderUse is what one holder has: bytes of the storages that its row counts,
// and of the segments that it was granted.
type HolderUse struct {
	Session string `json:"session"`
	PID     int    `json:"pid,omitempty"`
	Held    uint64 `json:"held"`
	Granted uint64 `json:"granted"`
}

func (b *Broker) noRoom(code protocol.Code, remedy string, limit, used uint64, format string, args ...any) error {
	largest := b.largestHolders(3)
	var names []string
	for _, h := range largest {
		names = append(names, fmt.Sprintf("%s (process %d): holds %d bytes, was granted %d", h.Session, h.PID, h.Held, h.Granted))
	}
	if len(names) > 0 {
		format += "; largest: " + strings.ReplaceAll(strings.Join(names, "; "), "%", "%%")
	}
	return protocol.Errorf(code, remedy, format, args...).
		With("limit", limit).With("used", used).With("largest", largest)
}

// largestHolders lists who holds or was granted most.
func (b *Broker) largestHolders(n int) []HolderUse {
	all := []HolderUse{}
	for _, s := range b.slots {
		if s != nil {
			if u := (HolderUse{s.name, s.pid, b.heldBytes(s), s.allGranted()}); u.Held+u.Granted > 0 {
				all = append(all, u)
			}
		}
	}
	u := HolderUse{Session: "broker: names, leases, messages of ended sessions", PID: processID}
	for c := range b.chunkOf {
		if b.chunkOf[c] != nil {
			u.Held += b.heldInChunk(b.own, b.chunkOf[c])
		}
	}
	for g := range b.orphans {
		u.Granted += g.cost()
	}
	if u.Held+u.Granted > 0 {
		all = append(all, u)
	}
	slices.SortFunc(all, func(x, y HolderUse) int {
		return cmp.Compare(max(y.Held, y.Granted), max(x.Held, x.Granted))
	})
	return all[:min(n, len(all))]
}

// heldBytes sums the storages that a session's row counts.
func (b *Broker) heldBytes(s *session) (n uint64) {
	s.eachAttached(func(chunk uint32) {
		if c := b.chunkOf[chunk]; c != nil {
			n += b.heldInChunk(s.pages, c)
		}
	})
	return n
}

func (b *Broker) heldInChunk(p *pages, c *chunk) (n uint64) {
	if !p.there() || !c.segment.owner.there() {
		return 0
	}
	for i := range uint32(protocol.ChunkIndices) {
		index := c.index*protocol.ChunkIndices + i
		if p.row.Count(index) != 0 {
			// The owner wrote it: at most the segment's size counts.
			n += min(c.segment.owner.entries.Load(index).Bytes, c.segment.bytes)
		}
	}
	return n
}

// eachAttached calls f for every chunk that the session is attached to.
func (s *session) eachAttached(f func(chunk uint32)) {
	for w, word := range s.attached {
		for i := range uint32(64) {
			if word>>i&1 != 0 {
				f(uint32(w)*64 + i)
			}
		}
	}
}

// askToCollect asks every session to recycle and to return empty slabs: an idle
// owner keeps what others have let go until somebody asks. Who is refused shortly
// after somebody else has them asked again when the pause is over.
func (b *Broker) askToCollect() {
	if b.asking != nil {
		return
	}
	now := time.Now()
	if rest := collectPause - now.Sub(b.collected); rest > 0 {
		b.asking = b.after(rest, func() {
			b.asking = nil
			b.askToCollect()
		})
		return
	}
	b.collected = now
	for _, s := range b.slots {
		if s != nil && len(s.segments) > 0 {
			s.event(func(p *pending) { p.collect = true })
		}
	}
}
