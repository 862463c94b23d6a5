package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	markerTTL = 10 * time.Minute
	lossDelay = time.Second // between the end of a watch and the next look at its bucket
	mostGets  = 64          // keys that are looked at one by one between two looks at everything else
)

func bucketName(ns string) string { return "baton-" + ns }

// A bucket is the stream KV_<bucket> with the subjects $KV.<bucket>.<key>.
func streamName(ns string) string { return "KV_" + bucketName(ns) }

func keySubject(ns, name string) string {
	return "$KV." + bucketName(ns) + "." + strings.ReplaceAll(name, "/", ".")
}

// keyName is the name of a key: no name has a dot.
func keyName(token string) string { return strings.ReplaceAll(token, ".", "/") }

// open finds or makes the bucket.
func (n *names) open(ctx context.Context, ns string) (jetstream.Stream, error) {
	stream, err := n.js.Stream(ctx, streamName(ns))
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		return nil, fmt.Errorf("the server has no JetStream for this account: %w", err)
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, err
	}
	cfg := jetstream.KeyValueConfig{
		Bucket:      bucketName(ns),
		Description: "Names of Baton's namespace " + ns,
		History:     1,
		MaxBytes:    n.config.MaxBytes,
		Replicas:    n.config.Replicas,
		// Purge markers may end by themselves.
		LimitMarkerTTL: markerTTL,
	}
	if n.embedded {
		// A copy needs no disk, and ends with the broker as it should.
		cfg.Storage = jetstream.MemoryStorage
	}
	_, err = n.js.CreateKeyValue(ctx, cfg)
	if errors.Is(err, jetstream.ErrLimitMarkerTTLNotSupported) {
		cfg.LimitMarkerTTL = 0
		_, err = n.js.CreateKeyValue(ctx, cfg)
	}
	made := err == nil
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) { // another broker was faster
		return nil, err
	}
	stream, err = n.js.Stream(ctx, streamName(ns))
	if err == nil && made && n.embedded {
		err = stream.Purge(ctx, jetstream.WithPurgeSequence(firstSequence()))
	}
	return stream, err
}

// firstSequence is where the sequences of a bucket in memory begin. A client that watched
// the bucket before this one goes on after the last sequence that it has seen, and would
// take what has a lower one for seen. No bucket gets a message each microsecond.
func firstSequence() uint64 { return uint64(time.Now().UnixMicro()) }

// watch lists the bucket's keys, and goes on to report their changes until its
// connection or the bridge ends, or the bucket is no longer used.
func (n *names) watch(ctx context.Context, s *space, stream jetstream.Stream) (map[string]entry, error) {
	prefix := keySubject(s.ns, "")
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects:    []string{prefix + ">"},
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		HeadersOnly:       true,
		InactiveThreshold: time.Minute,
		MaxResetAttempts:  1, // then the bucket is compared again
	})
	if err != nil {
		return nil, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, err
	}
	found, err := list(ctx, c, info, messages, prefix)
	if err != nil {
		messages.Stop()
		return nil, err
	}
	watching, stop := context.WithCancel(n.ctx)
	s.unlook = stop
	context.AfterFunc(watching, messages.Stop)
	go n.follow(watching, s, messages, prefix)
	return found, nil
}

// list reads what was there when the watch began.
func list(ctx context.Context, c jetstream.Consumer, info *jetstream.ConsumerInfo, messages jetstream.MessagesContext, prefix string) (map[string]entry, error) {
	found := make(map[string]entry, info.NumPending)
	if info.NumPending == 0 {
		return found, nil
	}
	for {
		m, err := messages.Next(jetstream.NextMaxWait(time.Second))
		if err == nil {
			token, e, more, err := entryIn(m, prefix)
			if err != nil {
				return nil, err
			}
			found[token] = e
			if more == 0 {
				return found, nil
			}
			continue
		}
		if !errors.Is(err, nats.ErrTimeout) {
			return nil, err
		}
		// What was pending may have been removed since.
		if info, err = c.Info(ctx); err != nil || info.NumPending == 0 {
			return found, err
		}
	}
}

func entryIn(m jetstream.Msg, prefix string) (token string, e entry, more uint64, err error) {
	meta, err := m.Metadata()
	if err != nil {
		return "", e, 0, err
	}
	return strings.TrimPrefix(m.Subject(), prefix), entryOf(m.Headers(), meta.Sequence.Stream), meta.NumPending, nil
}

