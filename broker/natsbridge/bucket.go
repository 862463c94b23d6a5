package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// Headers of a mirrored name.
	headerOwner    = "Baton-Owner"
	headerRevision = "Baton-Revision"

	headerOperation = "KV-Operation"       // a key-value bucket's: DEL or PURGE
	headerReason    = "Nats-Marker-Reason" // set by the server on markers of its own

	markerTTL = 10 * time.Minute

	codeTooLarge jetstream.ErrorCode = 10054 // message size exceeds maximum allowed
)

func bucketName(ns string) string { return "baton-" + ns }

// A bucket is the stream KV_<bucket> with the subjects $KV.<bucket>.<key>.
func streamName(ns string) string { return "KV_" + bucketName(ns) }

func keySubject(ns, name string) string {
	return "$KV." + bucketName(ns) + "." + strings.ReplaceAll(name, "/", ".")
}

// entry is what a bucket holds of one key.
type entry struct {
	sequence uint64
	ours     bool
	marker   bool
}

// open finds or makes the bucket. made: it is new, so it holds nothing.
func (n *names) open(ctx context.Context, ns string) (stream jetstream.Stream, made bool, err error) {
	stream, err = n.js.Stream(ctx, streamName(ns))
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		return nil, false, fmt.Errorf("the server has no JetStream for this account: %w", err)
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, false, err
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
	made = err == nil
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) { // another broker was faster
		return nil, false, err
	}
	stream, err = n.js.Stream(ctx, streamName(ns))
	return stream, made, err
}

