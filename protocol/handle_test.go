package protocol_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func goodHandle() protocol.Handle {
	return protocol.Handle{
		Host: "5f3a90c1d2e4f60718293a4b5c6d7e8f", Segment: 7, Serial: 41, Index: 300, Generation: 12,
		Offset: 4096, Bytes: 24, DType: "float32", Shape: []int64{2, 3}, Device: "cpu",
	}
}

func TestHandleParsesToWhatWasMarshalled(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		want := goodHandle()
		want.Index = r.Uint32N(protocol.MaxStorages)
		want.Generation = r.Uint64N(protocol.GenerationMask + 1)
		want.Offset = r.Uint64N(protocol.MaxSafeInt / 2)
		want.Bytes = r.Uint64N(protocol.MaxSafeInt / 2)
		want.ByteOffset = r.Uint64N(want.Bytes + 1)
		want.ReadOnly = r.IntN(2) == 0
		want.Shape = []int64{}
		for range r.IntN(protocol.MaxNdim + 1) {
			want.Shape = append(want.Shape, r.Int64N(protocol.MaxSafeInt+1))
		}
		if r.IntN(2) == 0 {
			want.Strides = []int64{}
			for range want.Shape {
				want.Strides = append(want.Strides, r.Int64N(protocol.MaxSafeInt)-protocol.MaxSafeInt/2)
			}
		}
		if r.IntN(2) == 0 {
			lease := 1 + r.Uint64N(protocol.MaxSafeInt)
			want.Lease, want.Device = &lease, "cuda:"+strconv.Itoa(r.IntN(math.MaxInt32))
		}
		text, err := json.Marshal(want)
		require.NoError(t, err)
		got, err := protocol.ParseHandle(text)
		require.NoError(t, err, "%s", text)
		require.Equal(t, want, got)
		var again protocol.Handle
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, want, again)
	}
}

func TestHandleIsWrittenAsDocumented(t *testing.T) {
	h := goodHandle()
	text, err := json.Marshal(h)
	require.NoError(t, err)
	assert.Equal(t, `{"v":1,"host":"5f3a90c1d2e4f60718293a4b5c6d7e8f","segment":7,"serial":41,"index":300,"generation":12,`+
		`"offset":4096,"bytes":24,"dtype":"float32","shape":[2,3],"strides":null,"byte_offset":0,"device":"cpu","readonly":false,"lease":null}`, string(text))
}

