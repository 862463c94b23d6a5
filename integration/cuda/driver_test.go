package cuda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/integration/cuda/standin"
	"github.com/baton-ipc/baton/protocol"
)

func init() { roles["driver"] = on(drive) }

// order is what a driver is asked to do, with tensors on the GPU whose bytes are all
// one number. Every language has a driver that does:
//
//	put      put count tensors of seed, seed+1… into queue, by a stream
//	take     take count out of queue and read them by a stream; hold keeps them, unread
//	         does so with messages of whose tensors nothing is asked yet, and sees how many
//	         were lost before each
//	wait     take one, let a stream wait for it, and wait until it is written
//	pass     take one and put it back, for which there is a tenth of a second
//	follow   take a message, let a stream use each of its tensors, twice, and tell how often
//	         the driver was told to wait
//	held     read what is held; release lets it go
//	set get delete   a name
//	handle open      a handle
//	alloc    allocate bytes on device and let them go
//	ordered  tell whether streams wait for each other (1) or the processor (0)
//	calls    tell how often the driver was called
//	look     look at a tensor's bytes with the processor; in C nothing is in the way
//	lend     as put, of memory that another library allocated, not copied
//	free     free what was lent, once no session has it
type order struct {
	Do, Queue, Name, Handle, Device string
	Seed, Count                     int
	Bytes                           int64
	Hold, Unread                    bool
}

type answer struct {
	Code, Message, Broken, Handle string
	Seen                          []any
}

// drive is the driver in Go.
func drive(w *worker) error {
	d := &driver{worker: w, queues: map[string]*client.Queue{}}
	for {
		o := order{Count: 1, Bytes: 4096, Device: "cuda:0"}
		if err := w.Hear(&o); errors.Is(err, io.EOF) {
			d.release()
			return nil
		} else if err != nil {
			return err
		}
		if err := w.Say(told(d.carryOut(&o))); err != nil {
			return err
		}
	}
}

// told is how an outcome is written.
func told(a answer, err error) answer {
	var e *protocol.Error
	if errors.As(err, &e) {
		return answer{Code: string(e.Code), Message: e.Error()}
	} else if err != nil {
		return answer{Broken: err.Error()}
	}
	return a
}

type driver struct {
	*worker
	queues map[string]*client.Queue
	held   []*client.Message
	lent   []lent
}

// lent is an allocation of another library's.
type lent struct {
	at    uint64
	letGo chan struct{}
}

// before is how many bytes of an allocation lie before what is lent of it.
const before = 1000

// lend lends memory of cudaMalloc's whose bytes are all one number.
func (d *driver) lend(o *order, seed int) (*client.Tensor, error) {
	at, err := d.gpu.Malloc(before + uint64(o.Bytes))
	if err != nil {
		return nil, err
	}
	if err := d.gpu.Fill(at+before, byte(seed), uint64(o.Bytes), d.stream); err != nil {
		return nil, err
	}
	l := lent{at, make(chan struct{})}
	d.lent = append(d.lent, l)
	v := dlpack.View{Device: dlpack.Device{Type: dlpack.CUDA}, DType: dlpack.Uint8, Shape: []int64{o.Bytes}, Strides: []int64{1}, Data: uintptr(at), ByteOffset: before}
	return d.c.Lend(d.ctx, v, func() { close(l.letGo) }, client.Stream(d.stream))
}

// free frees what was lent, once no session has it.
func (d *driver) free() error {
	for _, l := range d.lent {
		<-l.letGo
		if err := d.gpu.SynchronizeStream(d.stream); err != nil {
			return err
		}
		if err := d.gpu.Free(l.at); err != nil {
			return err
		}
	}
	d.lent = nil
	return nil
}

func (d *driver) release() {
	for _, m := range d.held {
		m.Release()
	}
	d.held = nil
}

func (d *driver) queue(name string) (*client.Queue, error) {
	if q := d.queues[name]; q != nil {
		return q, nil
	}
	q, err := d.c.Queue(d.ctx, name, client.Depth(4), soon)
	d.queues[name] = q
	return q, err
}

func (d *driver) get(name string) (*client.Message, error) {
	q, err := d.queue(name)
	if err != nil {
		return nil, err
	}
	return q.Get(d.ctx)
}

func (d *driver) filled(o *order, seed int) (*client.Tensor, error) {
	t, err := d.alloc(o.Bytes)
	if err == nil {
		err = d.fill(t, byte(seed))
	}
	return t, err
}

// read returns the number that all bytes of tensors are.
func (d *driver) read(all ...*client.Tensor) (a answer, err error) {
	for _, t := range all {
		at, err := t.Pointer()
		if err != nil {
			return a, err
		}
		if err := t.UseOn(client.Stream(d.stream)); err != nil {
			return a, err
		}
		got := make([]byte, t.NumBytes())
		if err := d.gpu.CopyOut(got, at, d.stream); err != nil {
			return a, err
		}
		if !bytes.Equal(got, bytes.Repeat(got[:1], len(got))) {
			a.Seen = append(a.Seen, "a mixture")
		} else {
			a.Seen = append(a.Seen, got[0])
		}
	}
	return a, nil
}

