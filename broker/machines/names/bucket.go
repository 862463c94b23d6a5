package names

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// askTime is how long JetStream may take for one question.
	askTime = 3 * time.Second
	// markerTime is how long the entry of a deleted name stays: a host that was away for longer does not learn of it.
	markerTime   = 7 * 24 * time.Hour
	mostReplicas = 3
)

// BucketName is the bucket of a namespace.
func BucketName(ns string) string { return "baton-span-" + ns }

// StreamName is the stream of the bucket.
func StreamName(ns string) string { return "KV_" + BucketName(ns) }

func subjectOf(ns, key string) string { return "$KV." + BucketName(ns) + "." + key }

// keyOf is the key of a name: no name has a dot.
func keyOf(name string) string { return strings.ReplaceAll(name, "/", ".") }

func nameOf(key string) string { return strings.ReplaceAll(key, ".", "/") }

// bucket is the bucket of a namespace, as one connection has it.
type bucket struct {
	ns      string
	js      jetstream.JetStream
	stream  jetstream.Stream
	made    uint64 // when: another number is another bucket
	markers bool   // messages may have a time to live

	clustered bool
	replicas  int    // the reader's
	lacks     string // why there are fewer than there should be
}

// openBucket finds or makes the bucket, and refuses one that does not keep what was agreed.
func openBucket(ctx context.Context, nc *nats.Conn, ns string) (*bucket, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(askTime))
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, StreamName(ns))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = makeBucket(ctx, js, ns)
	}
	if err != nil {
		return nil, err
	}
	info := stream.CachedInfo()
	if err := checkBucket(ns, info); err != nil {
		return nil, err
	}
	b := &bucket{ns: ns, js: js, stream: stream, made: uint64(info.Created.UnixNano()), markers: info.Config.AllowMsgTTL, replicas: info.Config.Replicas, clustered: isClustered(info)}
	return b, b.replicate(ctx)
}

func makeBucket(ctx context.Context, js jetstream.JetStream, ns string) (jetstream.Stream, error) {
	cfg := jetstream.StreamConfig{
		Name: StreamName(ns), Description: "Names of Baton's namespace " + ns + " on all hosts", Subjects: []string{subjectOf(ns, ">")},
		Storage: jetstream.FileStorage, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, MaxMsgSize: mostEntry + 1<<10,
		DenyDelete: true, AllowRollup: true, AllowMsgTTL: true,
	}
	var stream jetstream.Stream
	var err error
	for cfg.Replicas = mostReplicas; cfg.Replicas > 0; cfg.Replicas-- {
		stream, err = js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another host was faster
			return js.Stream(ctx, cfg.Name)
		}
		var refused *jetstream.APIError
		switch {
		case err == nil:
			return stream, nil
		case cfg.AllowMsgTTL && errors.As(err, &refused) && strings.Contains(refused.Description, "TTL"):
			cfg.AllowMsgTTL = false
			cfg.Replicas++
		case !errors.As(err, &refused) || !lacksServers(refused):
			return nil, err
		}
	}
	return nil, err
}

// lacksServers tells whether a stream was refused since there are fewer servers than it wants.
func lacksServers(e *jetstream.APIError) bool {
	const noPeers, insufficient, notClustered = 10005, 10023, 10074
	return e.ErrorCode == noPeers || e.ErrorCode == insufficient || e.ErrorCode == notClustered
}

// checkBucket refuses settings by which entries may be lost, or read before they are agreed on.
func checkBucket(ns string, info *jetstream.StreamInfo) error {
	c := &info.Config
	wrong := ""
	switch {
	case c.Storage != jetstream.FileStorage:
		wrong = "its storage is not file"
	case c.MaxMsgsPerSubject != 1:
		wrong = fmt.Sprintf("it keeps %d entries of a name, and not 1", c.MaxMsgsPerSubject)
	case c.AllowDirect:
		wrong = "it allows direct gets, which may be stale"
	case c.MaxAge != 0:
		wrong = "its entries end by themselves"
	case c.Retention != jetstream.LimitsPolicy || c.Mirror != nil || len(c.Sources) > 0:
		wrong = "it is not a bucket of its own"
	case c.Discard != jetstream.DiscardNew:
		wrong = "it discards old entries when it is full"
	case len(c.Subjects) != 1 || c.Subjects[0] != subjectOf(ns, ">"):
		wrong = "it has other subjects"
	default:
		return nil
	}
	return unusable(ns, wrong)
}

func unusable(ns, wrong string) error {
	return protocol.Errorf(protocol.CodeUnsupported, "delete it, so that it is made anew, or edit it: nats stream edit "+StreamName(ns)+
		" (file storage, 1 message per subject, discard new, no direct gets, no age, a replica on each of up to 3 servers)",
		"the bucket %s cannot be used for names: %s", BucketName(ns), wrong)
}

// read reads the entry of a name, through the leader.
func (b *bucket) read(ctx context.Context, name string) (stored, error) {
	data, seq, err := b.get(ctx, keyOf(name))
	if err != nil || seq == 0 {
		return stored{}, err
	}
	return readEntry(data, seq), nil
}

// get reads a key, through the leader: the stream allows no direct get. seq is 0 if there is none.
func (b *bucket) get(ctx context.Context, key string) (data []byte, seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	m, err := b.stream.GetLastMsgForSubject(ctx, subjectOf(b.ns, key))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return m.Data, m.Sequence, nil
}

// put writes an entry on top of the one at a place, 0: of none.
func (b *bucket) put(ctx context.Context, name string, e *entry, on uint64) (seq uint64, err error) {
	data, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	m := nats.NewMsg(subjectOf(b.ns, keyOf(name)))
	m.Data = data
	var opts []jetstream.PublishOpt
	if e.Deleted {
		m.Header.Set("KV-Operation", "PURGE") // other readers of the bucket see the deletion
		if b.markers {
			opts = append(opts, jetstream.WithMsgTTL(markerTime))
		}
	}
	return b.publish(ctx, m, on, opts...)
}

func (b *bucket) publish(ctx context.Context, m *nats.Msg, on uint64, opts ...jetstream.PublishOpt) (seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ack, err := b.js.PublishMsg(ctx, m, append(opts, jetstream.WithExpectLastSequencePerSubject(on), jetstream.WithExpectStream(StreamName(b.ns)), jetstream.WithRetryAttempts(0))...)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// isReplaced tells whether a write was refused since another one was first.
func isReplaced(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// isRefused tells whether a write was refused for good.
func isRefused(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && !isReplaced(err) && e.Code >= 400 && e.Code < 500 && e.Code != 408
}

// readEpochs reads which epochs the bucket has.
func (b *bucket) readEpochs(ctx context.Context) (all epochs, seq uint64, err error) {
	data, seq, err := b.get(ctx, epochKey)
	if err != nil || seq == 0 {
		return nil, 0, err
	}
	all, err = readEpochs(data, seq)
	return all, seq, err
}

// raise has the bucket an epoch that is no lower than one.
func (b *bucket) raise(ctx context.Context, least uint64) (epochs, error) {
	for {
		all, seq, err := b.readEpochs(ctx)
		if err != nil || all.last() >= least {
			return all, err
		}
		data, err := all.raised(least)
		if err != nil {
			return nil, err
		}
		m := nats.NewMsg(subjectOf(b.ns, epochKey))
		m.Data = data
		if _, err := b.publish(ctx, m, seq); err != nil {
			return nil, err // it is read again, also if another host was faster
		}
	}
}