func TestHandleCheckRefusesWhatNoHandleHas(t *testing.T) {
	zero, big := uint64(0), uint64(protocol.MaxSafeInt+1)
	for name, change := range map[string]func(*protocol.Handle){
		"no host":              func(h *protocol.Handle) { h.Host = "" },
		"host of other text":   func(h *protocol.Handle) { h.Host = "a.b" },
		"long host":            func(h *protocol.Handle) { h.Host = strings.Repeat("a", 65) },
		"no dtype":             func(h *protocol.Handle) { h.DType = "" },
		"dtype of other text":  func(h *protocol.Handle) { h.DType = "Float32" },
		"long dtype":           func(h *protocol.Handle) { h.DType = strings.Repeat("f", 33) },
		"other device":         func(h *protocol.Handle) { h.Device = "tpu:0" },
		"device without N":     func(h *protocol.Handle) { h.Device = "cuda" },
		"device N with zeros":  func(h *protocol.Handle) { h.Device = "cuda:01" },
		"device N with sign":   func(h *protocol.Handle) { h.Device = "cuda:+1" },
		"device N too large":   func(h *protocol.Handle) { h.Device = "cuda:2147483648" },
		"index":                func(h *protocol.Handle) { h.Index = protocol.MaxStorages },
		"generation":           func(h *protocol.Handle) { h.Generation = protocol.GenerationMask + 1 },
		"segment":              func(h *protocol.Handle) { h.Segment = big },
		"serial":               func(h *protocol.Handle) { h.Serial = big },
		"offset":               func(h *protocol.Handle) { h.Offset = big },
		"bytes":                func(h *protocol.Handle) { h.Bytes = big },
		"end":                  func(h *protocol.Handle) { h.Offset, h.Bytes = protocol.MaxSafeInt, 1 },
		"end that overflows":   func(h *protocol.Handle) { h.Offset, h.Bytes = protocol.MaxSafeInt, math.MaxUint64 },
		"byte_offset":          func(h *protocol.Handle) { h.ByteOffset = 25 },
		"65 dimensions":        func(h *protocol.Handle) { h.Shape = make([]int64, 65) },
		"negative dimension":   func(h *protocol.Handle) { h.Shape = []int64{-1} },
		"dimension":            func(h *protocol.Handle) { h.Shape = []int64{protocol.MaxSafeInt + 1} },
		"stride":               func(h *protocol.Handle) { h.Strides = []int64{1, -protocol.MaxSafeInt - 1} },
		"number of strides":    func(h *protocol.Handle) { h.Strides = []int64{1} },
		"lease 0":              func(h *protocol.Handle) { h.Lease = &zero },
		"lease":                func(h *protocol.Handle) { h.Lease = &big },
		"no segment":           func(h *protocol.Handle) { h.Segment = 0 },
		"no serial":            func(h *protocol.Handle) { h.Serial = 0 },
		"elements, no storage": func(h *protocol.Handle) { *h = emptyHandle(); h.Shape = []int64{1} },
	} {
		h := goodHandle()
		change(&h)
		err := h.Check()
		var e *protocol.Error
		require.ErrorAs(t, err, &e, name)
		assert.Equal(t, protocol.CodeHandle, e.Code, name)
		assert.NotEmpty(t, e.Remedy, name)
		_, err = json.Marshal(h)
		assert.ErrorIs(t, err, protocol.ErrInvalidHandle, name)
	}
}

func emptyHandle() protocol.Handle {
	return protocol.Handle{Host: "a", DType: "int8", Shape: []int64{3, 0}, Device: "cpu"}
}

func TestHandleOfNoElementsNeedsNoStorage(t *testing.T) {
	h := emptyHandle()
	text, err := json.Marshal(h)
	require.NoError(t, err)
	got, err := protocol.ParseHandle(text)
	require.NoError(t, err)
	assert.True(t, got.Empty())
	h = goodHandle()
	assert.False(t, h.Empty())
}

func TestParseHandleWantsEveryFieldOnce(t *testing.T) {
	text, err := json.Marshal(goodHandle())
	require.NoError(t, err)
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &fields))
	require.Len(t, fields, 15)
	for name, value := range fields {
		others := map[string]json.RawMessage{}
		for k, v := range fields {
			if k != name {
				others[k] = v
			}
		}
		without, err := json.Marshal(others)
		require.NoError(t, err)
		_, err = protocol.ParseHandle(without)
		assert.ErrorIs(t, err, protocol.ErrInvalidHandle, "without %s", name)
		assert.ErrorContains(t, err, name)

		others[strings.ToUpper(name)] = value
		upper, err := json.Marshal(others)
		require.NoError(t, err)
		_, err = protocol.ParseHandle(upper)
		assert.ErrorIs(t, err, protocol.ErrInvalidHandle, "with %s in capitals", name)

		twice := strings.TrimSuffix(string(text), "}") + `,"` + name + `":` + string(value) + `}`
		_, err = protocol.ParseHandle([]byte(twice))
		assert.ErrorIs(t, err, protocol.ErrInvalidHandle, "with %s twice", name)
	}
	_, err = protocol.ParseHandle([]byte(strings.TrimSuffix(string(text), "}") + `,"color":{"a":[1,null]}}`))
	assert.NoError(t, err, "an unknown field")
}

func TestParseHandleTellsOtherVersion(t *testing.T) {
	_, err := protocol.ParseHandle([]byte(`{"v":2,"place":"elsewhere"}`))
	assert.ErrorIs(t, err, protocol.ErrInvalidHandle)
	assert.ErrorContains(t, err, "version 2")
}

