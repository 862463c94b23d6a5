package client

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// Stream names a stream of a GPU as DLPack does: 1 is the legacy default stream,
// larger numbers are pointers; NoStream is for who synchronises himself. 2, the
// per-thread stream, is refused, since goroutines change threads. A stream lives as
// long as the client holds what was used on it or sent behind it, for it is asked to
// write a value when that is let go. One that is being captured into a graph cannot be
// named.
type Stream int64

// Streams with fixed names.
const (
	NoStream     Stream = -1
	LegacyStream Stream = 1
)

func (s Stream) send(o *sendOptions)     { o.stream, o.given = s, true }
func (s Stream) export(o *exportOptions) { o.stream = s }

// check refuses what names no stream.
func (s Stream) check() error {
	if s == NoStream || s == LegacyStream || s > 2 {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalid, "use 1, the stream's pointer, or NoStream", "stream %d cannot be used", s)
}

// streamPoint is how far a session's stream is to come: number is that of the
// word in its session file. The zero value is nowhere.
type streamPoint struct {
	file   *mapping
	number uint32
	value  uint64
}

// word reads how far the stream has come, and whether its session is over.
//
// SYNC stream-word: the stream's driver, or the broker after the death of its
// process, has written it; work before the value is visible on the device.
func (p *streamPoint) word() (value uint64, over bool) {
	w := p.file.Load64(protocol.SessionStreams + 8*uint64(p.number-1))
	runtime.KeepAlive(p.file)
	return w &^ protocol.StreamPoison, w&protocol.StreamPoison != 0
}

// passed tells whether the stream has come to the point; never, with ErrExpired,
// when its session ended before.
func (p *streamPoint) passed() (bool, error) {
	if p.number == 0 {
		return true, nil
	}
	value, over := p.word()
	if value >= p.value {
		return true, nil
	}
	if over {
		return false, errExpired("its sender ended before its stream had written it")
	}
	return false, nil
}

// deviceUse is what streams have to do with a holding.
type deviceUse struct {
	written streamPoint   // when the sender's stream has written it; set before others see this
	mu      sync.Mutex    // guards what follows, until the last release
	told    []namedStream // which wait for it already
	uses    []streamUse   // by streams of this process
	opened  []*deviceSegment
}

// namedStream is a stream of this process. The driver gives the address of a stream that
// was destroyed to another only when its work is done: who was told to wait has waited
// then, and the word of the one serves the other. cuStreamGetId, which tells them apart,
// may not be asked of one that is destroyed, and is not needed.
type namedStream struct {
	gpu    *gpu
	stream Stream
}

type streamUse struct {
	gpu    *gpu
	stream Stream
	// done is behind all work of the stream that was announced; number 0: more was
	// announced since.
	done streamPoint
}

// use notes that a stream uses the holding, up to a point or until its release.
func (u *deviceUse) use(g *gpu, s Stream, done streamPoint) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.uses {
		if u.uses[i].gpu == g && u.uses[i].stream == s {
			u.uses[i].done = done
			return
		}
	}
	u.uses = append(u.uses, streamUse{g, s, done})
}

// follow makes a stream wait until the holding is written, once for all tensors of a
// message. The stream lives as long as the holding, so that no other is taken for it.
func (u *deviceUse) follow(ctx context.Context, o *deviceOrder, g *gpu, s Stream) error {
	if ok, err := u.written.passed(); ok || err != nil {
		return err
	}
	named := namedStream{g, s}
	u.mu.Lock()
	told := slices.Contains(u.told, named)
	u.mu.Unlock()
	if told {
		return nil
	}
	if err := o.follow(ctx, g, s, u.written); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !slices.Contains(u.told, named) { // another goroutine may have told it as well
		u.told = append(u.told, named)
	}
	return nil
}

// used returns the notes of a holding, made at the first call.
func (h *holding) used() *deviceUse {
	if u := h.device.Load(); u != nil {
		return u
	}
	h.device.CompareAndSwap(nil, &deviceUse{})
	return h.device.Load()
}

// ownStream is a stream of this process that has a word.
type ownStream struct {
	gpu    *gpu
	stream Stream
	number uint32
	last   uint64 // value that it was last told to write
}

// deviceOrder orders the streams of this process with those of others.
type deviceOrder struct {
	c       *Client
	orderMu sync.Mutex // guards what follows; held across calls of the driver
	own     []*ownStream
	pages   map[*mapping]registered
	over    bool // nothing is registered any more
	retired
}

