package integration

import (
	"context"
	"errors"
	"fmt"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

// Tensors of these tests hold words that follow from a seed, so that bytes of
// another tensor, or of another time, are noticed.

// wordAt is the word that stands at place i of a tensor with a seed.
func wordAt(seed uint64, i int) uint64 {
	z := seed*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	z ^= z >> 29
	return z * 0x94d049bb133111eb
}

func fill(words []uint64, seed uint64) {
	for i := range words {
		words[i] = wordAt(seed, i)
	}
}

// verify returns what is wrong with a tensor's words.
func verify(words []uint64, seed uint64) error {
	for i, w := range words {
		if want := wordAt(seed, i); w != want {
			return fmt.Errorf("word %d of %d of the tensor with seed %#x is %#x, not %#x", i, len(words), seed, w, want)
		}
	}
	return nil
}

// note is the meta of these tests' messages.
type note struct {
	From string `json:"from"` // the sender, in the words of the test
	ID   int    `json:"id"`   // counts this sender's messages from 0
	Seed uint64 `json:"seed"`
}

func seedOf(from string, id int) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(from) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h ^ uint64(id)*0x9e3779b97f4a7c15
}

func newNote(from string, id int) note { return note{from, id, seedOf(from, id)} }

// filled allocates a tensor of n words and fills it.
func filled(ctx context.Context, c *client.Client, n int, seed uint64, opts ...client.AllocOption) (*client.Tensor, error) {
	t, err := c.Alloc(ctx, dlpack.Uint64, []int64{int64(n)}, opts...)
	if err != nil {
		return nil, err
	}
	words, err := client.Slice[uint64](t)
	if err != nil {
		t.Release()
		return nil, err
	}
	fill(words, seed)
	return t, nil
}

// sender is what a topic and a queue have in common.
type sender interface {
	send(ctx context.Context, v any, opts ...client.SendOption) error
}

type topicSender struct{ *client.Topic }

func (s topicSender) send(ctx context.Context, v any, opts ...client.SendOption) error {
	return s.Send(ctx, v, opts...)
}

type queueSender struct{ *client.Queue }

func (s queueSender) send(ctx context.Context, v any, opts ...client.SendOption) error {
	return s.Put(ctx, v, opts...)
}

// sendNoted sends a filled tensor of n words with its note.
func sendNoted(ctx context.Context, c *client.Client, to sender, n int, k note, opts ...client.AllocOption) error {
	t, err := filled(ctx, c, n, k.Seed, opts...)
	if err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	defer t.Release()
	return to.send(ctx, t, client.Meta(k))
}

// verifyMessage checks the tensors of a message against its note.
func verifyMessage(m *client.Message) (note, error) {
	var k note
	if err := m.Meta(&k); err != nil {
		return k, err
	}
	if want := seedOf(k.From, k.ID); k.Seed != want {
		return k, fmt.Errorf("message %d of %s has the seed %#x, not %#x", k.ID, k.From, k.Seed, want)
	}
	b, err := m.Bundle()
	if err != nil {
		return k, err
	}
	if len(b.Tensors()) == 0 {
		return k, errors.New("a message without tensors")
	}
	for i, t := range b.Tensors() {
		words, err := client.Slice[uint64](t)
		if err != nil {
			return k, err
		}
		if err := verify(words, k.Seed+uint64(i)); err != nil {
			return k, fmt.Errorf("message %d of %s (sequence %d of %s): %w", k.ID, k.From, m.Sequence, m.Sender, err)
		}
	}
	return k, nil
}
