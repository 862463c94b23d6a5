package broker

import (
	"encoding/json"
	"reflect"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// handler carries out one op of a session: it decodes the request, takes the
// mutex and returns the reply and descriptors that the reply owns.
type handler func(b *Broker, s *session, data []byte) (any, []*sys.FD, error)

// ops are the requests of a session; hello and those of a takeover stand apart.
var ops = map[string]handler{
	protocol.OpReclaimed: whileHeld(func(b *Broker, s *session, _ *struct{}) (any, []*sys.FD, error) {
		b.memory.Reclaimed(s.memory)
		return done{}, nil, nil
	}),
	protocol.OpChunks: locked(func(b *Broker, s *session, r *protocol.Chunks) (any, []*sys.FD, error) {
		reply, err := b.memory.Chunks(s.memory, r)
		return reply, nil, err
	}),
	protocol.OpReturn: locked(func(b *Broker, s *session, r *protocol.Return) (any, []*sys.FD, error) {
		return done{}, nil, b.memory.Return(s.memory, r)
	}),
	protocol.OpAttach: whileHeld(func(b *Broker, s *session, r *protocol.Attach) (any, []*sys.FD, error) {
		s.counting = true
		defer b.assignSoon()
		return b.memory.Attach(s.memory, r, b.withAbsentees, func(segment uint64) bool { return b.lendSegment(s, segment) })
	}),
	protocol.OpPeer: whileHeld(func(b *Broker, s *session, r *protocol.Peer) (any, []*sys.FD, error) {
		defer b.assignSoon()
		return b.store.Lend(r, b.withAbsentees, func(p *sessionfiles.SessionFile) bool {
			return b.lend(s, sessionfiles.Key{Role: protocol.RestoreSession, Serial: p.Serial}, p)
		})
	}),
	protocol.OpSegment: whileHeld(func(b *Broker, s *session, r *protocol.Segment) (any, []*sys.FD, error) {
		reply, fds, err := b.memory.Segment(s.memory, r)
		if err == nil && reply.Device == "" {
			reply.Custody = b.lendSegment(s, r.Serial)
			b.assignSoon()
		}
		return reply, fds, err
	}),
	protocol.OpCustody: whileHeld((*Broker).opCustody),
	protocol.OpTopicOpen: locked(func(b *Broker, s *session, r *protocol.TopicOpenRequest) (any, []*sys.FD, error) {
		reply, err := b.topics.OpenTopic(s.party, r)
		return reply, nil, err
	}),
	protocol.OpTopicRead: locked(func(b *Broker, s *session, r *protocol.TopicRead) (any, []*sys.FD, error) {
		return b.topics.Read(s.party, r)
	}),
	protocol.OpTopicGroupFile: locked(func(b *Broker, s *session, r *protocol.TopicGroupFile) (any, []*sys.FD, error) {
		fds, err := b.topics.GroupFile(s.party, r)
		return done{}, fds, err
	}),
	protocol.OpTopicLeave: locked(func(b *Broker, s *session, r *protocol.TopicLeave) (any, []*sys.FD, error) {
		return done{}, nil, b.topics.LeaveRole(s.party, r)
	}),
	protocol.OpFunctionRegister: locked(func(b *Broker, s *session, r *protocol.FunctionRegister) (any, []*sys.FD, error) {
		reply, err := b.topics.Register(s.party, r)
		return reply, nil, err
	}),
	protocol.OpFunctionFate: locked(func(b *Broker, s *session, r *protocol.FunctionFate) (any, []*sys.FD, error) {
		reply, err := b.topics.Fate(s.party, r)
		return reply, nil, err
	}),
	protocol.OpTopicClose: locked(func(b *Broker, s *session, r *protocol.TopicRef) (any, []*sys.FD, error) {
		return done{}, nil, b.topics.End(s.party, r)
	}),
	protocol.OpNameSet: locked(func(b *Broker, s *session, r *protocol.NameSet) (any, []*sys.FD, error) {
		reply, err := b.topics.SetName(s.party, r)
		return reply, nil, err
	}),
	protocol.OpNameOpen: locked(func(b *Broker, s *session, r *protocol.NameOpen) (any, []*sys.FD, error) {
		reply, err := b.topics.OpenName(s.party, r)
		return reply, nil, err
	}),
	protocol.OpLease: locked(func(b *Broker, s *session, r *protocol.LeaseRequest) (any, []*sys.FD, error) {
		reply, err := b.leases.Make(s.SessionFile, r)
		return reply, nil, err
	}),
	protocol.OpLeaseClaim: locked(func(b *Broker, _ *session, r *protocol.LeaseRef) (any, []*sys.FD, error) {
		return done{}, nil, b.leases.Claim(r)
	}),
	protocol.OpLeaseRelease: locked(func(b *Broker, s *session, r *protocol.LeaseRef) (any, []*sys.FD, error) {
		return done{}, nil, b.leases.Release(s.SessionFile, r)
	}),
	protocol.OpList:   (*Broker).opList,
	protocol.OpStatus: (*Broker).opStatus,
	protocol.OpBye:    lockedWhere((*Broker).running, (*Broker).opBye),
	protocol.OpPing:   (*Broker).opPing,
	protocol.OpEvents: (*Broker).opEvents,
}

// looks are the ops that change nothing and need no session, which is nil then. They work at a
// broker that is at a limit of memory, files or sessions, and for users that may only look.
var looks = map[string]bool{protocol.OpList: true, protocol.OpStatus: true, protocol.OpPing: true, protocol.OpEvents: true}

// done is the reply of an op that has nothing to tell.
type done struct{}

// locked makes a handler of an op that runs with the mutex held.
func locked[Request any](op func(*Broker, *session, *Request) (any, []*sys.FD, error)) handler {
	return lockedWhere((*Broker).usable, op)
}

// whileHeld is locked for an op that a closed session may use as well.
func whileHeld[Request any](op func(*Broker, *session, *Request) (any, []*sys.FD, error)) handler {
	return lockedWhere((*Broker).reachable, op)
}

func lockedWhere[Request any](check func(*Broker, *session) error, op func(*Broker, *session, *Request) (any, []*sys.FD, error)) handler {
	return func(b *Broker, s *session, data []byte) (any, []*sys.FD, error) {
		var r Request
		if err := decode(data, &r); err != nil {
			return nil, nil, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.mu.doing(reflect.TypeFor[Request]().Name)
		if err := check(b, s); err != nil {
			return nil, nil, err
		}
		defer b.noteFiles()
		return op(b, s, &r)
	}
}

func decode(data []byte, to any) error {
	if err := json.Unmarshal(data, to); err != nil {
		return protocol.Errorf(protocol.CodeInvalid, "see docs/protocol.md for the fields", "malformed request: %w", err)
	}
	return nil
}

// usable tells whether a session's request can be carried out now.
func (b *Broker) usable(s *session) error {
	if err := b.reachable(s); err != nil {
		return err
	}
	if s != nil && s.state == protocol.SessionClosed {
		return protocol.Errorf(protocol.CodeClosed, "connect anew", "session %d is closed: it may only keep what it holds", s.Serial)
	}
	return nil
}

// running is usable, for requests that a session which is over may still make.
func (b *Broker) running(*session) error {
	if b.closing {
		return errEnding
	}
	return nil
}

// reachable is usable, for requests that a closed session may still make.
func (b *Broker) reachable(s *session) error {
	if err := b.running(s); err != nil {
		return err
	}
	if s == nil && b.taking != nil {
		return protocol.Errorf(protocol.CodeBusy, "try again", "the broker waits for the clients of the previous broker")
	}
	if s != nil && s.evicted && !s.left {
		return errEvicted(s)
	}
	if s != nil && s.ended {
		return protocol.Errorf(protocol.CodeClosed, "connect anew", "session %d is over", s.Serial)
	}
	return nil
}

// opOffer takes the memory of a segment on a device. What is kept of the descriptors
// is nil afterwards.
func (b *Broker) opOffer(s *session, data []byte, fds []*sys.FD) error {
	var r protocol.Offer
	if err := decode(data, &r); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(s); err != nil {
		return err
	}
	return b.memory.Offer(s.memory, &r, fds)
}
