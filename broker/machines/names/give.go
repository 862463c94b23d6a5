package names

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// Subject is where other hosts ask for names, behind that of this host.
	Subject = "name"
	// holdTime is how long storages are held for a host that has asked and says no more.
	holdTime = 10 * time.Second
	// mostHeld bounds the revisions that are held for other hosts, mostAsked what one of them may send.
	mostHeld  = 4096
	mostAsked = 4 << 10
	// mostInline is how long a description may be in an answer; a longer one is fetched.
	mostInline = 64 << 10
	// giveTime is how long an answer may take.
	giveTime = 5 * time.Second
)

// question asks for the present revision of a name, or says that it is here.
type question struct {
	Host string `json:"host"` // that asks
	Name string `json:"name"`
	Done bool   `json:"done,omitempty"`
}

// answer gives it. What describes it stands here, or in a storage.
type answer struct {
	Error       *protocol.Error  `json:"error,omitempty"`
	Description *description     `json:"description,omitempty"`
	Stored      *protocol.Handle `json:"stored,omitempty"`
}

// description is a revision as another host publishes it.
type description struct {
	Revision uint64    `json:"revision"`
	Age      uint64    `json:"age"` // ns
	Bucket   uint64    `json:"bucket"`
	Setter   string    `json:"setter"`
	Bytes    uint64    `json:"bytes"`
	Tensors  uint16    `json:"tensors"`
	Body     []byte    `json:"body"`
	Storages []storage `json:"storages"`
}

// storage is a storage of the host that describes.
type storage struct {
	Segment    uint64 `json:"segment"`
	Serial     uint64 `json:"serial"`
	Index      uint32 `json:"index"`
	Generation uint64 `json:"generation"`
	Offset     uint64 `json:"offset"`
	Bytes      uint64 `json:"bytes"`
}

// give answers other hosts, and holds what they are about to fetch.
type give struct {
	n    *Names
	mu   sync.Mutex
	held map[heldKey]*heldValue
}

type heldKey struct{ ns, host, name string }

type heldValue struct {
	release func()
	late    *time.Timer
}

// Answer answers a question of another host in a namespace. It may take a while.
func (n *Names) Answer(ns string, data []byte) []byte {
	select {
	case <-n.started:
	default:
		return nil // it is asked again
	}
	a, err := n.give.answer(ns, data)
	if err != nil {
		a = &answer{Error: machines.Refusal(err)}
	}
	text, err := json.Marshal(a)
	if err != nil {
		return nil
	}
	return text
}

func (g *give) answer(ns string, data []byte) (*answer, error) {
	var q question
	if len(data) > mostAsked || json.Unmarshal(data, &q) != nil {
		return nil, protocol.Errorf(protocol.CodeProtocol, "update the other host", "a question that cannot be read")
	}
	if err := protocol.CheckName(q.Name); err != nil {
		return nil, err
	}
	if !g.n.Spans(ns) || len(q.Host) > protocol.MaxHost {
		return nil, protocol.Errorf(protocol.CodePermission, "start its broker with this namespace in --span", "this host does not span the namespace %s", ns)
	}
	key := heldKey{ns, q.Host, q.Name}
	if q.Done {
		g.drop(key, nil)
		return &answer{}, nil
	}
	v, release, found, err := g.n.cfg.Local.Hold(ns, q.Name)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, protocol.Errorf(protocol.CodeExpired, "ask another host", "name %s is not here", q.Name)
	}
	if err := mayGive(q.Name, &v); err != nil {
		release()
		return nil, err
	}
	if err := g.hold(key, release); err != nil {
		return nil, err
	}
	return g.describe(ns, &v)
}

// mayGive refuses what stays on its host.
func mayGive(name string, v *Value) error {
	if v.Live {
		return protocol.Errorf(protocol.CodeUnsupported, "read it there, or set a copy under a name that is not live", "name %s is live: its tensors are written in place, on their machine", name)
	}
	body, err := protocol.ParseBody(v.Body)
	if err != nil {
		return err
	}
	for i := range body.Tensors {
		if t := &body.Tensors[i]; t.DeviceType != 1 {
			return protocol.Errorf(protocol.CodeUnsupported, "set a copy in the machine's memory there", "name %s has the tensor %q on a device", name, t.Name)
		}
	}
	return nil
}

// describe writes an answer, with the description in a storage of its own if it is long.
func (g *give) describe(ns string, v *Value) (*answer, error) {
	d := &description{Revision: v.Agreed.Revision, Age: v.Agreed.Age, Bucket: v.Agreed.Bucket, Setter: v.Setter, Bytes: v.Bytes, Tensors: v.Tensors, Body: v.Body, Storages: []storage{}}
	for _, st := range v.Storages {
		d.Storages = append(d.Storages, storage(st))
	}
	if len(v.Body)+256*len(v.Storages) <= mostInline {
		return &answer{Description: d}, nil
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(g.n.ctx, giveTime)
	defer cancel()
	f, err := g.n.hosts.Make(ctx, ns, uint64(len(text)))
	if err != nil {
		return nil, err
	}
	defer f.Release()
	copy(f.Bytes(), text)
	h, err := f.Handle(ctx) // its lease holds it until it is fetched
	if err != nil {
		return nil, err
	}
	h.DType, h.Shape, h.Strides, h.ByteOffset = "uint8", []int64{int64(len(text))}, nil, 0
	return &answer{Stored: &h}, nil
}

// hold holds a revision for a host, in the place of the one before.
func (g *give) hold(key heldKey, release func()) error {
	h := &heldValue{release: release}
	g.mu.Lock()
	before := g.held[key]
	if before == nil && len(g.held) >= mostHeld {
		g.mu.Unlock()
		release()
		return protocol.Errorf(protocol.CodeBusy, "try again", "%d names are being given to other hosts", mostHeld)
	}
	g.held[key] = h
	h.late = time.AfterFunc(holdTime, func() { g.drop(key, h) })
	g.mu.Unlock()
	if before != nil {
		before.end()
	}
	return nil
}

// drop lets go of what is held under a key, or only of one that is still there.
func (g *give) drop(key heldKey, only *heldValue) {
	g.mu.Lock()
	h := g.held[key]
	if h == nil || only != nil && h != only {
		g.mu.Unlock()
		return
	}
	delete(g.held, key)
	g.mu.Unlock()
	h.end()
}

func (h *heldValue) end() {
	h.late.Stop()
	h.release()
}

func (g *give) close() {
	g.mu.Lock()
	all := g.held
	g.held = map[heldKey]*heldValue{}
	g.mu.Unlock()
	for _, h := range all {
		h.end()
	}
}
