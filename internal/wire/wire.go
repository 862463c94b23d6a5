package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Conn frames a Unix stream socket.
type Conn struct {
	*net.UnixConn
	buf  []byte // received, not yet consumed: buf[r:w]
	r, w int
	oob  []byte
	// Received with bytes, not yet given to a frame. Where some were lost, nil
	// stands behind those that came with them.
	fds []*sys.FD
	// What a frame may have, and how many descriptors may wait for theirs.
	maxFrame, maxFDs int
}

const (
	// usual is the room for what is received; longer frames make it larger until they
	// have been read.
	usual = 16 << 10
	// A stranger's frame is a hello or a request to stop; nearly all have less than 4 KiB.
	strangeFrame = 32 << 10
	strangeFDs   = 4
)

// ErrNoDescriptors: a frame's descriptors came while this process could have no
// more files open. Read returns it with the frame's JSON; the connection goes on.
var ErrNoDescriptors = protocol.Errorf(protocol.CodeTooMany, "raise the limit of open files (ulimit -n), or close some: a queue or topic that is in use has one, and so has each process whose memory is mapped",
	"descriptors were sent and could not be received: this process has too many open files")

// New frames a connection.
func New(c *net.UnixConn) *Conn {
	w := &Conn{UnixConn: c, buf: make([]byte, usual)}
	w.Trust()
	return w
}

// NewStranger is New for a peer without a session: until Trust is called, the most that
// it can make this end keep is 64 KiB and a few descriptors.
func NewStranger(c *net.UnixConn) *Conn {
	return &Conn{UnixConn: c, buf: make([]byte, usual), oob: make([]byte, sys.FDSpace(strangeFDs)), maxFrame: strangeFrame, maxFDs: strangeFDs + 1}
}

// Trust takes frames of any size that the protocol allows from here on. Only the
// goroutine that reads calls it.
func (c *Conn) Trust() {
	c.maxFrame, c.maxFDs = protocol.MaxFrame, 4*protocol.MaxFrameFDs
	c.oob = make([]byte, sys.FDSpace(253))
}

// Read returns the next frame's JSON, valid until the next call, and its
// descriptors, which the caller closes. Any error but ErrNoDescriptors ends the
// connection's use.
func (c *Conn) Read() ([]byte, []*sys.FD, error) {
	data, fds, err := c.read()
	if err != nil && err != ErrNoDescriptors { // the connection is of no more use
		c.Discard()
	}
	return data, fds, err
}

// Discard closes the descriptors that no frame has announced. It is for the
// reading side, at the end.
func (c *Conn) Discard() {
	CloseAll(c.fds)
	c.fds = nil
}

func (c *Conn) read() ([]byte, []*sys.FD, error) {
	if err := c.need(protocol.FrameHead); err != nil {
		return nil, nil, err
	}
	n, fds, err := protocol.ParseFrameHead(c.buf[c.r : c.r+protocol.FrameHead])
	if err != nil {
		return nil, nil, err
	}
	if n > c.maxFrame {
		return nil, nil, protocol.Errorf(protocol.CodeProtocol, "say hello first", "a frame of %d bytes where at most %d are taken", n, c.maxFrame)
	}
	c.r += protocol.FrameHead
	if err := c.need(n); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, err
	}
	data := c.buf[c.r : c.r+n]
	c.r += n
	got, err := c.take(fds)
	return data, got, err
}

// take gives a frame its n descriptors, which came with its first byte.
func (c *Conn) take(n int) ([]*sys.FD, error) {
	if i := slices.Index(c.fds[:min(n, len(c.fds))], nil); i >= 0 {
		CloseAll(c.fds[:i])
		c.fds = c.fds[i+1:]
		return nil, ErrNoDescriptors
	}
	if n > len(c.fds) {
		return nil, protocol.Errorf(protocol.CodeProtocol, "send descriptors with the frame's first byte",
			"frame announces %d descriptors, %d came", n, len(c.fds))
	}
	got := c.fds[:n:n]
	c.fds = c.fds[n:]
	return got, nil
}

// need makes n bytes available at c.r.
func (c *Conn) need(n int) error {
	if c.w-c.r >= n {
		return nil
	}
	if c.r > 0 {
		copy(c.buf, c.buf[c.r:c.w])
		c.w -= c.r
		c.r = 0
	}
	if c.w == 0 && len(c.buf) > 4*usual {
		c.buf = make([]byte, usual)
	}
	for c.w < n {
		if c.w == len(c.buf) { // as it comes, whatever was announced
			grown := make([]byte, min(2*len(c.buf), max(n, usual)))
			copy(grown, c.buf[:c.w])
			c.buf = grown
		}
		got, oobn, flags, _, err := c.ReadMsgUnix(c.buf[c.w:], c.oob)
		if oobn > 0 {
			fds, perr := sys.ReceiveFDs(c.oob[:oobn])
			if perr != nil {
				return perr
			}
			c.fds = append(c.fds, fds...)
		}
		if sys.FDsLost(flags) {
			c.fds = append(c.fds, nil)
		}
		if oobn > 0 {
			if len(c.fds) > c.maxFDs {
				return protocol.Errorf(protocol.CodeProtocol, "announce descriptors in the frame's head",
					"%d descriptors came that no frame announces", len(c.fds))
			}
		}
		if errors.Is(err, io.EOF) || err == nil && got == 0 && oobn == 0 {
			if c.w > 0 {
				return io.ErrUnexpectedEOF
			}
			return io.EOF
		}
		if err != nil {
			return err
		}
		c.w += got
	}
	return nil
}

// Write sends v as JSON with descriptors, which stay the caller's.
func (c *Conn) Write(v any, fds ...*sys.FD) error {
	frame, err := Encode(v, len(fds))
	if err != nil {
		return err
	}
	return c.WriteFrame(frame, fds)
}

// Encode makes the bytes of a frame.
func Encode(v any, fds int) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use values that JSON can hold", "encode message: %w", err)
	}
	frame, err := protocol.AppendFrameHead(make([]byte, 0, protocol.FrameHead+len(data)), len(data), fds)
	if err != nil {
		return nil, err
	}
	return append(frame, data...), nil
}

// WriteFrame sends an encoded frame with its descriptors.
func (c *Conn) WriteFrame(frame []byte, fds []*sys.FD) error {
	_, err := c.WriteSome(frame, fds)
	return err
}

// WriteSome is WriteFrame for one that may end by a write deadline: with the error
// comes what was not sent, all of it or the frame's rest, which has no descriptors.
func (c *Conn) WriteSome(frame []byte, fds []*sys.FD) (rest []byte, err error) {
	var oob []byte
	if len(fds) > 0 {
		ns := make([]int, len(fds))
		for i, f := range fds {
			if ns[i], err = f.Acquire(); err != nil {
				return frame, fmt.Errorf("pass a descriptor: %w", err)
			}
			defer f.Release() // until then the number that the kernel gets is this file's
		}
		oob = sys.PassFDs(ns)
	}
	for len(frame) > 0 {
		n, _, err := c.WriteMsgUnix(frame, oob, nil)
		if err != nil {
			return frame, err
		}
		frame, oob = frame[n:], nil
	}
	return nil, nil
}

// CloseAll closes descriptors.
func CloseAll(fds []*sys.FD) {
	for _, f := range fds {
		f.Close()
	}
}
