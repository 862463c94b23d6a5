package hosts

import (
	"bytes"
	"context"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cmd/baton/internal/ownsessions"
	"github.com/baton-ipc/baton/protocol"
)

// Local is the broker as its part for names of several hosts has it.
type Local struct {
	b *broker.Broker
	m *Memory
}

// NewLocal makes it.
func NewLocal(b *broker.Broker, m *Memory) *Local { return &Local{b, m} }

// Hold gives the present revision of a name.
func (l *Local) Hold(ns, name string) (v names.Value, release func(), found bool, err error) {
	n, release, found, err := l.b.HoldName(ns, name)
	return names.Value(n), release, found, err
}

// Publish publishes a revision of another host.
func (l *Local) Publish(ns string, r *protocol.NameSet, a protocol.Agreed, setter string, leases []uint64) error {
	return l.b.PublishName(ns, r, a, setter, leases)
}

// Read copies the bytes of a storage that was fetched.
func (l *Local) Read(ctx context.Context, ns string, h protocol.Handle) ([]byte, error) {
	var read []byte
	err := l.m.with(ctx, ns, func(s *ownsessions.Session) error {
		t, err := s.Client().Open(ctx, h, client.OpenReadOnly())
		if err != nil {
			return err
		}
		defer t.Release()
		b, err := t.Bytes()
		if err != nil {
			return err
		}
		read = bytes.Clone(b)
		l.m.sessions.Release(s)
		return nil
	})
	return read, err
}

// Renumber publishes the present revision of a name anew.
func (l *Local) Renumber(ns, name string, a protocol.Agreed) { l.b.RenumberName(ns, name, a) }

// Deleted takes a name away.
func (l *Local) Deleted(ns, name string, before uint64) { l.b.DeletedName(ns, name, before) }

// Evict lets a revision go that no session has open.
func (l *Local) Evict(ns, name string, replaced bool) uint64 {
	return l.b.EvictName(ns, name, replaced)
}

// State tells what stands here of a name.
func (l *Local) State(ns, name string) names.State { return stateOf(l.b.AgreedName(ns, name)) }

// States tells so of all of a namespace.
func (l *Local) States(ns string) map[string]names.State {
	all := map[string]names.State{}
	for name, a := range l.b.AgreedNames(ns) {
		all[name] = stateOf(a)
	}
	return all
}

func stateOf(a topics.AgreedName) names.State {
	return names.State{Agreed: a.Agreed, Set: a.Set, Open: a.Open, Foreign: a.Foreign}
}

// Namespaces are those that have names on which hosts have agreed.
func (l *Local) Namespaces() []string { return l.b.AgreedNamespaces() }

// Stale notes whether a newer revision of a name may be set on another host.
func (l *Local) Stale(ns, name string, stale bool) { l.b.StaleName(ns, name, stale) }

// Agreeing is what agrees on names, as the broker has it.
type Agreeing struct{ *names.Names }

// Far lists the names that are set on other hosts and not here.
func (a Agreeing) Far(ns string) (rows []broker.NameRow) {
	for _, r := range a.Names.Far(ns) {
		rows = append(rows, broker.NameRow{Name: r.Name, Namespace: r.Namespace, Revision: r.Revision, Bytes: r.Bytes, Tensors: r.Tensors, Ephemeral: r.Ephemeral, Setter: r.Setter, Hosts: r.State, Far: true})
	}
	return rows
}

// Set agrees on a revision.
func (a Agreeing) Set(ctx context.Context, s broker.NameSetting) (uint64, error) {
	revision, err := a.Names.Set(ctx, names.Setting(s))
	return revision, orAskNext(err)
}

// Await waits until what a reader of a name may see is here.
func (a Agreeing) Await(ctx context.Context, ns, name string) error {
	return orAskNext(a.Names.Await(ctx, ns, name))
}

// orAskNext leaves unanswered what ends with the broker.
func orAskNext(err error) error {
	if err == names.ErrEnds {
		return broker.ErrAskNext
	}
	return err
}
