package machines

import (
	"context"
	"errors"
	"time"
)

// Offer is how a receiver reaches a source.
type Offer struct {
	Addresses []string `json:"addresses,omitempty"` // host:port, of direct connections
	// Certificate is the fingerprint of the source's, if its direct connections are encrypted.
	Certificate string `json:"certificate,omitempty"`
	NATS        bool   `json:"nats,omitempty"`
}

// Transport carries the frames of transfers between hosts. All transports carry the same frames.
type Transport interface {
	Name() string
	// Offer adds how this host is reached.
	Offer(o *Offer)
	// Accept has serve called for each passage that a receiver opens, in a goroutine of its own, until Close. serve closes
	// the passage.
	Accept(serve func(Passage))
	// Open reaches the source of an offer. errNoWay: it offers none for this transport.
	Open(ctx context.Context, ns, host string, o *Offer) (Passage, error)
	// Close ends all passages and waits for what serves them.
	Close()
}

// Passage carries the frames of one transfer, both ways, whole and in order. One goroutine sends and receives; Close, which aborts
// the transfer, may be called by any.
type Passage interface {
	// Send writes a frame; the lengths of body and f.Body are equal. The body is not used after it has returned.
	Send(f Frame, body []byte) error
	// Receive waits for a frame. errSilence: none came in time, and the passage can still be used.
	Receive(within time.Duration) (Frame, error)
	// Body reads the body of the frame received last; it is read whole, once, before the next Receive.
	Body(to []byte) error
	Close() error
}

var (
	errSilence = errors.New("nothing came in time")
	errNoWay   = errors.New("the host offers no such way")
	errClosed  = errors.New("the passage was closed")
)

const (
	// progressTime is how long a transfer may stand without progress: the source's reference ends then.
	progressTime = 10 * time.Second
	// helloTime is how long a passage may take to say which transfer it is for.
	helloTime = 5 * time.Second
	// directTime is how long a receiver tries the data addresses of a source.
	directTime = time.Second
	// mostAddresses bounds the data addresses of a host that are looked at.
	mostAddresses = 8
	// mostPassages bounds the passages that a transport serves at a time.
	mostPassages = 1024
)
