package lanes

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Read joins a topic as a reader; group nil: an independent one, which in a
// lossless topic is a group of its own.
func (t *Topic) Read(ctx context.Context, from Start, group *string) (*Reader, error) {
	if group == nil && !t.Info.Overwrite {
		alone := ""
		group = &alone
	}
	for {
		r, again, err := t.joinReader(ctx, from, group)
		if !again {
			return r, err
		}
	}
}

// joining is a request to read from before it is made until its answer is processed.
type joining struct {
	t    *Topic
	told bool // a new broker was told that it is not answered, and has taken the reader back
}

// Unanswered lists the requests to read for a new broker.
func (s *Topics) Unanswered() (all []protocol.Reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, j := range s.joining {
		j.told = true
		all = append(all, protocol.Reading{TopicRef: j.t.ref(), Reader: number})
	}
	return all
}

// joined ends a request to read, and tells whether the reader may have been taken back.
func (s *Topics) joined(number uint64) (takenBack bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	takenBack = s.joining[number].told
	delete(s.joining, number)
	return takenBack
}

// joinReader tries once. It is to be tried again where a new broker came before the
// answer was processed.
func (t *Topic) joinReader(ctx context.Context, from Start, group *string) (_ *Reader, again bool, _ error) {
	var ok protocol.TopicReadReply
	asked := protocol.TopicRead{TopicRef: t.ref(), Group: group, Reader: t.set.readers.Add(1)}
	t.set.mu.Lock()
	t.set.joining[asked.Reader] = &joining{t: t}
	t.set.mu.Unlock()
	fds, err := t.set.broker.Call(ctx, protocol.OpTopicRead, asked, &ok)
	if err != nil {
		t.set.joined(asked.Reader)
		if fault.Uncertain(err) { // a broker may have done it, and the next one count it
			t.set.broker.Undo(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: t.ref(), Role: protocol.RoleNameRead, Reader: asked.Reader})
		}
		return nil, false, err
	}
	crashpoint.At("reader-joined")
	r := &Reader{t: t, number: ok.Reader, member: ok.Member, waits: t.all, start: from, counted: t.set.countedBy(ok.Reader, ok.Counted)}
	if group == nil {
		wire.CloseAll(fds)
		err = r.begin(ctx)
	} else if err = r.enter(ctx, &ok, fds); err == nil {
		err = r.begin(ctx)
	}
	again = t.set.joined(asked.Reader)
	if err != nil || again {
		r.Close() // the broker counts this reader already
		return nil, again, err
	}
	return r, false, nil
}

// enter joins the group that a new reader is in. It takes ownership of the descriptors.
func (r *Reader) enter(ctx context.Context, ok *protocol.TopicReadReply, fds []*sys.FD) (err error) {
	t := r.t
	if ok.Group == nil || *ok.Group >= protocol.MaxGroups || ok.GroupID == 0 {
		wire.CloseAll(fds)
		return protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "joined a group of %s that was not named", t.Title())
	}
	r.waits = t.waits.Group(*ok.Group)
	r.group, err = t.joinGroup(ctx, sessionfiles.GroupRecord{Number: *ok.Group, ID: ok.GroupID}, fds)
	return err
}

// begin finds the place of a new reader in each lane.
func (r *Reader) begin(ctx context.Context) error {
	v, err := r.t.lanesNow(ctx)
	if err != nil {
		return err
	}
	return r.follow(v, true)
}
