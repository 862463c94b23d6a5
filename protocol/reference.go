package protocol

import (
	"slices"
	"strings"
)

// maxReference bounds the JSON of one reference.
const maxReference = 16 << 10

// TupleReference stands for the tuple of a name that is too large for one message of
// NATS: in the name's key, in place of it. The tuple can be fetched piece by piece from
// the broker that wrote the reference, on Subject. It is no tuple, and ParseTuple
// refuses it, so that no reader takes it for a name without tensors.
//
// A request on Subject with a [TupleRequest] that names an offset is answered with as
// many bytes from there on as one message takes; one without an offset with
// [TupleSize].
type TupleReference struct {
	Topic    string
	Sender   string
	Sequence uint64 // revision of the name
	Host     string
	Origin   Origin
	Stamp    uint64

	Subject string
	Bytes   uint64 // of the tuple
	Tensors uint64
}

// TupleRequest asks for a piece of a name's tuple.
type TupleRequest struct {
	Revision uint64  `json:"revision,omitempty"` // 0: the present one
	Offset   *uint64 `json:"offset,omitempty"`   // nil: the size is asked for
}

// TupleSize says how long a name's tuple is.
type TupleSize struct {
	Revision uint64 `json:"revision"`
	Bytes    uint64 `json:"bytes"`
}

// NameSubject is where the broker of an instance answers for the tuple of a name.
func NameSubject(ns, host, name string) string {
	return NamesSubject(ns, host) + "." + strings.ReplaceAll(name, "/", ".")
}

// NamesSubject is what all NameSubjects of a namespace and host begin with.
func NamesSubject(ns, host string) string { return "baton." + ns + ".host." + host + ".names" }

// FunctionSubject is where a function is called over NATS: baton.<namespace>.call.<name>, with dots in the place of
// the slashes of the name.
func FunctionSubject(ns, name string) string {
	return "baton." + ns + ".call." + strings.ReplaceAll(name, "/", ".")
}

func (t *TupleReference) check() error {
	if err := checkOrigin(t.Topic, t.Sender, t.Host, &t.Origin); err != nil {
		return err
	}
	switch {
	case t.Sequence == 0 || t.Sequence > MaxSafeInt || t.Stamp > MaxSafeInt || t.Tensors > MaxTensors:
		return errTuple("elsewhere has sequence %d, stamp %d and %d tensors, beyond what a tuple has", t.Sequence, t.Stamp, t.Tensors)
	case t.Bytes == 0 || t.Bytes > MaxTuple:
		return errTuple("elsewhere has %d bytes, outside 1 to %d", t.Bytes, MaxTuple)
	}
	for _, token := range strings.Split(t.Subject, ".") {
		if !isToken(token) {
			return errTuple("elsewhere is on subject %q, which is none", shortened(t.Subject))
		}
	}
	return nil
}

// MarshalJSON writes the reference; what ParseTupleReference refuses is refused. The refusal has
// CodeHandle.
func (t TupleReference) MarshalJSON() ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	dst := appendText([]byte(`{"v":1,"topic":`), t.Topic)
	dst = appendText(append(dst, `,"sender":`...), t.Sender)
	dst = appendNumber(dst, `,"sequence":`, t.Sequence)
	dst = appendText(append(dst, `,"host":`...), t.Host)
	dst = appendNumber(t.Origin.append(dst), `,"stamp":`, t.Stamp)
	dst = appendText(append(dst, `,"reference":{"subject":`...), t.Subject)
	dst = appendNumber(dst, `,"bytes":`, t.Bytes)
	dst = appendNumber(dst, `,"tensors":`, t.Tensors)
	return append(dst, '}', '}'), nil
}

var referenceDocument = document{
	kind: "a tuple elsewhere", remedy: remedyTuple, version: TupleVersion, most: maxReference,
	fields:   slices.Concat([]string{"v", "topic", "sender", "sequence", "host", "stamp", "reference"}, originFields),
	optional: len(originFields),
}

// ParseTupleReference reads a reference that came from anywhere, as ParseTuple reads
// a tuple. Every refusal has CodeHandle.
func ParseTupleReference(data []byte) (TupleReference, error) {
	var t TupleReference
	if err := referenceDocument.parse(data, t.field); err != nil {
		return TupleReference{}, err
	}
	if err := t.check(); err != nil {
		return TupleReference{}, err
	}
	return t, nil
}

// UnmarshalJSON is ParseTupleReference. After a refusal (CodeHandle) the reference is as before.
func (t *TupleReference) UnmarshalJSON(data []byte) error {
	parsed, err := ParseTupleReference(data)
	if err == nil {
		*t = parsed
	}
	return err
}

func (t *TupleReference) field(r *jsonReader, key string) (err error) {
	switch key {
	case "topic":
		t.Topic, err = r.text()
	case "sender":
		t.Sender, err = r.text()
	case "sequence":
		t.Sequence, err = r.natural()
	case "host":
		t.Host, err = r.text()
	case "host_name", "machine", "broker_pid", "pid":
		err = t.Origin.field(r, key)
	case "stamp":
		t.Stamp, err = r.natural()
	case "reference":
		err = t.place(r)
	default:
		_, err = r.raw()
	}
	return err
}

var placeFields = []string{"subject", "bytes", "tensors"}

func (t *TupleReference) place(r *jsonReader) error {
	fields := fieldSet{names: placeFields}
	err := r.object(func(key string) (err error) {
		if err := fields.add(r, key); err != nil {
			return err
		}
		switch key {
		case "subject":
			t.Subject, err = r.text()
		case "bytes":
			t.Bytes, err = r.natural()
		case "tensors":
			t.Tensors, err = r.natural()
		default:
			_, err = r.raw()
		}
		return err
	})
	if missing := fields.missing(len(placeFields)); err == nil && missing != "" {
		err = r.fail("the reference has no %q", missing)
	}
	return err
}

// elsewhere is the error of a tuple that is a reference, else what it was.
func elsewhere(data []byte, err error) error {
	if t, is := ParseTupleReference(data); is == nil {
		return Errorf(CodeHandle, "ask for it there: docs/protocol.md says how",
			"a tuple of %d bytes is not here: its broker answers for it on %s", t.Bytes, t.Subject)
	}
	return err
}

// HostSubject is where the broker of an instance answers other hosts for a namespace: baton.<namespace>.host.<instance>.<what>.
func HostSubject(ns, host, what string) string { return "baton." + ns + ".host." + host + "." + what }
