package session

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/link"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func (s *Session) work() {
	often := time.NewTicker(reconcileEvery)
	defer often.Stop()
	b := s.jobs
	for {
		select {
		case <-b.stop:
			return
		case <-often.C:
			s.Reconcile()
			continue
		case <-b.wake:
		}
		now := b.take()
		s.carryOut(&now)
		s.claims.tell(func(op string, body any) error {
			_, err := s.Link.Call(context.Background(), op, body, nil)
			return err
		})
	}
}

func (s *Session) carryOut(d *due) {
	if d.reconcile {
		s.Reconcile()
	}
	if d.custody {
		s.Memory.TakeCustody()
	}
	switch {
	case d.giveBack:
		s.Memory.Reclaim((*handles.Pool).ReclaimAtOnce)
		s.Link.Call(context.Background(), protocol.OpReclaimed, struct{}{}, nil) // where it is lost, the broker waits for no answer
	case d.reclaim:
		s.Memory.Reclaim((*handles.Pool).ReclaimIdle)
	}
	if d.forgetPeers {
		s.Memory.ForgetPeers()
	}
	missing := slices.DeleteFunc(slices.Collect(maps.Keys(d.peers)), func(of protocol.PeerSession) bool { return s.Files.Known(of.Slot, of.Serial) != nil })
	if len(missing) > 0 {
		s.Memory.MapPeers(context.Background(), missing)
	}
}

func (s *Session) keepConnected() {
	for {
		select {
		case <-s.jobs.stop:
			return
		case <-s.Link.Away():
			s.Link.NoteAway()
			if s.Link.IsClosed() || !s.reconnect() {
				return
			}
		}
	}
}

// reconnect tries until a broker takes this session back: the same one, to which
// it was only disconnected, or a new one, which is given all that is mapped
// here. It returns false when the client was closed or its session is lost.
func (s *Session) reconnect() bool {
	for pause := reconnectSoon; ; pause = min(2*pause, reconnectLate) {
		if s.Files.IsOver() || s.Files.IsClosed() {
			why := errStopped
			if s.Life.IsEvicted() || s.Files.IsEvicted() {
				why = s.whyEvicted()
			}
			s.lose(why)
			return false
		}
		s.goOn()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		ctl, err := s.resume(ctx)
		cancel()
		if ctl != nil {
			if !s.Link.SwitchTo(ctl) {
				return false
			}
			s.Waits.WakeAll()
			// What was asked for while no broker was there, claims too.
			s.jobs.post(func(d *due) { d.reconcile = true })
			go s.Memory.ReturnStray(s.jobs.stop)
			return true
		}
		if fault.IsFinal(err) {
			switch {
			case !s.Life.IsEvicted():
			case fault.IsUnknown(err): // it may be over by now, and the broker another
				err = protocol.Errorf(fault.Code(err), "", "%w", errEvicted)
			default: // its user may not come back, and it is over whatever that user may do
				err = s.whyEvicted()
			}
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

// whyEvicted is why the session is over, as the broker has said where it has.
func (s *Session) whyEvicted() error {
	if told := s.Link.WhyOver(); told != nil {
		return told
	}
	return errEvicted
}

// Pauses between attempts to reconnect to a broker that answers.
const (
	reconnectSoon = 20 * time.Millisecond
	reconnectLate = time.Second
)

// resume tries once.
func (s *Session) resume(ctx context.Context) (*link.Control, error) {
	p := s.Files
	return s.Link.Resume(ctx, &protocol.Resume{Instance: p.Instance, Serial: p.Serial, Secret: p.Secret}, s.restore)
}

// restore hands a new broker the descriptors of everything mapped here.
func (s *Session) restore(ctx context.Context, ask link.Request) error {
	p := s.Files
	s.Memory.Restoring()
	unanswered := s.Topics.Unanswered() // before the groups are listed: a reader that is missing here has its group there
	items := []protocol.RestoreItem{{Role: protocol.RestoreBroker}, {Role: protocol.RestoreBell}, {Role: protocol.RestoreSession, Serial: p.Serial}}
	fds := []*sys.FD{p.BrokerFD, p.BellFD, p.SessionFD}
	held := []*sys.FD(nil) // closed meanwhile, they are closed after this
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
	custody, sessions := p.Inventory()
	for k, f := range custody {
		add(k.Role, k.Serial, f.FD)
	}
	segments := s.Memory.Inventory(custody, func(serial uint64, fd *sys.FD) { add(protocol.RestoreSegment, serial, fd) })
	s.Topics.GroupFiles(func(id uint64, fd *sys.FD) { add(protocol.RestoreGroup, id, fd) })
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