// registered is the page of a session file that streams reach. It stays so, and the
// file mapped, to the end of the client: a stream may wait there.
type registered struct {
	gpu *gpu
	at  uint64 // its device address; 0: this driver cannot
}

func (o *deviceOrder) init(c *Client) {
	o.c, o.pages = c, map[*mapping]registered{}
	o.retired.init()
}

// pageOf registers the page of a session file in which the words stand. 0: this
// driver cannot, and the processor waits instead. Callers hold orderMu.
func (o *deviceOrder) pageOf(g *gpu, file *mapping) uint64 {
	if r, known := o.pages[file]; known || o.over {
		return r.at
	}
	r := registered{gpu: g}
	if g.Values() {
		if at, err := g.Register(devicePage(file), file == o.c.pages.session); err == nil {
			r.at = at
		}
	}
	o.pages[file] = r
	return r.at
}

func devicePage(file *mapping) []byte {
	return file.Bytes(protocol.SessionDevicePage, protocol.PageBytes)
}

// end gives the pages back to the driver. No stream of this process uses them any
// more.
func (o *deviceOrder) end() {
	o.orderMu.Lock()
	defer o.orderMu.Unlock()
	for file, r := range o.pages {
		if r.at != 0 {
			// What cannot be undone ends with the process.
			_ = r.gpu.Unregister(devicePage(file))
		}
	}
	clear(o.pages)
	o.over = true
}

func wordAt(page uint64, number uint32) uint64 {
	return page + protocol.SessionStreams - protocol.SessionDevicePage + 8*uint64(number-1)
}

// mark makes a stream write its next value, and returns the point. Where streams
// cannot write, or too many have, it waits for the stream instead and returns the
// zero point.
func (o *deviceOrder) mark(g *gpu, s Stream) (streamPoint, error) {
	o.orderMu.Lock()
	defer o.orderMu.Unlock()
	file := o.c.pages.session
	page := o.pageOf(g, file)
	w := o.find(g, s)
	if page == 0 || w == nil {
		return streamPoint{}, g.SynchronizeStream(uint64(s))
	}
	if err := g.WriteValue(uint64(s), wordAt(page, w.number), w.last+1); cannot(err) {
		return streamPoint{}, g.SynchronizeStream(uint64(s))
	} else if err != nil {
		return streamPoint{}, err
	}
	w.last++
	return streamPoint{file, w.number, w.last}, nil
}

func (o *deviceOrder) find(g *gpu, s Stream) *ownStream {
	for _, w := range o.own {
		if w.gpu == g && w.stream == s {
			return w
		}
	}
	if len(o.own) == protocol.MaxStreams {
		return nil
	}
	w := &ownStream{gpu: g, stream: s, number: uint32(len(o.own) + 1)}
	o.own = append(o.own, w)
	return w
}

// follow makes a stream wait for a point of another session's. The context is for where
// the processor waits.
func (o *deviceOrder) follow(ctx context.Context, g *gpu, s Stream, p streamPoint) error {
	if ok, err := p.passed(); ok || err != nil {
		return err
	}
	o.orderMu.Lock()
	if i := int(p.number) - 1; p.file == o.c.pages.session && i < len(o.own) && o.own[i].gpu == g && o.own[i].stream == s {
		o.orderMu.Unlock()
		return nil // it comes after its own work
	}
	page := o.pageOf(g, p.file)
	var err error
	if page != 0 {
		err = g.WaitValue(uint64(s), wordAt(page, p.number), p.value)
	}
	o.orderMu.Unlock()
	if page == 0 || cannot(err) {
		return p.await(ctx, o.c)
	}
	return err
}

// cannot tells of an error by which a driver says that it cannot order streams in this
// way, whatever its attributes promise: then the processor waits. Statuses differ
// between drivers.
func cannot(err error) bool {
	return errors.Is(err, protocol.ErrUnsupported) || errors.Is(err, protocol.ErrInvalid)
}

// afterLoss is how long a sender still has to write once the session is lost: no broker
// tells of its death then.
const afterLoss = 500 * time.Millisecond

// await waits on the processor.
func (p *streamPoint) await(ctx context.Context, c *Client) error {
	var last time.Time
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		if ok, err := p.passed(); ok || err != nil {
			return err
		}
		if lost := c.life.lost.Load(); lost != nil {
			if last.IsZero() {
				last = time.Now().Add(afterLoss)
			}
			if time.Now().After(last) {
				return lost
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return contextError(ctx, "waiting for the sender's stream to write")
		}
	}
}