func TestParseHandleSurvivesEveryFlippedBit(t *testing.T) {
	lease := uint64(5)
	h := goodHandle()
	h.Strides, h.Lease = []int64{3, 1}, &lease
	text, err := json.Marshal(h)
	require.NoError(t, err)
	for bit := range len(text) * 8 {
		damaged := append([]byte(nil), text...)
		damaged[bit/8] ^= 1 << (bit % 8)
		if got, err := protocol.ParseHandle(damaged); err != nil {
			require.ErrorIs(t, err, protocol.ErrInvalidHandle)
		} else {
			require.NotEqual(t, h, got, "bit %d of %s", bit, damaged)
		}
	}
	for n := range text {
		_, err := protocol.ParseHandle(text[:n])
		require.ErrorIs(t, err, protocol.ErrInvalidHandle)
	}
	_, err = protocol.ParseHandle([]byte(strings.Repeat(" ", protocol.MaxHandle) + string(text)))
	assert.ErrorIs(t, err, protocol.ErrInvalidHandle)
}

func goodTuple() protocol.Tuple {
	h := goodHandle()
	return protocol.Tuple{
		Topic: "batches/train", Sender: "loader", Sequence: 41, Host: h.Host, Stamp: 1234567, Lost: 2,
		Meta: json.RawMessage(`{"epoch":3}`), Value: json.RawMessage(`[{"$":"tensor","i":0}]`),
		Tensors: []protocol.TupleTensor{{Name: "0", Handle: h}},
	}
}

func goodOrigin() protocol.Origin {
	return protocol.Origin{HostName: "node-7", Machine: "3c1f0a52-9d64-4b1e-8a37-1f0c6a2e5d90", BrokerPID: 17, PID: 4242}
}

func goodReference() protocol.TupleReference {
	return protocol.TupleReference{Topic: "weights/actor", Sender: "broker", Sequence: 7, Host: goodHandle().Host, Origin: goodOrigin(), Stamp: 1234567,
		Subject: "baton.default.host." + goodHandle().Host + ".names.weights.actor", Bytes: 3000000, Tensors: 9000}
}

