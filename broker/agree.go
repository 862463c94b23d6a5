package broker

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/protocol"
)

// Names agrees with other hosts on names. Its methods are called without the broker's mutex held, but for Ended and Here,
// which return at once.
type Names interface {
	// Set agrees on a revision that is held here, within its own time where the context has no deadline. It calls Won or
	// Lost of the setting, one of them and once: before it returns, or later if it returns since it does not know. With
	// ErrAskNext it may call neither.
	Set(ctx context.Context, s NameSetting) (revision uint64, err error)
	// Delete takes a name away on all hosts, within a time as of Set.
	Delete(ctx context.Context, namespace, name string) error
	// Here tells whether a session that opens a name finds all that it may see.
	Here(namespace, name string) bool
	// Await waits for that. ErrAskNext, as of Set.
	Await(ctx context.Context, namespace, name string) error
	// Ended deletes a name whose revision of a number goes with a session that has ended.
	Ended(namespace, name string, revision uint64)
	// NameState describes how far a name is the same on all hosts, "" if there is nothing to say.
	NameState(namespace, name string) string
	// Far lists the names of a namespace that are set on other hosts and not here, in order; "*": of all that are known.
	Far(namespace string) []NameRow
}

// ErrAskNext says that the broker ends: the request is not answered, and the client asks the next broker.
var ErrAskNext = errors.New("the broker ends")

// NameSetting is a revision to be agreed on.
type NameSetting struct {
	Namespace, Name string
	Number          uint64 // of the request: one that is made again has the same
	Replaces        uint64 // the revision that has to be set now; 0: any, or none
	Bytes           uint64
	Tensors         uint16
	Ephemeral       bool
	Setter          string
	// Won publishes it here, Lost lets it go.
	Won  func(protocol.Agreed)
	Lost func()
}

// nameOpenTime is how long a session that opens a name waits for what is on other hosts.
const nameOpenTime = protocol.DefaultFetch * time.Second

// atMost is nameOpenTime, or so many seconds if that is less; 0: its request does not say.
func atMost(seconds float64) time.Duration {
	if !(seconds > 0) {
		return nameOpenTime
	}
	return time.Duration(min(seconds, nameOpenTime.Seconds()) * float64(time.Second))
}

// SetNames says what agrees on names with other hosts, once.
func (b *Broker) SetNames(n Names) {
	b.names = n
	close(b.namesAre)
}

// spans tells whether the names of a namespace span several hosts.
func (b *Broker) spans(namespace string) bool { return b.cfg.Span != nil && b.cfg.Span(namespace) }

// whenNames calls something with what agrees on names, at once or when it is there.
func (b *Broker) whenNames(do func(Names)) {
	select {
	case <-b.namesAre:
		do(b.names)
	default:
		go func() {
			select {
			case <-b.namesAre:
				do(b.names)
			case <-b.quit:
			}
		}()
	}
}

// agree carries a request out that is about a name of several hosts. It is answered once the others have answered; other
// requests of the connection go on meanwhile. It returns false for any other request.
func (c *conn) agree(op string, id uint64, data []byte) bool {
	if op != protocol.OpNameSet && op != protocol.OpNameOpen || !c.b.spans(c.session.namespace) {
		return false
	}
	began := time.Now()
	ended := func(ok any, err error) {
		err = c.b.nameAbsentees(err)
		c.carriedOut(op, data, began, err)
		c.answerLate(id, ok, nil, err)
	}
	if c.fetches.running.Add(1) > mostFetches {
		c.fetches.running.Add(-1)
		ended(nil, protocol.Errorf(protocol.CodeTooMany, "wait for some of them", "%d requests that other hosts are asked about are under way already", mostFetches))
		return true
	}
	if op == protocol.OpNameSet {
		c.setFar(data, ended)
	} else {
		c.openFar(data, ended)
	}
	return true
}