// UseOn says that work enqueued on a stream from now on uses the tensor: the stream
// waits until it is written, and Release waits, without blocking, until the
// stream has come past what was enqueued before it. Work that follows a Send is
// announced anew. ErrExpired: the sender ended before it had written, or who lent the
// memory has ended. For memory of the machine it does nothing.
func (t *Tensor) UseOn(s Stream) error {
	if err := s.check(); err != nil {
		return err
	}
	if t.over.Load() {
		return errReleased(t.String())
	}
	if t.device == nil || s == NoStream {
		return nil
	}
	if err := t.held.checkLenders(); err != nil {
		return err
	}
	u := t.held.used()
	if err := u.follow(context.Background(), &t.held.c.devices.deviceOrder, t.device.gpu, s); err != nil {
		return err
	}
	u.use(t.device.gpu, s, streamPoint{})
	return nil
}

// Written waits until the sender's stream has written the tensor. ErrExpired: the
// sender ended before, or who lent the memory has ended. A stream that waited by
// UseOn and came through because the sender died has read what was there before:
// who must not use that asks here, when the stream has passed.
func (t *Tensor) Written(ctx context.Context) error {
	if u := t.held.device.Load(); u != nil {
		if err := u.written.await(ctx, t.held.c); err != nil {
			return err
		}
	}
	return t.held.checkLenders()
}

// writtenBy notes that a fresh tensor on a GPU is written when a stream has come as
// far as it was told.
func (t *Tensor) writtenBy(s Stream) error {
	done, err := t.held.c.devices.mark(t.device.gpu, s)
	if err == nil && done.number != 0 {
		t.held.used().written = done
		t.held.used().use(t.device.gpu, s, done)
	}
	return err
}

// ordered notes when a message's bytes are written, as its sender says.
func (h *holding) ordered(from *peer, stream uint32, value uint64) error {
	if stream == 0 || stream > protocol.MaxStreams || value >= protocol.StreamPoison {
		return protocol.Errorf(protocol.CodeProtocol, "its sender is at fault", "a message is ordered by stream %d, value %d", stream, value)
	}
	h.used().written = streamPoint{from.file, stream, value}
	return nil
}

// orderSend makes the stream of a send come after what its tensors wait for, and
// returns when it will have written them.
func (d *deviceSet) orderSend(ctx context.Context, tensors []*Tensor, o *sendOptions) (streamPoint, error) {
	s := LegacyStream
	if o.given {
		s = o.stream
	}
	if err := s.check(); err != nil {
		return streamPoint{}, err
	}
	g := tensors[0].device.gpu
	var before []streamPoint // the last of each stream: it comes after its earlier ones
	for _, t := range tensors {
		if t.device.gpu != g && s != NoStream {
			return streamPoint{}, protocol.Errorf(protocol.CodeInvalid, "send them apart, or synchronise and use NoStream",
				"one message with tensors on %s and %s has no common stream", g.Device(), t.Device())
		}
		if s == NoStream {
			if err := t.Written(ctx); err != nil {
				return streamPoint{}, err
			}
		} else if u := t.held.device.Load(); u != nil {
			before = last(before, u.written)
		}
	}
	if s == NoStream {
		return streamPoint{}, nil
	}
	for _, p := range before {
		if err := d.follow(ctx, g, s, p); err != nil {
			return streamPoint{}, err
		}
	}
	done, err := d.mark(g, s)
	if err != nil {
		return streamPoint{}, err
	}
	for _, t := range tensors {
		t.held.used().use(g, s, done)
	}
	return done, nil
}

// last adds a point to those of other streams, or puts it in the place of an earlier one
// of its own.
func last(all []streamPoint, p streamPoint) []streamPoint {
	for i := range all {
		if all[i].file == p.file && all[i].number == p.number {
			all[i].value = max(all[i].value, p.value)
			return all
		}
	}
	return append(all, p)
}

// settleWritten waits until everything on these tensors' GPUs is done: what a name or
// a handle names has no stream.
func (d *deviceSet) settleWritten(ctx context.Context, tensors []*Tensor) error {
	done := map[*gpu]bool{}
	for _, t := range tensors {
		if err := t.Written(ctx); err != nil {
			return err
		}
		if g := t.device.gpu; !done[g] {
			done[g] = true
			if err := g.Synchronize(); err != nil {
				return err
			}
		}
	}
	return nil
}
