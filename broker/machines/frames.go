package machines

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/baton-ipc/baton/protocol"
)

// Versions of the protocol between hosts that this program speaks.
const (
	Lowest  = 1
	Highest = 1
)

// Kinds of frames. A receiver sends hello, want and done, a source piece, released and refused.
const (
	kindHello    = 1
	kindWant     = 2
	kindPiece    = 3
	kindDone     = 4
	kindReleased = 5
	kindRefused  = 6
)

const (
	headBytes   = 40
	ticketBytes = 32
	// mostPiece is the length of a piece, but for the last one of a storage.
	mostPiece = 256 << 10
	// leastPiece is what a piece may be cut to if NATS takes small messages alone.
	leastPiece = 4 << 10
	// mostRefusal bounds the text of a refusal.
	mostRefusal = 4 << 10
)

// Frame is the head of each frame; its body follows.
type Frame struct {
	Kind    uint16
	Version uint16
	Body    uint32 // bytes that follow
	Offset  uint64 // want, piece: in the storage
	Length  uint32 // want: bytes
	Sum     xxh3.Uint128
}

// sumOf is the sum of a piece: of its bytes and of where they belong.
func sumOf(piece []byte, offset uint64) xxh3.Uint128 { return xxh3.Hash128Seed(piece, offset) }

func (f *Frame) put(to []byte) {
	clear(to[:headBytes])
	binary.LittleEndian.PutUint32(to, f.Body)
	binary.LittleEndian.PutUint16(to[4:], f.Kind)
	binary.LittleEndian.PutUint16(to[6:], f.Version)
	binary.LittleEndian.PutUint64(to[8:], f.Offset)
	binary.LittleEndian.PutUint64(to[16:], f.Sum.Lo)
	binary.LittleEndian.PutUint64(to[24:], f.Sum.Hi)
	binary.LittleEndian.PutUint32(to[32:], f.Length)
}

// readFrame reads a head and refuses what no frame has.
func readFrame(b []byte) (f Frame, err error) {
	if len(b) < headBytes {
		return f, malformed("a frame of %d bytes has no whole head", len(b))
	}
	f = Frame{Body: binary.LittleEndian.Uint32(b), Kind: binary.LittleEndian.Uint16(b[4:]), Version: binary.LittleEndian.Uint16(b[6:]),
		Offset: binary.LittleEndian.Uint64(b[8:]), Length: binary.LittleEndian.Uint32(b[32:]),
		Sum: xxh3.Uint128{Lo: binary.LittleEndian.Uint64(b[16:]), Hi: binary.LittleEndian.Uint64(b[24:])}}
	if f.Version < Lowest || f.Version > Highest {
		return f, protocol.Errorf(protocol.CodeVersion, "use the same version of Baton on both hosts", "a frame of version %d, this host speaks %s", f.Version, versions(Lowest, Highest))
	}
	most, known := map[uint16]uint32{kindHello: ticketBytes, kindWant: 0, kindPiece: mostPiece, kindDone: 0, kindReleased: 0, kindRefused: mostRefusal}[f.Kind]
	switch {
	case !known:
		return f, malformed("a frame of the unknown kind %d", f.Kind)
	case f.Body > most || f.Kind == kindHello && f.Body != ticketBytes:
		return f, malformed("a frame of kind %d with a body of %d bytes", f.Kind, f.Body)
	case f.Kind == kindWant && (f.Length == 0 || f.Length > mostPiece):
		return f, malformed("a frame that wants %d bytes", f.Length)
	case f.Offset > math.MaxInt64-mostPiece:
		return f, malformed("a frame for the offset %d", f.Offset)
	}
	return f, nil
}

func malformed(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.CodeProtocol, "use the same version of Baton on both hosts", format, args...)
}

func versions(lowest, highest int) string {
	if lowest == highest {
		return fmt.Sprint(lowest)
	}
	return fmt.Sprintf("%d to %d", lowest, highest)
}

// agree chooses the version that two hosts speak.
func agree(lowest, highest int, host string) (int, error) {
	v := min(highest, Highest)
	if lowest > highest || v < max(lowest, Lowest) {
		return 0, protocol.Errorf(protocol.CodeVersion, "update the older one of the two brokers",
			"host %s speaks the versions %s of the protocol between hosts, this one %s", host, versions(lowest, highest), versions(Lowest, Highest))
	}
	return v, nil
}

// refusal is the body of a frame that refuses, and what an answer has in the place of an offer.
func refusalBody(err error) []byte {
	e := asError(err)
	body, _ := json.Marshal(&protocol.Error{Code: e.Code, Message: shortened(e.Message), Remedy: shortened(e.Remedy)})
	return body
}

func readRefusal(host string, body []byte) error {
	var e protocol.Error
	if json.Unmarshal(body, &e) != nil || e.Code == "" {
		return malformed("host %s refused with what cannot be read", host)
	}
	return refusedBy(host, &e)
}

// refusedBy is what another host said; it is final.
func refusedBy(host string, e *protocol.Error) error {
	return &refused{protocol.Errorf(e.Code, shortened(e.Remedy), "host %s: %s", host, shortened(e.Message)).With("host", host)}
}

// Refusal is an error as other hosts are told it.
func Refusal(err error) *protocol.Error {
	var e protocol.Error
	if json.Unmarshal(refusalBody(err), &e) != nil {
		e = protocol.Error{Code: protocol.CodeInternal}
	}
	return &e
}

// RefusedBy is what another host said.
func RefusedBy(host string, e *protocol.Error) error { return refusedBy(host, e) }

// refused is an error after which a fetch is not tried again.
type refused struct{ why *protocol.Error }

func (r *refused) Error() string { return r.why.Error() }
func (r *refused) Unwrap() error { return r.why }

func asError(err error) *protocol.Error {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e
	}
	return protocol.Errorf(protocol.CodeInternal, "see the log of that host", "%w", err)
}

func shortened(s string) string {
	const most = 1 << 10
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "")
}
