package protocol

import (
	"slices"
	"strconv"
	"strings"
)

// Limits of handles.
const (
	HandleVersion = 1
	// MaxHandle bounds the JSON of one handle.
	MaxHandle = 16 << 10
	// MaxDType bounds the name of a type.
	MaxDType = 32
	// MaxHost bounds the name of a broker's instance.
	MaxHost = 64
)

// Handle is what travels instead of a tensor: where its storage is and what the
// view looks like. A tensor without elements has no storage: Segment, Serial,
// Index, Generation, Offset, Bytes and ByteOffset are 0 then and Lease is nil.
type Handle struct {
	Host       string // instance of the broker whose memory it is
	Segment    uint64 // serial of the segment
	Serial     uint64 // of the chunk of indices
	Index      uint32 // of the storage
	Generation uint64 // of the storage, 52 bits
	Offset     uint64 // of the storage in the segment, bytes
	Bytes      uint64 // of the storage
	DType      string // as ml_dtypes names it; only its characters are checked here
	Shape      []int64
	Strides    []int64 // elements; nil: C-contiguous
	ByteOffset uint64  // where the view begins in the storage
	Device     string  // "cpu" or "cuda:N"
	ReadOnly   bool
	Lease      *uint64 // that protects it on the way; nil: none
}

const remedyHandle = "take it again from its maker; a handle is passed on unchanged"

func errHandle(format string, args ...any) *Error {
	return Errorf(CodeHandle, remedyHandle, "a handle "+format, args...)
}

// Empty tells whether the handle is of a tensor without elements, which has no
// storage to open.
func (h *Handle) Empty() bool { return h.Serial == 0 }

// Check refuses (CodeHandle) numbers and names that no handle has. Whether the
// view fits in its storage and the storage exists is seen when it is opened.
func (h *Handle) Check() error {
	switch {
	case len(h.Host) > MaxHost || !isToken(h.Host):
		return errHandle("is of host %q, which is no instance", shortened(h.Host))
	case len(h.DType) > MaxDType || !isDType(h.DType):
		return errHandle("has dtype %q, which is no name of a type", shortened(h.DType))
	case !isDevice(h.Device):
		return errHandle("is on device %q: only \"cpu\" and \"cuda:N\" exist", shortened(h.Device))
	case h.Lease != nil && (*h.Lease == 0 || *h.Lease > MaxSafeInt):
		return errHandle("has lease %d, outside 1 to 2^53-1", *h.Lease)
	}
	if err := h.checkDims(); err != nil {
		return err
	}
	at := h.storage()
	if err := at.check(h.ByteOffset); err != nil {
		return err
	}
	return h.checkStorage()
}

func (h *Handle) checkDims() error {
	if len(h.Shape) > MaxNdim {
		return errHandle("has %d dimensions, more than %d", len(h.Shape), MaxNdim)
	}
	if h.Strides != nil && len(h.Strides) != len(h.Shape) {
		return errHandle("has %d strides for %d dimensions", len(h.Strides), len(h.Shape))
	}
	for _, d := range h.Shape {
		if d < 0 || d > MaxSafeInt {
			return errHandle("has dimension %d, outside 0 to 2^53-1", d)
		}
	}
	for _, s := range h.Strides {
		if s < -MaxSafeInt || s > MaxSafeInt {
			return errHandle("has stride %d, outside ±(2^53-1)", s)
		}
	}
	return nil
}

func (h *Handle) checkStorage() error {
	if !h.Empty() {
		if h.Segment == 0 {
			return errHandle("has serial %d but no segment", h.Serial)
		}
		return nil
	}
	if h.Segment != 0 || h.Index != 0 || h.Generation != 0 || h.Offset != 0 || h.Bytes != 0 || h.Lease != nil {
		return errHandle("has serial 0 but names a storage")
	}
	if !slices.Contains(h.Shape, 0) {
		return errHandle("has elements but no storage")
	}
	return nil
}

// Storage is the part of a handle that says where the bytes are.
type Storage struct {
	Segment    uint64
	Serial     uint64
	Index      uint32
	Generation uint64
	Offset     uint64
	Bytes      uint64
}

func (h *Handle) storage() Storage {
	return Storage{h.Segment, h.Serial, h.Index, h.Generation, h.Offset, h.Bytes}
}

// check refuses (CodeHandle) numbers of no storage, and of none in which a view
// begins at an offset.
func (s *Storage) check(byteOffset uint64) error {
	switch {
	case s.Index >= MaxStorages:
		return errHandle("has index %d, not below %d", s.Index, MaxStorages)
	case s.Generation > GenerationMask:
		return errHandle("has generation %d, above 2^52-1", s.Generation)
	case s.Segment > MaxSafeInt || s.Serial > MaxSafeInt:
		return errHandle("has segment %d and serial %d, above 2^53-1", s.Segment, s.Serial)
	case s.Offset > MaxSafeInt || s.Bytes > MaxSafeInt-s.Offset:
		return errHandle("has offset %d and %d bytes, which end above 2^53-1", s.Offset, s.Bytes)
	case byteOffset > s.Bytes:
		return errHandle("has byte_offset %d in a storage of %d bytes", byteOffset, s.Bytes)
	}
	return nil
}