// read lists the bucket's keys.
func (n *names) read(ctx context.Context, ns string, stream jetstream.Stream) (map[string]entry, error) {
	prefix := keySubject(ns, "")
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects:    []string{prefix + ">"},
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		HeadersOnly:       true,
		InactiveThreshold: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	// Best effort: the server removes an idle consumer by itself.
	defer func() { _ = stream.DeleteConsumer(ctx, info.Name) }()
	found := make(map[string]entry, info.NumPending)
	if info.NumPending == 0 {
		return found, nil
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextMaxWait(time.Second))
		if err == nil {
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			h := m.Headers()
			found[strings.TrimPrefix(m.Subject(), prefix)] = entry{
				sequence: meta.Sequence.Stream,
				ours:     n.embedded || h.Get(headerOwner) == n.owner,
				marker:   h.Get(headerOperation) != "" || h.Get(headerReason) != "",
			}
			if meta.NumPending == 0 {
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

// compare looks at the bucket, for all who had asked by then, and marks what must be
// written or removed.
func (n *names) compare(ctx context.Context, s *space, asked uint64) error {
	stream, made, err := n.open(ctx, s.ns)
	if err != nil {
		return err
	}
	found := map[string]entry{}
	if !made {
		if found, err = n.read(ctx, s.ns, stream); err != nil {
			return fmt.Errorf("read it: %w", err)
		}
	}
	info := stream.CachedInfo()
	n.mu.Lock()
	defer n.mu.Unlock()
	s.looked = asked
	s.markers = info.Config.AllowMsgTTL
	if !s.created.Equal(info.Created) {
		s.created = info.Created
		for _, k := range s.keys {
			k.sequence = 0 // it counted in another stream
		}
	}
	known := make(map[string]bool, len(s.keys))
	for name, k := range s.keys {
		token := strings.ReplaceAll(name, "/", ".")
		known[token] = true
		e, ok := found[token]
		switch {
		case !ok || e.marker:
			k.sequence = 0 // gone: written again, or nothing to remove
		case k.deleted && e.ours:
			k.sequence = e.sequence
		case k.sequence == e.sequence && !k.deleted:
			continue // as we left it; still dirty if it has changed since
		case k.sequence != 0 && !e.ours:
			// Another broker has written the name after us: it stays his until it
			// is set here again.
			continue
		}
		s.dirty[name] = struct{}{}
	}
	for token, e := range found {
		if e.ours && !e.marker && !known[token] {
			// Left by an earlier life. Its name is only needed as a key.
			s.keys[token] = &key{deleted: true, sequence: e.sequence}
			s.dirty[token] = struct{}{}
		}
	}
	return nil
}

// write brings up to namesBatch dirty keys to the bucket. The server's answers are
// awaited together, so that a distant server costs one round trip for all.
func (n *names) write(ctx context.Context, s *space) (more bool, err error) {
	type flight struct {
		name string
		was  key
		ack  jetstream.PubAckFuture
	}
	var todo []flight
	n.mu.Lock()
	for name := range s.dirty {
		k := s.keys[name]
		if k.deleted && k.sequence == 0 {
			n.settleLocked(s, name, *k, nil)
			continue
		}
		if len(todo) == namesBatch {
			more = true
			break
		}
		todo = append(todo, flight{name: name, was: *k})
	}
	markers := s.markers
	n.mu.Unlock()

	var errs []error
	for i := range todo {
		f := &todo[i]
		var opts []jetstream.PublishOpt
		m := nats.NewMsg(keySubject(s.ns, f.name))
		if f.was.deleted {
			m.Header.Set(headerOperation, "PURGE")
			m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
			// Only what we wrote: another broker may have taken the name.
			opts = append(opts, jetstream.WithExpectLastSequencePerSubject(f.was.sequence))
			if markers {
				opts = append(opts, jetstream.WithMsgTTL(markerTTL))
			}
		} else {
			m.Header.Set(headerOwner, n.owner)
			m.Header.Set(headerRevision, strconv.FormatUint(f.was.revision, 10))
			m.Data = f.was.value
		}
		f.ack, err = n.js.PublishMsgAsync(m, opts...)
		if err != nil {
			errs = append(errs, n.settle(s, f.name, f.was, nil, err))
		}
	}
	for _, f := range todo {
		if f.ack == nil {
			continue
		}
		select {
		case ack := <-f.ack.Ok():
			errs = append(errs, n.settle(s, f.name, f.was, ack, nil))
		case err := <-f.ack.Err():
			errs = append(errs, n.settle(s, f.name, f.was, nil, err))
		case <-ctx.Done():
			errs = append(errs, ctx.Err())
		}
	}
	return more, firstError(errs)
}

// settle records what came of writing one key. The error returned is one that a
// later attempt may not meet.
func (n *names) settle(s *space, name string, was key, ack *jetstream.PubAck, err error) error {
	var refused *jetstream.APIError
	switch {
	case err == nil:
	case !was.deleted && tooLarge(err):
		n.log.Warn("a name's value is too large for NATS and is not mirrored", "namespace", s.ns, "name", name, "bytes", len(was.value))
		n.mu.Lock()
		defer n.mu.Unlock()
		n.rejected++
		// An older value would mislead: rather none.
		if k := s.keys[name]; k != nil && k.change == was.change {
			s.removeLocked(name, k)
			n.kick()
		}
		return nil
	case was.deleted && errors.As(err, &refused) && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		// Another broker has the name now: it is not ours to remove.
	default:
		return fmt.Errorf("write %s: %w", name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settleLocked(s, name, was, ack)
	return nil
}

// settleLocked takes a key off the list, unless it has changed meanwhile.
func (n *names) settleLocked(s *space, name string, was key, ack *jetstream.PubAck) {
	k := s.keys[name]
	if k == nil {
		return
	}
	if ack != nil && !was.deleted {
		k.sequence = ack.Sequence
	} else if was.deleted {
		k.sequence = 0
	}
	if k.change != was.change {
		return
	}
	delete(s.dirty, name)
	if k.deleted {
		delete(s.keys, name)
	}
}

// tooLarge tells whether the server or the bucket's limit refused a value for good.
func tooLarge(err error) bool {
	var refused *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &refused) && refused.ErrorCode == codeTooLarge
}

// lostBucket tells whether an error means that the bucket is no longer there.
func lostBucket(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) ||
		errors.Is(err, nats.ErrNoResponders)
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
