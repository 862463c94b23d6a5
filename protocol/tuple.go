package protocol

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// Limits of tuples.
const (
	TupleVersion = 1
	// MaxTuple bounds the JSON of one tuple.
	MaxTuple = 64 << 20
	// MaxSender bounds the text that names a sender.
	MaxSender = 256
)

// Tuple is a message as JSON, for its readers on NATS: what a receiver on
// the machine gets, with handles for tensors. The handles have no lease; they
// open while the topic keeps the message.
type Tuple struct {
	Topic    string
	Sender   string
	Sequence uint64          // number of the message in its sender's lane, from 1
	Host     string          // instance of the broker
	Origin   Origin          // machine and processes, as far as they are known
	Stamp    uint64          // when it was sent: microseconds of the host's CLOCK_MONOTONIC (nanoseconds would pass 2^53 after 104 days)
	Lost     uint64          // messages of this sender that went by unseen before this one
	Meta     json.RawMessage // nil: none
	Value    json.RawMessage // the value tree; nil: as TreeOf makes it of the names
	Tensors  []TupleTensor
}

// TupleTensor is one tensor of a Tuple; its number is its place in the list.
type TupleTensor struct {
	Name   string
	Handle Handle
}

const remedyTuple = "take it as a broker publishes it; a tuple is passed on unchanged"

func errTuple(format string, args ...any) *Error {
	return Errorf(CodeHandle, remedyTuple, "a tuple "+format, args...)
}

// Check refuses (CodeHandle) what no tuple has, its handles included. Meta and
// Value are checked as JSON only: see DecodeTree.
func (t *Tuple) Check() error {
	if err := checkOrigin(t.Topic, t.Sender, t.Host, &t.Origin); err != nil {
		return err
	}
	return t.checkMessage(t.Host)
}

// checkOrigin checks what all tuples of a sender in a topic have in common.
func checkOrigin(topic, sender, host string, o *Origin) error {
	if err := CheckName(topic); err != nil {
		return errTuple("is of a topic that cannot be: %s", Plain(err))
	}
	switch {
	case len(sender) > MaxSender || !utf8.ValidString(sender):
		return errTuple("has a sender of %d bytes that is not UTF-8 of at most %d", len(sender), MaxSender)
	case len(host) > MaxHost || !isToken(host):
		return errTuple("is of host %q, which is no instance", shortened(host))
	}
	return o.check()
}

// checkMessage checks the rest of a tuple of a host.
func (t *Tuple) checkMessage(host string) error {
	switch {
	case t.Sequence == 0 || t.Sequence > MaxSafeInt:
		return errTuple("has sequence %d, outside 1 to 2^53-1", t.Sequence)
	case t.Stamp > MaxSafeInt || t.Lost > MaxSafeInt:
		return errTuple("has stamp %d and lost %d, above 2^53-1", t.Stamp, t.Lost)
	case len(t.Tensors) > MaxTensors:
		return errTuple("has %d tensors, more than %d", len(t.Tensors), MaxTensors)
	}
	for i := range t.Tensors {
		if err := t.Tensors[i].check(i, host); err != nil {
			return err
		}
	}
	if t.Meta != nil && !isJSON(t.Meta) {
		return errTuple("has meta that is not JSON")
	}
	if t.Value != nil && !isJSON(t.Value) {
		return errTuple("has a value that is not JSON")
	}
	return nil
}

func (x *TupleTensor) check(i int, host string) error {
	if !utf8.ValidString(x.Name) {
		return errTuple("has tensor %d with a name that is not UTF-8", i)
	}
	if err := x.Handle.Check(); err != nil {
		return errTuple("has tensor %d whose handle is wrong: %s", i, Plain(err))
	}
	if x.Handle.Host != host || x.Handle.Lease != nil {
		return errTuple("has tensor %d of another host or with a lease", i)
	}
	return nil
}

func isJSON(data []byte) bool {
	r := &jsonReader{data: data}
	_, err := r.raw()
	return err == nil && r.end() == nil
}

// UnmarshalJSON is ParseTuple. After a refusal (CodeHandle) the tuple is as before.
func (t *Tuple) UnmarshalJSON(data []byte) error {
	parsed, err := ParseTuple(data)
	if err == nil {
		*t = parsed
	}
	return err
}

var tupleDocument = document{
	kind: "a tuple", remedy: remedyTuple, version: TupleVersion, most: MaxTuple,
	fields:   slices.Concat([]string{"v", "topic", "sender", "sequence", "host", "stamp", "lost", "meta", "value", "tensors"}, originFields),
	optional: len(originFields),
}

// ParseTuple reads a tuple that came from anywhere. Every field must stand in
// it once, but for those of its Origin; unknown ones are ignored. Meta that is null
// becomes nil. Meta and Value are copies. Every refusal has CodeHandle.
func ParseTuple(data []byte) (Tuple, error) {
	var t Tuple
	if err := tupleDocument.parse(data, t.field); err != nil {
		return Tuple{}, elsewhere(data, err)
	}
	if err := t.Check(); err != nil {
		return Tuple{}, err
	}
	return t, nil
}

func (t *Tuple) field(r *jsonReader, key string) (err error) {
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
	case "lost":
		t.Lost, err = r.natural()
	case "meta":
		if t.Meta, err = r.raw(); string(t.Meta) == "null" {
			t.Meta = nil
		}
		t.Meta = bytes.Clone(t.Meta)
	case "value":
		t.Value, err = r.raw()
		t.Value = bytes.Clone(t.Value)
	case "tensors":
		t.Tensors = []TupleTensor{}
		err = r.array(func(i int) error {
			if i == MaxTensors {
				return r.fail("more than %d tensors", MaxTensors)
			}
			x, err := tupleTensor(r)
			t.Tensors = append(t.Tensors, x)
			return err
		})
	default:
		_, err = r.raw()
	}
	return err
}

var tensorFields = []string{"name", "handle"}

func tupleTensor(r *jsonReader) (x TupleTensor, err error) {
	fields := fieldSet{names: tensorFields}
	err = r.object(func(key string) error {
		if err := fields.add(r, key); err != nil {
			return err
		}
		switch key {
		case "name":
			x.Name, err = r.text()
			return err
		case "handle":
			raw, err := r.raw()
			if err == nil {
				x.Handle, err = ParseHandle(raw)
			}
			return err
		}
		_, err := r.raw()
		return err
	})
	if missing := fields.missing(len(tensorFields)); err == nil && missing != "" {
		err = r.fail("a tensor has no %q", missing)
	}
	return x, err
}
