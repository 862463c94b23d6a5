package gpu

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// Stream names a stream of a GPU as DLPack does.
type Stream int64

const (
	NoStream     Stream = -1 // none: the processor orders the work
	LegacyStream Stream = 1
)

// Check refuses what names no stream.
func (s Stream) Check() error {
	if s == NoStream || s == LegacyStream || s > 2 {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalid, "use 1, the stream's pointer, or NoStream", "stream %d cannot be used", s)
}

// Point is how far a session's stream is to come: number is that of the
// word in its session file. The zero value is nowhere.
type Point struct {
	file   *sessionfiles.Mapping
	number uint32
	value  uint64
}

// NewPoint is a point of a session's stream, by its file and the number of its word there.
func NewPoint(file *sessionfiles.Mapping, number uint32, value uint64) Point {
	return Point{file, number, value}
}

// IsSet tells whether the point is anywhere.
func (p *Point) IsSet() bool { return p.number != 0 }

// At returns the number of the stream's word, and the value that it has at the point.
func (p *Point) At() (number uint32, value uint64) { return p.number, p.value }

// word reads how far the stream has come, and whether its session is over.
//
// SYNC stream-word: the stream's driver, or the broker after the death of its
// process, has written it; work before the value is visible on the device.
func (p *Point) word() (value uint64, over bool) {
	w := p.file.Load64(protocol.SessionStreams + 8*uint64(p.number-1))
	runtime.KeepAlive(p.file)
	return w &^ protocol.StreamPoison, w&protocol.StreamPoison != 0
}

// passed tells whether the stream has come to the point; never, with ErrExpired,
// when its session ended before.
func (p *Point) passed() (bool, error) {
	if p.number == 0 {
		return true, nil
	}
	value, over := p.word()
	if value >= p.value {
		return true, nil
	}
	if over {
		return false, fault.Expired("its sender ended before its stream had written it")
	}
	return false, nil
}

// Use is what streams have to do with a holding.
type Use struct {
	Written Point         // when the sender's stream has written it; set before others see this
	mu      sync.Mutex    // guards what follows, until the last release
	told    []namedStream // which wait for it already
	uses    []streamUse   // by streams of this process
	opened  []*Segment
}

// namedStream is a stream of this process. The driver gives the address of a stream that
// was destroyed to another only when its work is done: a stream that was told to wait has waited
// then, and the word of the one serves the other. cuStreamGetId, which tells them apart,
// may not be asked of one that is destroyed, and is not needed.
type namedStream struct {
	gpu    *GPU
	stream Stream
}

type streamUse struct {
	gpu    *GPU
	stream Stream
	// done is after all work of the stream that was announced; number 0: more was
	// announced since.
	done Point
}

// Use notes that a stream uses the holding, up to a point or until its release.
func (u *Use) Use(g *GPU, s Stream, done Point) {
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

// Follow makes a stream wait until the holding is written, once for all tensors of a
// message. The stream lives as long as the holding, so that no other is taken for it.
func (u *Use) Follow(ctx context.Context, o *Order, g *GPU, s Stream) error {
	if ok, err := u.Written.passed(); ok || err != nil {
		return err
	}
	named := namedStream{g, s}
	u.mu.Lock()
	told := slices.Contains(u.told, named)
	u.mu.Unlock()
	if told {
		return nil
	}
	if err := o.Follow(ctx, g, s, u.Written); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !slices.Contains(u.told, named) { // another goroutine may have told it as well
		u.told = append(u.told, named)
	}
	return nil
}

// MarkAll finds for each stream of this process when it has passed what was announced. False:
// that cannot be known.
func (u *Use) MarkAll(o *Order) bool {
	for i := range u.uses {
		if u.uses[i].done.number != 0 {
			continue
		}
		var err error
		if u.uses[i].done, err = o.Mark(u.uses[i].gpu, u.uses[i].stream); err != nil {
			// A graph that has captured the stream may use it at any time. Else the stream may be
			// gone; what it did is over when all the GPU's work is.
			if errors.Is(err, protocol.ErrConflict) || u.uses[i].gpu.Synchronize() != nil {
				return false
			}
		}
	}
	return true
}

// Idle tells whether all streams of this process have passed.
func (u *Use) Idle() bool {
	for i := range u.uses {
		if ok, _ := u.uses[i].done.passed(); !ok {
			return false
		}
	}
	return true
}

// ownStream is a stream of this process that has a word.
type ownStream struct {
	gpu    *GPU
	stream Stream
	number uint32
	last   uint64 // value that it was last told to write
}

// Order orders the streams of this process with those of others.
type Order struct {
	session *sessionfiles.Mapping // the session's own file
	life    *life.Life

	mu    sync.Mutex // guards what follows; held across calls of the driver
	own   []*ownStream
	files map[*sessionfiles.Mapping]registered
	over  bool // nothing is registered any more
}

// registered is the page of a session file that streams reach. It stays so, and the
// file mapped, to the end of the client: a stream may wait there.
type registered struct {
	gpu *GPU
	at  uint64 // its device address; 0: this driver cannot
}

// NewOrder makes the order of the streams of a session, whose words stand in its own file.
func NewOrder(session *sessionfiles.Mapping, l *life.Life) *Order {
	return &Order{session: session, life: l, files: map[*sessionfiles.Mapping]registered{}}
}

// pageOf registers the page of a session file in which the words stand. 0: this
// driver cannot, and the processor waits instead. Callers hold mu.
func (o *Order) pageOf(g *GPU, file *sessionfiles.Mapping) uint64 {
	if r, known := o.files[file]; known || o.over {
		return r.at
	}
	r := registered{gpu: g}
	if g.Values() {
		if at, err := g.Register(devicePage(file), file == o.session); err == nil {
			r.at = at
		}
	}
	o.files[file] = r
	return r.at
}

func devicePage(file *sessionfiles.Mapping) []byte {
	return file.Bytes(protocol.SessionDevicePage, protocol.PageBytes)
}

// End gives the pages back to the driver. No stream of this process uses them any
// more.
func (o *Order) End() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for file, r := range o.files {
		if r.at != 0 {
			// What cannot be undone ends with the process.
			_ = r.gpu.Unregister(devicePage(file))
		}
	}
	clear(o.files)
	o.over = true
}

