package names

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/baton-ipc/baton/protocol"
)

// replicaTime is the pause between looks whether there are servers for more replicas.
const replicaTime = 10 * time.Second

func isClustered(info *jetstream.StreamInfo) bool {
	return info.Cluster != nil && info.Cluster.Name != ""
}

// replicate gives the bucket a replica on each of up to three servers. It has fewer if it was made while some were away, or
// by an operator. How many servers there are is known by asking for replicas alone. Where there are more and the bucket does
// not get them, two replicas do, and one is an error.
func (b *bucket) replicate(ctx context.Context) error {
	b.lacks = ""
	if !b.clustered || b.replicas >= mostReplicas {
		return nil
	}
	stream, err := b.js.Stream(ctx, StreamName(b.ns))
	if err != nil {
		return err
	}
	cfg := stream.CachedInfo().Config
	b.replicas = cfg.Replicas
	for want := mostReplicas; want > b.replicas; want-- {
		cfg.Replicas = want
		_, err := b.js.UpdateStream(ctx, cfg)
		var refused *jetstream.APIError
		if errors.As(err, &refused) && lacksServers(refused) {
			continue
		}
		switch {
		case err == nil:
			b.replicas = want
		case b.replicas > 1:
			b.lacks = fmt.Sprintf("it has %d of %d replicas, and gets no more: %v", b.replicas, want, err)
		case refused != nil && refused.Code < 500:
			return unusable(b.ns, fmt.Sprintf("it has 1 of %d replicas, and gets no more: %v", want, err))
		default:
			return err
		}
		return nil
	}
	return nil // there are no more servers
}

// replicates looks for servers for more replicas until all are there.
func (s *space) replicates(ctx context.Context, b *bucket) {
	for ctx.Err() == nil {
		s.mu.Lock()
		s.replicas, s.lacks = b.replicas, b.lacks
		s.mu.Unlock()
		if !b.clustered || b.replicas >= mostReplicas {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(replicaTime):
		}
		asked, answered := context.WithTimeout(ctx, 2*askTime)
		had := b.replicas
		if err := b.replicate(asked); err != nil {
			b.lacks = protocol.Plain(err)
		}
		answered()
		if b.replicas != had {
			s.n.cfg.Log.Info("a bucket of names has more replicas", "namespace", s.ns, "replicas", b.replicas)
		}
	}
}