// append goes on behind appendHandleBegin.
func (s Storage) append(dst []byte) []byte {
	dst = appendUint(dst, s.Segment)
	dst = appendNumber(dst, `,"serial":`, s.Serial)
	dst = appendNumber(dst, `,"index":`, uint64(s.Index))
	dst = appendNumber(dst, `,"generation":`, s.Generation)
	dst = appendNumber(dst, `,"offset":`, s.Offset)
	return appendNumber(dst, `,"bytes":`, s.Bytes)
}

func isDType(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return s != ""
}

func isDevice(s string) bool {
	if s == "cpu" {
		return true
	}
	number, cuda := strings.CutPrefix(s, "cuda:")
	n, err := strconv.ParseUint(number, 10, 31)
	return cuda && err == nil && strconv.FormatUint(n, 10) == number
}

// MarshalJSON writes the handle; what Check refuses is refused. The refusal has CodeHandle.
func (h Handle) MarshalJSON() ([]byte, error) {
	if err := h.Check(); err != nil {
		return nil, err
	}
	return h.append(make([]byte, 0, 256)), nil
}

// append writes a checked handle.
func (h *Handle) append(dst []byte) []byte {
	return h.appendView(h.storage().append(appendHandleBegin(dst, h.Host)))
}

// appendHandleBegin writes what all handles of a host begin with.
func appendHandleBegin(dst []byte, host string) []byte {
	return append(appendText(append(dst, `{"v":1,"host":`...), host), `,"segment":`...)
}

// appendView writes what follows the storage.
func (h *Handle) appendView(dst []byte) []byte {
	dst = append(dst, `,"dtype":`...)
	dst = appendText(dst, h.DType)
	dst = appendDims(append(dst, `,"shape":`...), h.Shape)
	if dst = append(dst, `,"strides":`...); h.Strides == nil {
		dst = append(dst, "null"...)
	} else {
		dst = appendDims(dst, h.Strides)
	}
	dst = appendNumber(dst, `,"byte_offset":`, h.ByteOffset)
	dst = append(dst, `,"device":`...)
	dst = appendText(dst, h.Device)
	dst = strconv.AppendBool(append(dst, `,"readonly":`...), h.ReadOnly)
	if h.Lease == nil {
		return append(dst, `,"lease":null}`...)
	}
	return append(appendNumber(dst, `,"lease":`, *h.Lease), '}')
}

func appendNumber(dst []byte, key string, n uint64) []byte {
	return appendUint(append(dst, key...), n)
}

func appendDims(dst []byte, dims []int64) []byte {
	dst = append(dst, '[')
	for i, d := range dims {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, d, 10)
	}
	return append(dst, ']')
}

// UnmarshalJSON is ParseHandle. After a refusal (CodeHandle) the handle is as before.
func (h *Handle) UnmarshalJSON(data []byte) error {
	parsed, err := ParseHandle(data)
	if err == nil {
		*h = parsed
	}
	return err
}

// ParseHandle reads a handle that came from anywhere. Every field must stand in
// it once, null ones too, so that a damaged one is not taken for its default;
// unknown ones are ignored. Every refusal has CodeHandle.
func ParseHandle(data []byte) (Handle, error) {
	var h Handle
	if err := handleDocument.parse(data, h.field); err != nil {
		return Handle{}, err
	}
	if err := h.Check(); err != nil {
		return Handle{}, err
	}
	return h, nil
}

var handleDocument = document{
	kind: "a handle", remedy: remedyHandle, version: HandleVersion, most: MaxHandle,
	fields: []string{"v", "host", "segment", "serial", "index", "generation", "offset", "bytes",
		"dtype", "shape", "strides", "byte_offset", "device", "readonly", "lease"},
}

// field reads the value of one key.
func (h *Handle) field(r *jsonReader, key string) (err error) {
	switch key {
	case "host":
		h.Host, err = r.text()
	case "segment":
		h.Segment, err = r.natural()
	case "serial":
		h.Serial, err = r.natural()
	case "index":
		var n uint64
		if n, err = r.natural(); err == nil && n >= MaxStorages {
			err = r.fail("index %d is not below %d", n, MaxStorages)
		}
		h.Index = uint32(n)
	case "generation":
		h.Generation, err = r.natural()
	case "offset":
		h.Offset, err = r.natural()
	case "bytes":
		h.Bytes, err = r.natural()
	case "dtype":
		h.DType, err = r.text()
	case "shape":
		h.Shape, err = r.dims()
	case "strides":
		var null bool
		if null, err = r.null(); !null && err == nil {
			h.Strides, err = r.dims()
		}
	case "byte_offset":
		h.ByteOffset, err = r.natural()
	case "device":
		h.Device, err = r.text()
	case "readonly":
		h.ReadOnly, err = r.boolean()
	case "lease":
		var null bool
		if null, err = r.null(); !null && err == nil {
			h.Lease = new(uint64)
			*h.Lease, err = r.natural()
		}
	default:
		_, err = r.raw()
	}
	return err
}

// dims reads a list of at most MaxNdim integers; it is never nil.
func (r *jsonReader) dims() ([]int64, error) {
	out := []int64{}
	err := r.array(func(i int) error {
		if i == MaxNdim {
			return r.fail("more than %d dimensions", MaxNdim)
		}
		n, err := r.integer()
		out = append(out, n)
		return err
	})
	return out, err
}
