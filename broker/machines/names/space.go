package names

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/baton-ipc/baton/internal/lasting"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// quietTime is after how much silence of JetStream a bucket is read anew.
	quietTime = 2 * time.Second
	// mostBehind is how many entries are asked for at a time.
	mostBehind = 256
)

var errReplaced = errors.New("the bucket was lost and made anew")

var errDown = errors.New("the link to NATS is down")

// space is a namespace on all hosts: what its bucket has said, and what is under way.
type space struct {
	n     *Names
	ns    string
	noted lasting.Trouble // the goroutine's
	// judging is taken before mu.
	judging sync.Mutex

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, when anything here has changed
	bucket  *bucket       // nil: none is there
	trouble error         // why it cannot be read now
	synced  bool          // all was read, and what comes is read at once
	made    uint64        // of the bucket that the rest is about
	epochs  epochs
	cursor  uint64 // the last place that was read
	names   map[string]*known
	turns   map[string]*turn
	waiting map[string]int // sessions that wait for names
	counts  Counts
	// replicas is how many the bucket has, lacks why it has fewer than it should.
	replicas int
	lacks    string
	lostAt   time.Time            // since when it is not synced
	stale    map[string]time.Time // since when names that are set here are
}

// known is what is known of a name.
type known struct {
	stored
	bringing bool
	err      error // why its revision could not be brought here
	// ahead: what is here came before a session asked for it, and none has opened the name since. came is when.
	ahead   bool
	came    time.Time
	setting *setting
}

func newSpace(n *Names, ns string) *space {
	return &space{n: n, ns: ns, changed: make(chan struct{}), names: map[string]*known{}, turns: map[string]*turn{}, waiting: map[string]int{},
		counts: Counts{Took: make([]uint64, len(TookBounds))}, lostAt: time.Now(), stale: map[string]time.Time{}}
}

// name finds what is known of a name, or begins with it.
func (s *space) nameLocked(name string) *known {
	k := s.names[name]
	if k == nil {
		k = &known{}
		s.names[name] = k
	}
	return k
}

