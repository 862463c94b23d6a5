package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// A hostile process that writes noise into every page that it may write, in the
// way named, while honest ones share its topics: they must not fail, must go on,
// and every tensor of an honest sender must be right. When it has died nothing
// of it may be left.
func TestNoiseInEveryPageOfAHostileProcess(t *testing.T) {
	for _, attack := range []string{"slots", "lane", "refcounts", "entries", "parked", "bells", "group", "segment", "head", "everything"} {
		t.Run(attack, func(t *testing.T) { underAttack(t, attack) })
	}
}

const hostileName = "hostile"

var (
	commons = channel{Topic: "commons", Depth: 8, Linger: time.Millisecond}                 // the hostile one sends and reads
	council = channel{Topic: "council", Depth: 4, Lossless: true, Linger: time.Millisecond} // it is in the group "mixed"
	safe    = channel{Topic: "safe", Depth: 8, Lossless: true, Linger: time.Millisecond}    // it has no part in it
)

func underAttack(t *testing.T, attack string) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect(client.WithName("staying"))
	var open []*client.Topic
	for _, k := range []channel{commons, council, safe} {
		topic, err := k.openTopic(ctx, c)
		require.NoError(t, err)
		open = append(open, topic)
	}
	var honest []*testkit.Process
	join := func() {
		p := b.Start("citizen", fmt.Sprint("honest-", len(honest)))
		p.Next(new(progress))
		honest = append(honest, p)
	}
	join()
	join()
	seed := rand.Int63()
	t.Logf("random seed %d", seed)
	h := b.Start(hostileName, hostileConfig{Attack: attack, Seed: seed})
	var n int
	h.Next(&n) // it is at work
	join()     // one that meets the hostile one's pages as they are now
	moves := func() {
		for _, p := range honest {
			for range 3 {
				p.Next(new(progress))
			}
		}
	}
	for range 10 {
		for range 4 {
			h.Next(&n)
		}
		moves()
	}
	h.Kill()
	testkit.Gone(t, b, h.PID())
	testkit.Audit(t, b)
	moves()
	for _, p := range honest {
		p.Tell(order("stop"))
		p.Ended()
	}
	for _, topic := range open {
		require.NoError(t, topic.End(ctx))
		require.NoError(t, topic.Close())
	}
	testkit.AuditEmpty(t, b, c)
}

type hostileConfig struct {
	Attack string
	Seed   int64
}

func init() {
	roles["citizen"] = citizen
	roles[hostileName] = hostile
}

// citizen sends to all three topics and reads them: of honest senders it expects
// every word, of the hostile one nothing, but it looks at all that comes.
func citizen(p *testkit.Child) error {
	var from string
	if err := p.Config(&from); err != nil {
		return err
	}
	c, err := p.Connect(client.WithName("honest"))
	if err != nil {
		return err
	}
	all, err := commons.openTopic(p.Context(), c)
	if err != nil {
		return err
	}
	mixed, err := council.openTopic(p.Context(), c)
	if err != nil {
		return err
	}
	sure, err := safe.openTopic(p.Context(), c)
	if err != nil {
		return err
	}
	allReader, err := all.Reader(p.Context())
	if err != nil {
		return err
	}
	mixedReader, err := mixed.Reader(p.Context(), client.Group("mixed"))
	if err != nil {
		return err
	}
	sureReader, err := sure.Reader(p.Context())
	if err != nil {
		return err
	}
	said := tick{p: p, every: 64}
	if err := p.Say(progress{}); err != nil {
		return err
	}
	return shift(p, c, func(ctx context.Context) error {
		read := func(r *client.Reader, count bool) func(context.Context) error {
			return func(ctx context.Context) error {
				for {
					m, err := r.Receive(ctx)
					if err != nil {
						return err
					}
					err = inspect(m)
					own := m.Sender == "honest"
					m.Release()
					if err != nil {
						return err
					}
					if count && own {
						if err := said.step(); err != nil {
							return err
						}
					}
				}
			}
		}
		send := func(to *client.Topic) func(context.Context) error {
			return func(ctx context.Context) error {
				for id := 0; ctx.Err() == nil; id++ {
					if err := sendNoted(ctx, c, topicSender{to}, sizeOf(id), newNote(from, id)); err != nil {
						return err
					}
				}
				return ctx.Err()
			}
		}
		return together(ctx, read(allReader, true), read(mixedReader, false), read(sureReader, true),
			send(all), send(mixed), send(sure))
	})
}

