package client

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func (s *session) work() {
	often := time.NewTicker(compareEvery)
	defer often.Stop()
	b := s.jobs
	for {
		select {
		case <-b.stop:
			return
		case <-often.C:
			s.compare()
			continue
		case <-b.wake:
		}
		now := b.take()
		s.carryOut(&now)
		s.claims.tell(func(op string, body any) error {
			_, err := s.link.Call(context.Background(), op, body, nil)
			return err
		})
	}
}

func (s *session) carryOut(d *due) {
	if d.compare {
		s.compare()
	}
	if d.custody {
		s.memory.takeCustody()
	}
	if d.collect {
		s.memory.collect((*handles.Pool).CollectIdle)
	}
	if d.forgetPeers {
		s.memory.forgetPeers()
	}
	missing := slices.DeleteFunc(slices.Collect(maps.Keys(d.peers)), func(of protocol.PeerSession) bool { return s.pages.known(of.Slot, of.Serial) != nil })
	if len(missing) > 0 {
		s.memory.mapPeers(context.Background(), missing)
	}
}

func (s *session) keepConnected() {
	for {
		select {
		case <-s.jobs.stop:
			return
		case <-s.link.away():
			if s.link.isClosed() || !s.reconnect() {
				return
			}
		}
	}
}

// reconnect tries until a broker takes this session back: the same one, to which
// it was only disconnected, or a new one, which is given all that is mapped
// here. It returns false when the client was closed or its session is lost.
func (s *session) reconnect() bool {
	for pause := reconnectSoon; ; pause = min(2*pause, reconnectLate) {
		if s.pages.isOver() || s.pages.isClosed() {
			why := errStopped
			if s.life.isEvicted() || s.pages.isEvicted() {
				why = errEvicted
			}
			s.lose(why)
			return false
		}
		s.goOn()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		ctl, err := s.resume(ctx)
		cancel()
		if ctl != nil {
			if !s.link.adopt(ctl) {
				return false
			}
			s.waits.wakeAll()
			// What was asked for while no broker was there, claims too.
			s.jobs.post(func(d *due) { d.compare = true })
			go s.memory.returnStray(s.jobs.stop)
			return true
		}
		if isFinal(err) {
			s.lose(err)
			return false
		}
		select {
		case <-time.After(pause):
		case <-s.jobs.stop:
			return false
		}
	}
}

// Pauses between attempts to reconnect to a broker that answers.
const (
	reconnectSoon = 20 * time.Millisecond
	reconnectLate = time.Second
)

// resume tries once.
func (s *session) resume(ctx context.Context) (*control, error) {
	p := s.pages
	return s.link.resume(ctx, &protocol.Resume{Instance: p.instance, Serial: p.serial, Secret: p.secret}, s.restore)
}

// restore hands a new broker the descriptors of everything mapped here.
func (s *session) restore(ctx context.Context, ask request) error {
	p := s.pages
	s.memory.restoring()
	unanswered := s.topics.unanswered() // before the groups are listed: a reader that is missing here has its group there
	items := []protocol.RestoreItem{{Role: protocol.RestoreBroker}, {Role: protocol.RestoreBell}, {Role: protocol.RestoreSession, Serial: p.serial}}
	fds := []*sys.FD{p.brokerFD, p.bellFD, p.sessionFD}
	held := []*sys.FD(nil) // closed meanwhile, they are closed behind this
	defer func() {
		for _, fd := range held {
			fd.Release()
		}
	}()
	add := func(role string, serial uint64, fd *sys.FD) {
		if _, err := fd.Acquire(); err == nil {
			held = append(held, fd)
			items = append(items, protocol.RestoreItem{Role: role, Serial: serial})
			fds = append(fds, fd)
		}
	}
	custody, sessions := p.inventory()
	for k, f := range custody {
		add(k.role, k.serial, f.fd)
	}
	segments := s.memory.inventory(custody, func(serial uint64, fd *sys.FD) { add(protocol.RestoreSegment, serial, fd) })
	s.topics.groupFiles(func(id uint64, fd *sys.FD) { add(protocol.RestoreGroup, id, fd) })
	const batch = 32
	for len(items) > 0 {
		n := min(batch, len(items))
		if _, err := ask(ctx, protocol.OpRestore, protocol.Restore{Items: items[:n]}, nil, fds[:n]...); err != nil {
			return err
		}
		items, fds = items[n:], fds[n:]
	}
	var ok protocol.HelloReply
	more, err := ask(ctx, protocol.OpRestored, protocol.Restored{Unanswered: unanswered, Sessions: sessions, Segments: segments}, &ok)
	wire.CloseAll(more)
	if err == nil && !ok.Resumed {
		err = protocol.ErrBrokerLost
	}
	return err
}
