package names

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// fenceKey is a key that no name has.
const fenceKey = "=fence"

// A leader of the bucket that is cut off from the others answers a read with what it had, while they have another leader and
// agree on what follows. So what was read may be older than what had been set before. A fence is a write to the same
// stream, which is answered once most servers have it: what stands behind it was agreed on after it was sent, and a host that has
// read the stream up to it knows all that was agreed on before.

// fence is such a write.
type fence struct {
	made uint64 // the bucket
	over chan struct{}
	seq  uint64 // where it stands. Written before over is closed, as err
	err  error
}

// fence sends one. It returns at once; nil where there is one server, beside which there is no other leader.
func (s *space) fence(ctx context.Context, b *bucket) *fence {
	if !b.clustered {
		return nil
	}
	f := &fence{made: b.made, over: make(chan struct{}), err: ErrEnds}
	begun := s.n.begin(func() {
		defer close(f.over)
		f.seq, f.err = b.fence(ctx)
	})
	if !begun {
		close(f.over)
	}
	return f
}

// fenced is a fence of a bucket that has not failed: the former one if it is so.
func (s *space) fenced(ctx context.Context, b *bucket, f *fence) *fence {
	if f != nil && f.made == b.made {
		select {
		case <-f.over:
			if f.err == nil {
				return f
			}
		default:
			return f
		}
	}
	return s.fence(ctx, b)
}

// isBehind tells whether what stands at a place is known to have been agreed on after the fence was sent.
func (f *fence) isBehind(seq uint64) bool {
	if f == nil {
		return true
	}
	<-f.over // it takes askTime at most
	return f.err == nil && seq > f.seq
}

// known is the entry of a name as it was at the fence or later. read is what a leader has answered.
func (s *space) known(ctx context.Context, b *bucket, f *fence, name string, read stored) (stored, error) {
	if f == nil {
		return read, nil
	}
	<-f.over
	if f.err != nil {
		return read, f.err
	}
	err := s.until(ctx, func() bool { return s.made != b.made || s.cursor >= f.seq })
	if err != nil {
		return read, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made != b.made {
		return read, errReplaced
	}
	if k := s.names[name]; k != nil && k.Seq > read.Seq {
		return k.stored, nil
	}
	return read, nil
}

// fence writes a fence, and returns once most servers have it.
func (b *bucket) fence(ctx context.Context) (seq uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ack, err := b.js.PublishMsg(ctx, nats.NewMsg(subjectOf(b.ns, fenceKey)), jetstream.WithExpectStream(StreamName(b.ns)), jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}
