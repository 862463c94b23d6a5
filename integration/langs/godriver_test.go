package langs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// order is a command as a driver reads it. Every driver does:
//
//	read     make a reader of topic (start "new", "last" or "all"; group)
//	send     send count values from seed on to topic
//	receive  receive one; hold keeps it; answers seed, sequence, lost, readonly
//	put      put count values from seed on into queue
//	take     take one; write fills its first tensor with the seed
//	end      close topic or queue for all
//	set      set name to the value of seed; answers revision
//	get      get name, whose value is of seed; answers revision, and the seed of its meta
//	delete   delete name
//	handle   fill a tensor and answer its handle; in C in huge pages, where pages says so
//	open     open handle, whose tensor is of seed
//	hoard    fill count tensors from seed on and hold them
//	check    look at every word of what is held once more
//	release  check, and let go of what is held
//	close    close the session and open another; what is held stays
//	exec     replace the program by itself, which answers when it is there
//	forget   drop readers, topics and queues
//	quit     close the session and end
//	collect  recycle; answers the bytes given back
//
// The value of a seed: "whole" of so many words, "half" (the second half of the
// same memory), the key "a/b" (path "a~1b") of 3 words of seed+1, and as many more of
// one word as wide says; and the meta {"seed":seed}. With lone it is one tensor of so many
// words by two, and nothing beside it: a receiver has the seed from its first word.
// Topics and queues are made to end with their last user.
type order struct {
	Do, Topic, Queue, Name, Group, Start string
	Seed, Count                          uint64
	Words                                int64
	Wide                                 int
	Depth                                int
	TimeoutMS                            *int64 `json:"timeout_ms"`
	Lossless, Redeliver                  bool
	Hold, Write, Live, Lone              bool
	Handle                               json.RawMessage
}

// goDriver is the Go driver's state.
type goDriver struct {
	c       *client.Client
	topics  map[string]*client.Topic
	queues  map[string]*client.Queue
	readers map[string]*client.Reader
	held    []held
}

// held is what a driver keeps, and how it is looked at again.
type held struct {
	check   func() error
	release func()
}

