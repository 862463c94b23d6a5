package natsbridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// quietLooks is after how many looks at the bridge's place (lookAtPlace) without a client
// the buckets of the embedded server are removed: a minute.
const quietLooks = 12

// quiet counts the looks at which no client was there.
type quiet struct {
	visits uint64
	looks  int
}

// attended tells whether the embedded server may have a client beside this bridge.
func (b *Bridge) attended() bool {
	return !b.link.connected.Load() || b.server.srv.NumClients() > 1
}

// lookAtClients removes the buckets of the embedded server when no client has been there
// for long: the server would go on to tick for them.
func (b *Bridge) lookAtClients(q *quiet) {
	n := b.names
	n.mu.Lock()
	visits := n.visits
	n.mu.Unlock()
	if b.attended() || visits != q.visits {
		*q = quiet{visits: visits}
		return
	}
	if q.looks++; q.looks == quietLooks {
		q.looks = 0
		n.rest(visits)
	}
}

// rest has the goroutine remove the buckets, unless a client has come since so many had.
func (n *names) rest(visits uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.started && !n.resting && n.visits == visits {
		n.leaving = true
		n.kick()
	}
}

// removeBuckets removes the buckets, if that is wanted and they hold nothing but names of this
// broker. A client that comes meanwhile waits for new ones.
func (n *names) removeBuckets(ctx context.Context) error {
	n.mu.Lock()
	leaving := n.leaving
	var buckets []*space
	for _, s := range n.spaces {
		if s.stream != nil {
			buckets = append(buckets, s)
		}
	}
	n.mu.Unlock()
	if !leaving {
		return nil
	}
	needed, err := n.needed(ctx, buckets)
	n.mu.Lock()
	leaving = n.leaving && !needed && err == nil
	n.leaving = false
	if leaving {
		n.resting = true
		for _, s := range n.spaces {
			s.forget()
		}
	}
	n.mu.Unlock()
	if !leaving {
		return err
	}
	for _, s := range buckets {
		s.leave()
		s.stream = nil
		if err := n.js.DeleteStream(ctx, streamName(s.ns)); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("remove bucket %s: %w", bucketName(s.ns), err) // it is compared when a client comes
		}
	}
	return nil
}

// needed tells whether something is there that would be lost, or because of which the server
// ticks in any case: streams of others, what others wrote or consume. A look at it is cheap
// beside that.
func (n *names) needed(ctx context.Context, buckets []*space) (bool, error) {
	account, err := n.js.AccountInfo(ctx)
	if err != nil || account.Streams > len(buckets) {
		return true, err
	}
	for _, s := range buckets {
		info, err := s.stream.Info(ctx)
		if err != nil {
			return true, err
		}
		ours := uint64(0)
		n.mu.Lock()
		for _, k := range s.keys {
			if k.ours {
				ours++
			}
		}
		n.mu.Unlock()
		// One consumer is this bridge's.
		if info.State.Msgs > ours || info.State.Consumers > 1 {
			return true, nil
		}
	}
	return false, nil
}

// forget has the next bucket compared, which is found to lack all keys.
func (s *space) forget() {
	s.asked++
	for name := range s.keys {
		s.dirty[name] = struct{}{}
	}
}