func wordAt(page uint64, number uint32) uint64 {
	return page + protocol.SessionStreams - protocol.SessionDevicePage + 8*uint64(number-1)
}

// Mark makes a stream write its next value, and returns the point. Where streams
// cannot write, or too many have, it waits for the stream instead and returns the
// zero point.
func (o *Order) Mark(g *GPU, s Stream) (Point, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	file := o.session
	page := o.pageOf(g, file)
	w := o.find(g, s)
	if page == 0 || w == nil {
		return Point{}, g.SynchronizeStream(uint64(s))
	}
	if err := g.WriteValue(uint64(s), wordAt(page, w.number), w.last+1); cannot(err) {
		return Point{}, g.SynchronizeStream(uint64(s))
	} else if err != nil {
		return Point{}, err
	}
	w.last++
	return Point{file, w.number, w.last}, nil
}

func (o *Order) find(g *GPU, s Stream) *ownStream {
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

// Follow makes a stream wait for a point of another session's. The context is for where
// the processor waits.
func (o *Order) Follow(ctx context.Context, g *GPU, s Stream, p Point) error {
	if ok, err := p.passed(); ok || err != nil {
		return err
	}
	o.mu.Lock()
	if i := int(p.number) - 1; p.file == o.session && i < len(o.own) && o.own[i].gpu == g && o.own[i].stream == s {
		o.mu.Unlock()
		return nil // it comes after its own work
	}
	page := o.pageOf(g, p.file)
	var err error
	if page != 0 {
		err = g.WaitValue(uint64(s), wordAt(page, p.number), p.value)
	}
	o.mu.Unlock()
	if page == 0 || cannot(err) {
		return p.Await(ctx, o.life)
	}
	return err
}

// cannot reports whether by an error a driver says that it cannot order streams in this
// way, whatever its attributes promise: then the processor waits. Statuses differ
// between drivers.
func cannot(err error) bool {
	return errors.Is(err, protocol.ErrUnsupported) || errors.Is(err, protocol.ErrInvalid)
}

// afterLoss is how long a sender still has to write once the session is lost: no broker
// reports its death then.
const afterLoss = 500 * time.Millisecond

// Await waits on the processor.
func (p *Point) Await(ctx context.Context, l *life.Life) error {
	var last time.Time
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		if ok, err := p.passed(); ok || err != nil {
			return err
		}
		if lost := l.WhyLost(); lost != nil {
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
			return fault.Context(ctx, "waiting for the sender's stream to write")
		}
	}
}

// Last adds a point to those of other streams, or puts it in the place of an earlier one
// of its own.
func Last(all []Point, p Point) []Point {
	for i := range all {
		if all[i].file == p.file && all[i].number == p.number {
			all[i].value = max(all[i].value, p.value)
			return all
		}
	}
	return append(all, p)
}