// inspect verifies what an honest sender sent, and looks at every part of what
// the hostile one did.
func inspect(m *client.Message) error {
	if m.Sender == "honest" {
		_, err := verifyMessage(m)
		return err
	}
	var e *protocol.Error
	typed := func(err error) error {
		if err != nil && !errors.As(err, &e) {
			return fmt.Errorf("an error of another process's making is not typed: %w", err)
		}
		return nil
	}
	var meta any
	if err := typed(m.Meta(&meta)); err != nil {
		return err
	}
	if _, err := m.Value(); err != nil {
		return typed(err)
	}
	b, err := m.Bundle()
	if err != nil {
		return typed(err)
	}
	sum := byte(0)
	for _, x := range b.Tensors() {
		bytes, err := x.Bytes()
		if err := typed(err); err != nil {
			return err
		}
		for _, v := range bytes {
			sum += v
		}
		p, err := x.ToDLPack()
		if err := typed(err); err != nil {
			return err
		}
		if p != nil {
			dlpack.Release(p)
		}
	}
	return nil
}

// TestNoiseOnTheSocket sends the broker what no client would, while honest ones
// work: each connection is refused or answered, and no other client notices.
func TestNoiseOnTheSocket(t *testing.T) {
	b := testkit.StartBroker(t)
	k := newPong(t, b)
	k.rounds(10)
	fds := testkit.FDs(b.Process().PID())
	p := b.Start("noisemaker", b.Socket)
	for {
		var done bool
		k.rounds(5)
		if p.Poll(&done) && done {
			break
		}
		require.True(t, p.Alive(), p.Log())
	}
	// Its last connection asks and asks and never reads a reply.
	k.rounds(100)
	topic, err := k.c.Topic(k.ctx, "new")
	require.NoError(t, err, "others are answered")
	require.NoError(t, topic.Close())
	p.Kill()
	testkit.Gone(t, b, p.PID())
	testkit.Until(t, "the broker has closed what was left", func() (bool, string) {
		now := testkit.FDs(b.Process().PID())
		return now <= fds+12, fmt.Sprintf("%d descriptors, %d before", now, fds)
	})
	k.rounds(10)
	k.p.Done()
	testkit.AuditKept(t, b)
}

func init() {
	roles["noisemaker"] = func(p *testkit.Child) error {
		var socket string
		if err := p.Config(&socket); err != nil {
			return err
		}
		dial := func() (*net.UnixConn, error) {
			return net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		}
		random := rand.New(rand.NewSource(1))
		for i := range 240 {
			u, err := dial()
			if err != nil {
				return err
			}
			u.Write(noiseFrame(random, i))
			if i%3 == 0 {
				u.CloseWrite()
			}
			if i%5 == 0 {
				u.SetReadDeadline(deadlineSoon())
				u.Read(make([]byte, 256))
			}
			u.Close()
		}
		u, err := dial()
		if err != nil {
			return err
		}
		if _, err := u.Write(frame(helloText())); err != nil {
			return err
		}
		// A hundred thousand requests, or as many as are taken from one that reads
		// no replies.
		for i := range 100_000 {
			u.SetWriteDeadline(deadlineSoon())
			if _, err := u.Write(frame(fmt.Sprintf(`{"id":%d,"op":"status"}`, i+2))); err != nil {
				break
			}
		}
		if err := p.Say(true); err != nil {
			return err
		}
		<-p.Context().Done()
		return nil
	}
}

func helloText() string {
	return fmt.Sprintf(`{"id":1,"op":"hello","protocol":%d,"layout":%d,"pid":%d}`, protocol.Version, protocol.Layout, os.Getpid())
}

// deadlineSoon is for a write or read that may block without an end.
func deadlineSoon() time.Time { return time.Now().Add(20 * time.Millisecond) }

func frame(text string) []byte {
	f := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	return append(append(f, 0, 0, 0, 0), text...)
}

// noiseFrame makes the i-th thing that no client would send.
func noiseFrame(random *rand.Rand, i int) []byte {
	noise := make([]byte, random.Intn(4096))
	random.Read(noise)
	hello := helloText()
	switch i % 12 {
	case 0:
		return noise
	case 1: // a gigabyte to come
		return []byte{0, 0, 0, 0x40, 0, 0, 0, 0}
	case 2: // half a frame
		return frame(hello)[:20]
	case 3: // descriptors that do not come
		f := frame(hello)
		f[4] = 5
		return f
	case 4: // a reserved field
		f := frame(hello)
		f[6] = 1
		return f
	case 5:
		return frame(`{"id":1,"op":"grant","bytes":1,"chunks":1}`) // before hello
	case 6:
		return append(frame(hello), frame(string(noise))...)
	case 7:
		return append(frame(hello), frame(`{"id":2,"op":"topic.open","name":"*","kind":"topic","create":true}`)...)
	case 8:
		return append(frame(hello), frame(`{"id":2,"op":"attach","chunk":4294967295,"serial":18446744073709551615}`)...)
	case 9:
		return append(frame(hello), frame(`{"id":2,"op":"restore","items":[{"role":"broker","serial":0}]}`)...)
	case 10:
		return frame(strings.Repeat("[", 100_000))
	default:
		return append(frame(hello), frame(fmt.Sprintf(`{"id":-1,"op":%q}`, noise))...)
	}
}