// late runs something once names can be agreed on, and then answers. Its context ends with its client's connection.
func (c *conn) late(most time.Duration, work func(context.Context) (any, error), ended func(any, error)) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), most)
		defer cancel()
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-c.ended:
				cancel()
			case <-over:
			}
		}()
		var ok any
		var err error
		select {
		case <-c.b.namesAre:
			ok, err = work(ctx)
		case <-ctx.Done():
			err = protocol.Errorf(protocol.CodeUnreachable, "look at baton status, and try again", "this broker does not reach other hosts yet")
		}
		c.fetches.running.Add(-1)
		if err != ErrAskNext {
			ended(ok, err)
		}
	}()
}

func (c *conn) setFar(data []byte, ended func(any, error)) {
	b := c.b
	var r protocol.NameSet
	pending, err := func() (*topics.Pending, error) {
		if err := decode(data, &r); err != nil {
			return nil, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.mu.doing(reflect.TypeFor[protocol.NameSet]().Name)
		if err := b.usable(c.session); err != nil {
			return nil, err
		}
		defer b.noteFiles()
		return b.topics.HoldSet(c.session.party, &r)
	}()
	if err != nil {
		c.fetches.running.Add(-1)
		ended(nil, err)
		return
	}
	if r.Setting == 0 {
		r.Setting = protocol.RandomNumber()
	}
	locked := func(do func()) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.closing { // else its successor counts anew, and its client asks it
			do()
		}
	}
	s := NameSetting{Namespace: c.session.namespace, Name: r.Name, Number: r.Setting, Replaces: r.Replaces, Bytes: r.Bytes, Tensors: r.Tensors, Ephemeral: r.Ephemeral,
		Setter: c.session.party.Who(),
		Won:    func(a protocol.Agreed) { locked(func() { b.topics.PublishSet(pending, a) }) },
		Lost:   func() { locked(func() { b.topics.DropSet(pending) }) }}
	begun := false
	c.late(atMost(r.Seconds), func(context.Context) (any, error) {
		begun = true
		// Not the context of the connection: others may have the revision already.
		ctx, cancel := agreeing(r.Seconds)
		defer cancel()
		revision, err := b.names.Set(ctx, s)
		return protocol.NameSetReply{Revision: revision}, err
	}, func(ok any, err error) {
		if !begun {
			s.Lost()
		}
		ended(ok, err)
	})
}

func (c *conn) openFar(data []byte, ended func(any, error)) {
	ok, _, err := func() (any, any, error) {
		c.answering.Lock()
		defer c.answering.Unlock()
		ok, fds, err := ops[protocol.OpNameOpen](c.b, c.session, data)
		return ok, fds, err
	}()
	info, is := ok.(protocol.TopicInfo)
	here := false
	select {
	case <-c.b.namesAre:
		here = is && c.b.names.Here(c.session.namespace, info.Name)
	default:
	}
	if err != nil || here {
		c.fetches.running.Add(-1)
		ended(ok, err)
		return
	}
	namespace := c.session.namespace
	var r protocol.NameOpen
	_ = decode(data, &r) // as the op has just done
	c.late(atMost(r.Seconds), func(ctx context.Context) (any, error) {
		err := c.b.names.Await(ctx, namespace, info.Name)
		if err != nil {
			c.b.mu.Lock()
			defer c.b.mu.Unlock()
			if c.b.usable(c.session) == nil {
				c.b.topics.LeaveRole(c.session.party, &protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: info.Opening})
			}
		}
		return info, err
	}, ended)
}

// agreeing is the context of what hosts agree on, within so many seconds; 0: it has no deadline.
func agreeing(seconds float64) (context.Context, context.CancelFunc) {
	if !(seconds > 0) {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(min(seconds, mostFetchTime.Seconds())*float64(time.Second)))
}