// follow reports changes, of ours too. When it cannot go on the bucket is compared.
func (n *names) follow(ctx context.Context, s *space, messages jetstream.MessagesContext, prefix string) {
	for {
		m, err := messages.Next()
		var e entry
		var token string
		if err == nil {
			token, e, _, err = entryIn(m, prefix)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			n.log.Debug("no more word of a bucket's changes", "namespace", s.ns, "error", err)
			messages.Stop()
			// A bucket that is being deleted must be gone before it is made again: the
			// server would keep halves of both.
			time.AfterFunc(lossDelay, func() { n.look(streamName(s.ns)) })
			return
		}
		n.mu.Lock()
		k := s.keys[keyName(token)]
		if k != nil && e.sequence > k.sequence {
			n.foundLocked(s, keyName(token), k, e)
			n.kick()
		}
		n.mu.Unlock()
	}
}

// compare looks at the bucket, for all callers that had asked by then, and marks what must be
// written or removed.
func (n *names) compare(ctx context.Context, s *space, asked uint64) error {
	s.leave()
	stream, err := n.open(ctx, s.ns)
	if err != nil {
		return err
	}
	found, err := n.watch(ctx, s, stream)
	if err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	s.stream = stream
	info := stream.CachedInfo()
	n.mu.Lock()
	defer n.mu.Unlock()
	s.looked = asked
	s.markers, s.most = info.Config.AllowMsgTTL, max(int(info.Config.MaxMsgSize), 0)
	anew := !s.created.Equal(info.Created) // its sequences count anew
	s.created = info.Created
	known := make(map[string]bool, len(s.keys))
	for name, k := range s.keys {
		token := strings.ReplaceAll(name, "/", ".")
		known[token] = true
		if e := found[token]; anew || e.sequence == 0 || e.sequence >= k.sequence {
			n.foundLocked(s, name, k, e)
		}
	}
	for token, e := range found {
		if n.oursLocked(e) && !known[token] {
			// Left by an earlier life.
			s.keys[keyName(token)] = &key{deleted: true, relic: true, ours: true, sequence: e.sequence}
			s.dirty[keyName(token)] = struct{}{}
		}
	}
	return nil
}

// findFormer looks once, in all buckets, for keys of an earlier life that ended without closing: also where no name is set
// now, nothing else would remove them.
func (n *names) findFormer(ctx context.Context) error {
	n.mu.Lock()
	look := n.former != nil && n.told && !n.searched
	n.mu.Unlock()
	if !look {
		return nil
	}
	streams := n.js.StreamNames(ctx)
	for stream := range streams.Name() {
		ns, is := strings.CutPrefix(stream, streamName(""))
		if !is || checkNamespace(ns) != nil {
			continue
		}
		if err := n.findFormerIn(ctx, ns); err != nil {
			return fmt.Errorf("look for the keys of the previous broker in bucket %s: %w", bucketName(ns), err)
		}
	}
	if err := streams.Err(); err != nil {
		return fmt.Errorf("look for the keys of the previous broker: %w", err)
	}
	n.mu.Lock()
	n.searched = true
	n.mu.Unlock()
	return nil
}

// findFormerIn is findFormer for one bucket. One in which a name is set is compared anyway.
func (n *names) findFormerIn(ctx context.Context, ns string) error {
	n.mu.Lock()
	known := n.spaces[ns] != nil
	n.mu.Unlock()
	if known {
		return nil
	}
	s := newSpace(ns)
	if err := n.compare(ctx, s, s.asked); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(s.keys) == 0 || n.spaces[ns] != nil {
		s.leave()
		return nil
	}
	n.spaces[ns] = s
	return nil
}

// leave ends the watch of the bucket.
func (s *space) leave() {
	if s.unlook != nil {
		s.unlook()
		s.unlook = nil
	}
}

// inspect looks, one by one, at keys that may have changed since they were seen.
func (n *names) inspect(ctx context.Context, s *space) (more bool, err error) {
	var some []string
	n.mu.Lock()
	for name := range s.dirty {
		if s.keys[name].unsure {
			if more = len(some) == mostGets; more {
				break
			}
			some = append(some, name)
		}
	}
	n.mu.Unlock()
	for _, name := range some {
		m, err := s.stream.GetLastMsgForSubject(ctx, keySubject(s.ns, name))
		e := entry{}
		switch {
		case err == nil:
			e = entryOf(m.Header, m.Sequence)
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return false, fmt.Errorf("look at %s: %w", name, err)
		}
		n.mu.Lock()
		// A replica may be behind what was seen: then it is looked at once more.
		k := s.keys[name]
		behind := k != nil && e.sequence != 0 && e.sequence < k.sequence
		if k != nil && !behind {
			n.foundLocked(s, name, k, e)
		}
		n.mu.Unlock()
		more = more || behind
	}
	return more, nil
}

// lostBucket tells whether an error means that the bucket may no longer be there. One
// that is being deleted does not answer.
func lostBucket(err error) bool {
	return errors.Is(err, jetstream.ErrAsyncPublishTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) ||
		errors.Is(err, nats.ErrNoResponders)
}