func TestTupleTellsWhereItComesFrom(t *testing.T) {
	for _, o := range []protocol.Origin{{}, goodOrigin(), {HostName: "näme \"7\""}, {Machine: "m"}, {BrokerPID: 1}, {PID: math.MaxInt32}} {
		want := goodTuple()
		want.Origin = o
		text, err := json.Marshal(want)
		require.NoError(t, err)
		got, err := protocol.ParseTuple(text)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for name, o := range map[string]protocol.Origin{"long host name": {HostName: strings.Repeat("h", 256)}, "host name not UTF-8": {HostName: "\xff"},
		"machine of two tokens": {Machine: "a b"}, "long machine": {Machine: strings.Repeat("m", 65)}} {
		x := goodTuple()
		x.Origin = o
		_, err := json.Marshal(x)
		assert.ErrorIs(t, err, protocol.ErrInvalidHandle, name)
	}
}

func TestReferenceParsesToWhatWasMarshalled(t *testing.T) {
	want := goodReference()
	text, err := json.Marshal(want)
	require.NoError(t, err)
	var got protocol.TupleReference
	require.NoError(t, json.Unmarshal(text, &got))
	assert.Equal(t, want, got)
	assert.Equal(t, want.Subject, protocol.NameSubject("default", want.Host, want.Topic))

	_, err = protocol.ParseTuple(text)
	require.ErrorIs(t, err, protocol.ErrInvalidHandle, "a reader must not take it for a name without tensors")
	assert.ErrorContains(t, err, want.Subject)
}

func TestTupleParsesToWhatWasMarshalled(t *testing.T) {
	want := goodTuple()
	text, err := json.Marshal(want)
	require.NoError(t, err)
	got, err := protocol.ParseTuple(text)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	var again protocol.Tuple
	require.NoError(t, json.Unmarshal(text, &again))
	assert.Equal(t, want, again)
}

func TestTupleWithoutTreeWritesItOut(t *testing.T) {
	x := goodTuple()
	x.Value, x.Meta, x.Tensors[0].Name = nil, nil, "image"
	text, err := json.Marshal(x)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"meta":null,"value":{"image":{"$":"tensor","i":0}},"tensors":[{"name":"image","handle":{"v":1,`)
	got, err := protocol.ParseTuple(text)
	require.NoError(t, err)
	assert.Nil(t, got.Meta)
}

func TestTupleCheckRefusesWhatNoTupleHas(t *testing.T) {
	lease := uint64(1)
	for name, change := range map[string]func(*protocol.Tuple){
		"topic":            func(x *protocol.Tuple) { x.Topic = "a//b" },
		"sender not UTF-8": func(x *protocol.Tuple) { x.Sender = "\xff" },
		"long sender":      func(x *protocol.Tuple) { x.Sender = strings.Repeat("s", protocol.MaxSender+1) },
		"sequence 0":       func(x *protocol.Tuple) { x.Sequence = 0 },
		"sequence":         func(x *protocol.Tuple) { x.Sequence = protocol.MaxSafeInt + 1 },
		"stamp":            func(x *protocol.Tuple) { x.Stamp = protocol.MaxSafeInt + 1 },
		"lost":             func(x *protocol.Tuple) { x.Lost = protocol.MaxSafeInt + 1 },
		"host":             func(x *protocol.Tuple) { x.Host = "" },
		"other host":       func(x *protocol.Tuple) { x.Tensors[0].Handle.Host = "other" },
		"lease":            func(x *protocol.Tuple) { x.Tensors[0].Handle.Lease = &lease },
		"handle":           func(x *protocol.Tuple) { x.Tensors[0].Handle.DType = "" },
		"tensor name":      func(x *protocol.Tuple) { x.Tensors[0].Name = "\xff" },
		"meta":             func(x *protocol.Tuple) { x.Meta = json.RawMessage(`{`) },
		"value":            func(x *protocol.Tuple) { x.Value = json.RawMessage(`[1] 2`) },
		"no value":         func(x *protocol.Tuple) { x.Value = json.RawMessage{} },
	} {
		x := goodTuple()
		change(&x)
		err := x.Check()
		assert.ErrorIs(t, err, protocol.ErrInvalidHandle, name)
		_, err = json.Marshal(x)
		assert.ErrorIs(t, err, protocol.ErrInvalidHandle, name)
	}
}

func TestParseTupleRefusesOtherForms(t *testing.T) {
	text, err := json.Marshal(goodTuple())
	require.NoError(t, err)
	for from, to := range map[string]string{
		`"v":1`:                `"v":2`,
		`"topic":`:             `"Topic":`,
		`"lost":2`:             `"lost":2,"lost":2`,
		`"sequence":41`:        `"sequence":41.0`,
		`"stamp":1234567`:      `"stamp":-1`,
		`"name":"0"`:           `"name":"0","name":"0"`,
		`"name":"0",`:          ``,
		`"tensors":[`:          `"tensors":[7,`,
		`"meta":{"epoch":3}`:   `"meta":{"epoch":03}`,
		`"readonly":false`:     `"readonly":0`,
		`"sender":"loader"`:    `"sender":"\ud800"`,
		`"lease":null}}]}`:     `"lease":null}}]} x`,
		`{"v":1,"topic"`:       `{"v":"1","topic"`,
		`[{"$":"tensor","i":0`: strings.Repeat("[", 200) + `[{"$":"tensor","i":0`,
	} {
		bad := strings.Replace(string(text), from, to, 1)
		require.NotEqual(t, string(text), bad, from)
		_, err := protocol.ParseTuple([]byte(bad))
		assert.ErrorIs(t, err, protocol.ErrInvalidHandle, "%s to %s", from, to)
	}
}

func TestHandleErrorSaysWhatAndRemedyOnce(t *testing.T) {
	bad := goodTuple()
	bad.Tensors[0].Handle.Device = "tpu:0"
	var e *protocol.Error
	require.True(t, errors.As(bad.Check(), &e))
	assert.Equal(t, `a tuple has tensor 0 whose handle is wrong: a handle is on device "tpu:0": only "cpu" and "cuda:N" exist`, e.Message)
}