func (d *driver) carryOut(o *order) (a answer, err error) {
	switch o.Do {
	case "free":
		return a, d.free()
	case "put", "lend":
		make := d.filled
		if o.Do == "lend" {
			make = d.lend
		}
		q, err := d.queue(o.Queue)
		for i := 0; i < o.Count && err == nil; i++ {
			var t *client.Tensor
			if t, err = make(o, o.Seed+i); err == nil {
				err = q.Put(d.ctx, t, client.Stream(d.stream))
				if i%2 == 0 && err == nil { // released when its stream has passed, or before
					err = d.gpu.SynchronizeStream(d.stream)
				}
				t.Release()
			}
		}
		return a, err
	case "take":
		q, err := d.queue(o.Queue)
		for i := 0; i < o.Count && err == nil; i++ {
			var m *client.Message
			if m, err = q.Get(d.ctx); err != nil {
				break
			}
			if o.Unread {
				a.Seen = append(a.Seen, m.Lost)
				d.held = append(d.held, m)
				continue
			}
			var one answer
			one, err = d.read(m.Tensor())
			a.Seen = append(a.Seen, one.Seen...)
			if o.Hold {
				d.held = append(d.held, m)
			} else {
				m.Release()
			}
		}
		return a, err
	case "wait":
		m, err := d.get(o.Queue)
		if err != nil {
			return a, err
		}
		defer m.Release()
		if err := m.Tensor().UseOn(client.Stream(d.stream)); err != nil {
			return a, err
		}
		return a, m.Tensor().Written(d.ctx)
	case "pass":
		m, err := d.get(o.Queue)
		if err != nil {
			return a, err
		}
		defer m.Release()
		ctx, cancel := context.WithTimeout(d.ctx, 100*time.Millisecond)
		defer cancel()
		return a, d.queues[o.Queue].Put(ctx, m.Tensor(), client.Stream(d.stream))
	case "ordered":
		t, err := d.filled(o, 1)
		if err != nil {
			return a, err
		}
		defer t.Release()
		a.Seen = []any{0}
		if t.OrderedByStreams() {
			a.Seen = []any{1}
		}
		return a, nil
	case "follow":
		m, err := d.get(o.Queue)
		if err != nil {
			return a, err
		}
		d.held = append(d.held, m)
		b, err := m.Bundle()
		if err != nil {
			return a, err
		}
		before, err := standin.Calls("cuStreamWaitValue64_v2")
		for _, t := range slices.Concat(b.Tensors(), b.Tensors()) {
			if err == nil {
				err = t.UseOn(client.Stream(d.stream))
			}
		}
		if err != nil {
			return a, err
		}
		after, err := standin.Calls("cuStreamWaitValue64_v2")
		a.Seen = []any{len(b.Tensors()), after - before}
		return a, err
	case "held":
		for _, m := range d.held {
			one, err := d.read(m.Tensor())
			if err != nil {
				return a, err
			}
			a.Seen = append(a.Seen, one.Seen...)
		}
		return a, nil
	case "release":
		d.release()
		return a, nil
	case "set":
		t, err := d.filled(o, o.Seed)
		if err == nil {
			_, err = d.c.Set(d.ctx, o.Name, t)
			t.Release()
		}
		return a, err
	case "get":
		b, err := d.c.Get(d.ctx, o.Name)
		if err != nil {
			return a, err
		}
		defer b.Release()
		return d.read(b.Tensors()...)
	case "delete":
		return a, d.c.Delete(d.ctx, o.Name)
	case "handle":
		t, err := d.filled(o, o.Seed)
		if err != nil {
			return a, err
		}
		defer t.Release()
		h, err := t.Handle(d.ctx, client.LeaseSession())
		if err != nil {
			return a, err
		}
		b, err := json.Marshal(h)
		a.Handle = string(b)
		return a, err
	case "open":
		var h protocol.Handle
		if err := json.Unmarshal([]byte(o.Handle), &h); err != nil {
			return a, err
		}
		t, err := d.c.Open(d.ctx, h)
		if err != nil {
			return a, err
		}
		defer t.Release()
		return d.read(t)
	case "alloc":
		t, err := d.c.Alloc(d.ctx, dlpack.Uint8, []int64{o.Bytes}, client.Device(o.Device))
		if err == nil {
			t.Release()
		}
		return a, err
	case "calls":
		n, err := standin.Calls("")
		a.Seen = []any{n}
		return a, err
	default:
		return a, fmt.Errorf("unknown: %s", o.Do)
	}
}
