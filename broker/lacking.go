package broker

import (
	"bytes"
	"errors"
	"time"

	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// takesMemory are the requests of a session that are refused for want of memory. Before that, sessions are asked for
// memory that nothing holds: the request is carried out once more when they have answered. last: it has waited for that.
var takesMemory = map[string]func(b *Broker, s *session, data []byte, last bool) (any, []*sys.FD, error){
	protocol.OpGrant: taking(func(b *Broker, s *session, r *protocol.Grant, last bool) (any, []*sys.FD, error) {
		return b.memory.Grant(s.memory, r, last)
	}),
	protocol.OpTopicWrite: taking(func(b *Broker, s *session, r *protocol.TopicWrite, last bool) (any, []*sys.FD, error) {
		reply, err := b.topics.Write(s.party, r, last)
		return reply, nil, err
	}),
}

func taking[Request any](op func(*Broker, *session, *Request, bool) (any, []*sys.FD, error)) func(*Broker, *session, []byte, bool) (any, []*sys.FD, error) {
	return func(b *Broker, s *session, data []byte, last bool) (any, []*sys.FD, error) {
		return locked(func(b *Broker, s *session, r *Request) (any, []*sys.FD, error) { return op(b, s, r, last) })(b, s, data)
	}
}

// waitsForMemory tells whether a request is to be carried out once more when sessions have given back what they do not
// need, and has that done. Other requests of the connection are carried out meanwhile: what is asked for may be the
// session's own to give back. Where too many wait already this one is carried out at once. The caller has c.answering.
func (c *conn) waitsForMemory(h head, data []byte, began time.Time, err error) bool {
	var later *memory.Later
	if !errors.As(err, &later) {
		return false
	}
	data = bytes.Clone(data) // the next frame is read into it
	again := func() {
		defer c.fetches.running.Add(-1)
		c.answering.Lock()
		defer c.answering.Unlock()
		ok, fds, err := takesMemory[h.Op](c.b, c.session, data, true)
		err = c.b.nameAbsentees(err)
		c.carriedOut(h.Op, data, began, err)
		c.answerLate(h.ID, ok, fds, err)
	}
	if c.fetches.running.Add(1) > mostFetches {
		go again()
		return true
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	c.b.memory.AfterRound(later, func() { go again() })
	return true
}
