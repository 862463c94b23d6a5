package broker

import (
	"fmt"
	"reflect"
	"runtime/debug"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// steers are an operator's ops. They change what the broker has and need no session, so that
// they work at a broker that is at a limit. An observer may use none.
var steers = map[string]func(c *conn, data []byte) (any, error){
	protocol.OpNameDelete:     steered(nameOf, (*conn).deleteName),
	protocol.OpPurge:          steered(nil, (*conn).purge),
	protocol.OpTopicDelete:    steered(nil, (*conn).deleteTopic),
	protocol.OpFunctionRemove: steered(nil, (*conn).removeFunction),
	protocol.OpEvict:          steered(nil, (*conn).evict),
	protocol.OpLeaseRevoke:    steered(mayRevoke, (*conn).revoke),
	protocol.OpCollect:        steered(nil, (*conn).collect),
	protocol.OpLimit:          steered(mayLimit, (*conn).limit),
}

// steered makes the handler of such an op: it decodes the request, checks that the connection
// may make it, and holds the mutex. An op that waits releases it meanwhile.
func steered[Request any](may func(*conn, *Request) error, op func(*conn, *Request) (any, error)) func(*conn, []byte) (any, error) {
	return func(c *conn, data []byte) (any, error) {
		var r Request
		if err := decode(data, &r); err != nil {
			return nil, err
		}
		if may != nil {
			if err := may(c, &r); err != nil {
				return nil, err
			}
		}
		b := c.b
		b.mu.Lock()
		defer b.mu.Unlock()
		b.mu.doing(reflect.TypeFor[Request]().Name)
		if err := b.usable(c.session); err != nil {
			return nil, err
		}
		if err := c.abandoned(); err != nil {
			return nil, err
		}
		defer b.noteFiles()
		return op(c, &r)
	}
}

// abandoned is the error for a request whose connection has no other end any more: the command that sent it has told
// its user that it gave up, and may have been followed by another one. Nothing reads the reply. The requests of a
// session that change what others have are such as well; what it had sent and set before it died is carried out.
func (c *conn) abandoned() error {
	if !sys.IsPeerGone(c.w.UnixConn) {
		return nil
	}
	return protocol.Errorf(protocol.CodeCancelled, "ask again", "process %d of user %d has ended its connection before the broker came to its request", c.cred.PID, c.cred.UID)
}

// noteAbandoned writes a line about a request that was not carried out, so that an operator sees it.
func (c *conn) noteAbandoned(op string) {
	c.b.sparing.Warn(c.causer(), "not carried out: the other end of the connection was gone", events.Of(events.Steered), "op", op, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
}

func mayRevoke(c *conn, _ *protocol.LeaseRef) error { return c.owns(protocol.OpLeaseRevoke) }

// nameOf checks a name that a request is about.
func nameOf(_ *conn, r *protocol.NameRef) error { return protocol.CheckName(r.Name) }

func (c *conn) deleteName(r *protocol.NameRef) (any, error) {
	namespace, err := namespaceOf(c.session, r.Namespace)
	if err == nil && c.b.spans(namespace) {
		return done{}, c.deleteFar(namespace, r)
	}
	if err == nil {
		err = c.b.topics.DeleteName(namespace, r, fmt.Sprintf("process %d of user %d", c.cred.PID, c.cred.UID))
	}
	return done{}, err
}

// purge drops what a topic keeps or a queue has waiting.
func (c *conn) purge(r *protocol.TopicByName) (any, error) {
	t, err := c.named(r)
	if err != nil {
		return nil, err
	}
	reply := c.b.topics.About(t)
	reply.Messages, err = c.drop(t)
	if err != nil {
		return nil, err
	}
	c.b.topics.CountDropped(t, topics.DroppedPurged, reply.Messages)
	c.b.log.Info("purged", events.Of(events.Steered), "topic", t.String(), "namespace", t.Namespace(), "messages", reply.Messages, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	return reply, nil
}

// deleteTopic ends a topic or queue for all, and drops what it has.
func (c *conn) deleteTopic(r *protocol.TopicByName) (any, error) {
	if r.ID != 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "purge it with baton purge", "a private topic has no name by which to delete it")
	}
	t, err := c.named(r)
	if err != nil {
		return nil, err
	}
	reply, name, namespace := c.b.topics.About(t), t.String(), t.Namespace()
	c.b.topics.Shut(t)
	reply.Messages, err = c.drop(t)
	if err != nil {
		return nil, err
	}
	c.b.topics.CountDropped(t, topics.DroppedDeleted, reply.Messages)
	c.b.topics.Delete(t)
	c.b.log.Info("deleted", events.Of(events.Steered), "topic", name, "namespace", namespace, "messages", reply.Messages, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	return reply, nil
}

// removeFunction ends what all its providers are.
func (c *conn) removeFunction(r *protocol.FunctionByName) (any, error) {
	namespace, err := namespaceOf(c.session, r.Namespace)
	if err != nil {
		return nil, err
	}
	reply, err := c.b.topics.RemoveFunction(namespace, r, func(uid uint32) error {
		if c.cred.UID == uid {
			return nil
		}
		return c.owns(protocol.OpFunctionRemove)
	})
	if err == nil {
		c.b.log.Info("function removed", events.Of(events.Steered), "function", r.Name, "namespace", namespace, "providers", reply.Providers, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	}
	return reply, err
}

func (c *conn) named(r *protocol.TopicByName) (*topics.Topic, error) {
	namespace, err := namespaceOf(c.session, r.Namespace)
	if err != nil {
		return nil, err
	}
	return c.b.topics.Named(namespace, r)
}

// drop drops all messages that a topic has now, a part of them at a time: others have the mutex
// in between.
func (c *conn) drop(t *topics.Topic) (n uint64, err error) {
	p := c.b.topics.Purge(t)
	for !p.Step(lookTime) {
		c.b.mu.Unlock()
		c.b.mu.Lock()
		if err := c.b.usable(c.session); err != nil {
			return p.Dropped, err
		}
	}
	return p.Dropped, nil
}

// revoke ends a lease, whichever session made it.
func (c *conn) revoke(r *protocol.LeaseRef) (any, error) {
	reply, err := c.b.leases.Revoke(r)
	if err == nil {
		c.b.log.Info("lease revoked", events.Of(events.Steered), "lease", r.Lease, "maker", reply.Maker, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	}
	return reply, err
}

// collectBatch is how many sessions are notified with the mutex held.
const collectBatch = 256

// collect asks all sessions for what they were granted and do not need, and gives back what
// the broker itself does not need.
func (c *conn) collect(r *protocol.Collect) (any, error) {
	b := c.b
	if !r.Again {
		b.log.Info("programs are asked to give memory back", events.Of(events.Steered), "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	}
	reply := protocol.CollectReply{Granted: b.memory.Use().Granted}
	for slot := 0; slot < len(b.used()); slot++ {
		if slot%collectBatch == collectBatch-1 {
			b.mu.Unlock()
			b.mu.Lock()
		}
		if s := b.slots[slot]; s != nil && !s.ended && s.conn != nil {
			s.Collect()
			reply.Sessions++
		}
	}
	b.reapSoon()
	b.clock.After(restAfterMany, func() { go debug.FreeOSMemory() })
	return reply, nil
}

// opPing tells that the broker answers, and whether clients should come.
func (b *Broker) opPing(*session, []byte) (any, []*sys.FD, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	reply := protocol.PingReply{Instance: b.id, Version: b.cfg.Version, PID: processID, State: protocol.BrokerServes}
	switch {
	case b.closing:
		reply.State = protocol.BrokerEnding
	case b.taking != nil || !b.begun:
		reply.State = protocol.BrokerTakingOver
	}
	return reply, nil, nil
}
