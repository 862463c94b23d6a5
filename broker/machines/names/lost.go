package names

import (
	"context"
	"strconv"

	"github.com/baton-ipc/baton/protocol"
)

// A bucket that was lost begins anew. Hosts put back what they have: the revision that is newest by its former number
// stays, whichever host is first. What stood in the new bucket before its epoch was raised is written once more, so that it has a
// number above all that any host has seen.

// putBack does so for all names that are set here.
func (s *space) putBack() {
	s.mu.Lock()
	made := s.made
	s.mu.Unlock()
	for name, st := range s.n.cfg.Local.States(s.ns) {
		if st.Set && st.Agreed.Bucket != made {
			s.putBackSoon(name)
		}
	}
}

// putBackSoon puts the revision of a name back. It returns at once.
func (s *space) putBackSoon(name string) {
	s.n.begin(func() {
		ctx, cancel := context.WithTimeout(s.n.ctx, setTime)
		defer cancel()
		release, err := s.turn(ctx, name)
		if err != nil {
			return // it is tried again when the bucket is read again
		}
		defer release()
		for err = s.putBackOne(ctx, name); err != nil; err = s.putBackOne(ctx, name) {
			if s.pause(ctx, err) != nil {
				return
			}
		}
	})
}

func (s *space) putBackOne(ctx context.Context, name string) error {
	b, err := s.ready(ctx)
	if err != nil {
		return err
	}
	e, err := b.read(ctx, name)
	if err != nil {
		return err
	}
	st := s.n.cfg.Local.State(s.ns, name)
	if !st.Set && e.Seq == 0 || st.Agreed.Bucket == b.made {
		return nil
	}
	mine := &entry{ID: s.n.cfg.Instance + "-" + strconv.FormatUint(protocol.RandomNumber(), 10), Host: s.n.cfg.Instance, HostName: s.n.cfg.HostName, Was: st.Agreed.Revision, Over: e.after()}
	switch {
	case e.Seq == 0, e.Was != 0 && e.Was < st.Agreed.Revision && st.Set:
	case s.numberOf(e.Seq) <= st.Agreed.Revision:
		again := e.entry
		again.Over = e.after()
		mine = &again
	default:
		return nil
	}
	_, err = b.put(ctx, name, mine, e.Seq)
	return err
}