// deleteFar deletes a name on all hosts. The mutex is released meanwhile.
func (c *conn) deleteFar(namespace string, r *protocol.NameRef) error {
	b := c.b
	ctx, cancel := agreeing(r.Seconds)
	defer cancel()
	b.mu.Unlock()
	defer b.mu.Lock()
	select {
	case <-b.namesAre:
		return b.names.Delete(ctx, namespace, r.Name)
	case <-c.ended:
	case <-time.After(atMost(r.Seconds)):
	}
	return protocol.Errorf(protocol.CodeUnreachable, "look at baton status, and try again", "this broker does not reach other hosts yet")
}

// NameValue is what stands here of a name, for another host.
type NameValue struct {
	Agreed   protocol.Agreed
	Live     bool
	Setter   string
	Bytes    uint64
	Tensors  uint16
	Body     []byte
	Storages []protocol.Storage
}

// HoldName describes the present revision of a name on which hosts have agreed, and holds its storages until release is
// called. found: there is one.
func (b *Broker) HoldName(namespace, name string) (v NameValue, release func(), found bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics.FindName(namespace, name)
	a := b.topics.Agreed(namespace, name)
	if t == nil || !a.Set || a.Agreed.Revision == 0 || b.closing {
		return v, nil, false, nil
	}
	lane, revision, _ := t.Revision()
	var c copied
	var m protocol.TupleMessage
	c.reset()
	if !c.message(b, lane, revision, &m) {
		return v, nil, false, protocol.Errorf(protocol.CodeBusy, "try again", "name %s cannot be read now", name)
	}
	v = NameValue{Agreed: a.Agreed, Live: a.Live, Setter: t.Setter(), Bytes: a.Bytes, Tensors: a.Tensors, Body: m.Body, Storages: m.Storages}
	held, err := b.topics.HoldStorages(m.Storages)
	if err != nil {
		return v, nil, false, err
	}
	return v, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.closing {
			b.topics.LetHolding(held)
		}
	}, true, nil
}

// PublishName publishes a revision of another host, and redeems the leases of what it names, which hold that until then.
func (b *Broker) PublishName(namespace string, r *protocol.NameSet, a protocol.Agreed, setter string, leases []uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return errEnding
	}
	err := b.topics.PublishFar(namespace, r, a, setter)
	for _, lease := range leases {
		if e := b.leases.Claim(&protocol.LeaseRef{Lease: lease}); e != nil {
			b.log.Debug("a lease of what came from another host is over", "lease", lease, "error", e)
		}
	}
	return err
}

// RenumberName publishes the present revision of a name anew, by another number.
func (b *Broker) RenumberName(namespace, name string, a protocol.Agreed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closing {
		b.topics.Renumber(namespace, name, a)
	}
}

// DeletedName takes a name away that was deleted on another host. before is the number of the deletion.
func (b *Broker) DeletedName(namespace, name string, before uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closing {
		b.topics.UnsetAgreed(namespace, name, before, "another host, or this one")
	}
}

// EvictName lets a revision go that no session has open, and tells how many bytes it named: one that came from another
// host, or any if it was replaced there.
func (b *Broker) EvictName(namespace, name string, replaced bool) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return 0
	}
	return b.topics.EvictAgreed(namespace, name, replaced)
}

// AgreedName tells what stands here of a name.
func (b *Broker) AgreedName(namespace, name string) topics.AgreedName {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics.Agreed(namespace, name)
}

// AgreedNames lists what stands here of a namespace.
func (b *Broker) AgreedNames(namespace string) map[string]topics.AgreedName {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]topics.AgreedName{}
	b.topics.EachAgreed(namespace, func(name string, a topics.AgreedName) { all[name] = a })
	return all
}

// AgreedNamespaces are those that have names on which hosts have agreed.
func (b *Broker) AgreedNamespaces() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics.AgreedNamespaces()
}

// StaleName notes whether a newer revision of a name may be set on another host.
func (b *Broker) StaleName(namespace, name string, stale bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closing {
		b.topics.SetStale(namespace, name, stale)
	}
}