// tellLocked wakes all that wait for a change.
func (s *space) tellLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits until something is so. so is called under the mutex.
func (s *space) until(ctx context.Context, so func() bool) error {
	for {
		s.mu.Lock()
		is, changed := so(), s.changed
		s.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run reads the bucket until the host ends.
func (s *space) run() {
	ctx := s.n.ctx
	for ctx.Err() == nil {
		err := errDown
		pause := lookTime
		if nc := s.n.hosts.Current(); nc != nil {
			err = s.follow(ctx, nc)
			if pause = soonTime; protocol.CodeOf(err) == protocol.CodeUnsupported {
				pause = againTime
			}
			if ctx.Err() == nil {
				s.noted.Note(s.n.cfg.Log, "the names of a namespace are not agreed on with other hosts", err, "namespace", s.ns)
			}
		}
		s.lost(err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// lost notes that the bucket is not read.
func (s *space) lost(err error) {
	s.mu.Lock()
	was := s.synced
	if was {
		s.lostAt = time.Now()
	}
	s.synced, s.trouble = false, err
	if protocol.CodeOf(err) == protocol.CodeUnsupported {
		s.bucket = nil
	}
	s.tellLocked()
	s.mu.Unlock()
	if was {
		for name := range s.n.cfg.Local.States(s.ns) {
			s.judge(name)
		}
	}
}

// follow reads the bucket by one connection until that cannot be gone on with.
func (s *space) follow(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked, answered := context.WithTimeout(ctx, 2*askTime)
	defer answered()
	b, err := openBucket(asked, nc, s.ns)
	if err != nil {
		return err
	}
	all, err := s.join(asked, b)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.made != b.made {
		s.made, s.cursor = b.made, 0
		for _, k := range s.names {
			k.stored, k.err = stored{}, nil // a write that is under way finds so by its answer
		}
	}
	s.bucket, s.epochs, s.trouble = b, all, nil
	from := s.cursor + 1
	s.tellLocked()
	s.mu.Unlock()

	cons, err := b.stream.CreateConsumer(asked, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return err
	}
	defer func() { // the server would keep it for a while
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if s.n.hosts.Current() == nc {
			b.stream.DeleteConsumer(ctx, cons.CachedInfo().Name)
		}
	}()
	each, err := cons.Messages(jetstream.PullMaxMessages(mostBehind), jetstream.PullExpiry(2*quietTime+time.Second), jetstream.PullHeartbeat(quietTime))
	if err != nil {
		return err
	}
	defer each.Stop()
	defer context.AfterFunc(ctx, each.Stop)()
	go func() { // what it waits for goes with the connection
		for ctx.Err() == nil {
			if s.n.hosts.Current() != nc {
				each.Stop()
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(lookTime):
			}
		}
	}()
	go s.replicates(ctx, b)
	if cons.CachedInfo().NumPending == 0 {
		s.complete()
	}
	for next := uint64(1); ; next++ {
		m, err := each.Next()
		if err != nil && s.n.hosts.Current() != nc {
			return errDown
		}
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != next {
			return errors.New("entries were lost on the way, and are read again")
		}
		if err := s.came(m, meta.Sequence.Stream); err != nil {
			return err
		}
		if meta.NumPending == 0 {
			s.complete()
		}
	}
}

// join sees to it that what this host knows from a bucket that was lost is below all that the present one will have.
func (s *space) join(ctx context.Context, b *bucket) (epochs, error) {
	info := b.stream.CachedInfo()
	least := uint64(0)
	for _, st := range s.n.cfg.Local.States(s.ns) {
		a := st.Agreed
		// In the same bucket a place behind the last one is of one that was put back to an earlier state.
		if a.Bucket != 0 && a.Bucket != b.made || a.Revision&(1<<placeBits-1) > info.State.LastSeq {
			least = max(least, epochOf(a.Revision)+1)
		}
	}
	return b.raise(ctx, least)
}

// came takes what stands at a place of the bucket.
func (s *space) came(m jetstream.Msg, seq uint64) error {
	prefix := len(subjectOf(s.ns, ""))
	if len(m.Subject()) <= prefix {
		return nil
	}
	key := m.Subject()[prefix:]
	if key == epochKey {
		all, err := readEpochs(m.Data(), seq)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.epochs, s.cursor = all, seq
		s.tellLocked()
		return nil
	}
	name := nameOf(key)
	if protocol.CheckName(name) != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cursor = seq
		s.tellLocked()
		return nil
	}
	e := readEntry(m.Data(), seq)
	if op := m.Headers().Get("KV-Operation"); op != "" || len(m.Data()) == 0 {
		e.Deleted = true
	}
	s.apply(name, e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor = seq
	s.tellLocked()
	return nil
}

// complete notes that all was read that stood in the bucket.
func (s *space) complete() {
	s.mu.Lock()
	if s.synced {
		s.mu.Unlock()
		return
	}
	s.synced = true
	if s.cursor == 0 {
		s.cursor = 1 // there is nothing
	}
	states := s.n.cfg.Local.States(s.ns)
	s.tellLocked()
	s.mu.Unlock()
	for name := range states {
		s.judge(name)
	}
	s.putBack()
}

// judge has the readers of a name know whether a newer revision may be set.
func (s *space) judge(name string) {
	s.judging.Lock() // the last word is about what was known last
	defer s.judging.Unlock()
	s.mu.Lock()
	st := s.n.cfg.Local.State(s.ns, name)
	is := !s.synced || !s.hereLocked(name) || st.Agreed.Bucket != s.made
	if _, was := s.stale[name]; !is || !st.Set {
		delete(s.stale, name)
	} else if !was {
		s.stale[name] = time.Now()
	}
	s.mu.Unlock()
	s.n.cfg.Local.Stale(s.ns, name, is)
}

// apply takes what the bucket says of a name.
func (s *space) apply(name string, e stored) {
	local := s.n.cfg.Local
	s.mu.Lock()
	number := s.epochs.number(e.Seq)
	k := s.nameLocked(name)
	before := k.stored
	k.stored, k.err = e, nil
	w := k.setting
	made := s.made
	s.mu.Unlock()
	if w != nil {
		if seq, is := e.has(w.id); is {
			s.won(w, seq)
		}
	}
	st := local.State(s.ns, name)
	switch {
	case !e.set():
		if st.Agreed.Revision < number {
			local.Deleted(s.ns, name, number)
		}
		return
	case st.Agreed.Revision >= number:
		if st.Agreed.Bucket != made {
			s.putBackSoon(name)
		}
		return
	case st.Set && e.Was != 0 && st.Agreed.Bucket != made && e.Was < st.Agreed.Revision:
		s.putBackSoon(name) // an older revision was put back
		return
	case st.Set && (e.Was != 0 && e.Was == st.Agreed.Revision || before.set() && before.ID == e.ID && s.numberOf(before.Seq) == st.Agreed.Revision):
		local.Renumber(s.ns, name, protocol.Agreed{Revision: number, Age: st.Agreed.Age, Bucket: made}) // the same, at another place
		s.judge(name)
		return
	}
	if e.Host == s.n.cfg.Instance && e.Ephemeral && w == nil && !st.Set {
		s.n.Ended(s.ns, name, number) // its session ended with the previous broker
	}
	switch {
	case st.Open:
		s.bring(name)
	case st.Set && w == nil:
		s.evict(name, true) // it would hold memory until a session reads the newer one
	}
	if st.Set {
		s.judge(name)
	}
}

func (s *space) numberOf(seq uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epochs.number(seq)
}