func drive(p *testkit.Child) error {
	c, err := p.Connect()
	if err != nil {
		return err
	}
	d := &goDriver{c, map[string]*client.Topic{}, map[string]*client.Queue{}, map[string]*client.Reader{}, nil}
	if os.Getenv(envReplaced) != "" {
		if err := p.Say(map[string]any{}); err != nil {
			return err
		}
	}
	for {
		o := order{Count: 1, Words: 1000}
		if err := p.Hear(&o); errors.Is(err, io.EOF) {
			return d.c.Close()
		} else if err != nil {
			return err
		}
		if o.Do == "quit" {
			return d.c.Close()
		}
		patience := testkit.Patience
		if o.TimeoutMS != nil {
			patience = time.Duration(*o.TimeoutMS) * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(p.Context(), patience)
		a, err := d.carryOut(ctx, &o)
		cancel()
		var e *protocol.Error
		if errors.As(err, &e) {
			a = map[string]any{"code": e.Code, "message": e.Error()}
		} else if err != nil {
			a = map[string]any{"broken": err.Error()}
		}
		if a == nil {
			a = map[string]any{}
		}
		if err := p.Say(a); err != nil {
			return err
		}
	}
}

func (d *goDriver) carryOut(ctx context.Context, o *order) (map[string]any, error) {
	switch o.Do {
	case "read":
		return nil, d.read(ctx, o)
	case "send":
		t, err := d.topic(ctx, o)
		if err != nil {
			return nil, err
		}
		return nil, d.sendAll(ctx, o, t.Send)
	case "receive":
		m, err := d.readers[o.Topic].Receive(ctx)
		if err != nil {
			return nil, err
		}
		return d.message(m, o)
	case "put":
		q, err := d.queue(ctx, o)
		if err != nil {
			return nil, err
		}
		return nil, d.sendAll(ctx, o, q.Put)
	case "take":
		q, err := d.queue(ctx, o)
		if err != nil {
			return nil, err
		}
		m, err := q.Get(ctx)
		if err != nil {
			return nil, err
		}
		return d.message(m, o)
	case "end":
		if o.Queue != "" {
			q, err := d.queue(ctx, o)
			if err != nil {
				return nil, err
			}
			return nil, q.End(ctx)
		}
		t, err := d.topic(ctx, o)
		if err != nil {
			return nil, err
		}
		return nil, t.End(ctx)
	case "set", "get", "delete":
		return d.named(ctx, o)
	case "handle", "open":
		return d.handles(ctx, o)
	case "hoard":
		for seed := o.Seed; seed < o.Seed+o.Count; seed++ {
			x, err := d.filled(ctx, seed, o.Words)
			if err != nil {
				return nil, err
			}
			d.held = append(d.held, held{func() error { return verify(x, seed) }, x.Release})
		}
		return nil, nil
	case "check":
		return nil, d.check()
	case "release":
		err := d.check()
		for _, h := range d.held {
			h.release()
		}
		d.held = nil
		return nil, err
	case "close":
		return nil, d.reconnect(ctx)
	case "exec":
		return nil, replaceProgram()
	case "forget":
		return nil, d.forget()
	case "collect":
		return map[string]any{"bytes": d.c.Collect()}, nil
	default:
		return nil, fmt.Errorf("unknown: %s", o.Do)
	}
}

func (d *goDriver) read(ctx context.Context, o *order) error {
	t, err := d.topic(ctx, o)
	if err != nil {
		return err
	}
	opts := []client.ReaderOption{map[string]client.Start{"last": client.StartLast, "all": client.StartAll}[o.Start]}
	if o.Group != "" {
		opts = append(opts, client.Group(o.Group))
	}
	if before := d.readers[o.Topic]; before != nil {
		if err := before.Close(); err != nil {
			return err
		}
	}
	d.readers[o.Topic], err = t.Reader(ctx, opts...)
	return err
}

func (d *goDriver) topic(ctx context.Context, o *order) (_ *client.Topic, err error) {
	if t := d.topics[o.Topic]; t != nil {
		return t, nil
	}
	opts := []client.TopicOption{client.Linger(0)}
	if o.Depth > 0 {
		opts = append(opts, client.Depth(o.Depth))
	}
	if o.Lossless {
		opts = append(opts, client.Overwrite(false))
	}
	t, err := d.c.Topic(ctx, o.Topic, opts...)
	if err == nil {
		d.topics[o.Topic] = t
	}
	return t, err
}

func (d *goDriver) queue(ctx context.Context, o *order) (_ *client.Queue, err error) {
	if q := d.queues[o.Queue]; q != nil {
		return q, nil
	}
	opts := []client.QueueOption{client.Linger(0)}
	if o.Depth > 0 {
		opts = append(opts, client.Depth(o.Depth))
	}
	if o.Redeliver {
		opts = append(opts, client.Redeliver(true))
	}
	q, err := d.c.Queue(ctx, o.Queue, opts...)
	if err == nil {
		d.queues[o.Queue] = q
	}
	return q, err
}

// check looks at every word of what is held once more.
func (d *goDriver) check() error {
	for _, h := range d.held {
		if err := h.check(); err != nil {
			return fmt.Errorf("held: %w", err)
		}
	}
	return nil
}

// reconnect closes the session, with all but what is held, and opens another.
func (d *goDriver) reconnect(ctx context.Context) error {
	clear(d.readers)
	clear(d.topics)
	clear(d.queues)
	if err := d.c.Close(); err != nil {
		return err
	}
	c, err := client.Connect(ctx)
	if err == nil {
		d.c = c
	}
	return err
}

// envReplaced tells a driver that it is one that replaced another by exec.
const envReplaced = "BATON_DRIVER_REPLACED"

// replaceProgram puts the same program into the place of this one, with the same
// standard streams: what was held goes with the memory of the former.
func replaceProgram() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return sys.Exec(self, os.Args, append(os.Environ(), envReplaced+"=1"))
}

func (d *goDriver) forget() (first error) {
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	for _, r := range d.readers {
		note(r.Close())
	}
	for _, t := range d.topics {
		note(t.Close())
	}
	for _, q := range d.queues {
		note(q.Close())
	}
	clear(d.readers)
	clear(d.topics)
	clear(d.queues)
	return first
}
