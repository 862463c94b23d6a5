package protocol_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

const encoderHost = "0123456789abcdef"

var encoderOrigin = protocol.Origin{HostName: `node "7"`, Machine: "3c1f0a52-9d64-4b1e-8a37-1f0c6a2e5d90", BrokerPID: 17, PID: 4242}

func newEncoder(t testing.TB) *protocol.TupleEncoder {
	t.Helper()
	e, err := protocol.NewTupleEncoder("batches/train", `loader "1"`, encoderHost, encoderOrigin)
	require.NoError(t, err)
	return e
}

func wireBody(t testing.TB, b *protocol.Body) []byte {
	t.Helper()
	wire, err := protocol.AppendBody(nil, b)
	require.NoError(t, err)
	return wire
}

// tupleOf describes a message without an encoder.
func tupleOf(m *protocol.TupleMessage) (t protocol.Tuple, ok bool) {
	body, err := protocol.ParseBody(m.Body)
	if err != nil || body.CheckRefs(len(m.Storages)) != nil {
		return t, false
	}
	t = protocol.Tuple{Topic: "batches/train", Sender: `loader "1"`, Host: encoderHost, Origin: encoderOrigin,
		Sequence: m.Sequence, Stamp: m.Stamp, Lost: m.Lost, Meta: body.Meta, Value: body.Tree}
	for _, d := range body.Tensors {
		dtype, ok := protocol.DTypeName(d.Code, d.Bits, d.Lanes)
		if !ok || d.DeviceType != 1 {
			return t, false
		}
		h := protocol.Handle{Host: encoderHost, DType: dtype, Shape: d.Shape, Strides: d.Strides, Device: "cpu", ReadOnly: d.ReadOnly || !m.Writable}
		if d.Ref >= 0 {
			s := m.Storages[d.Ref]
			h.Segment, h.Serial, h.Index, h.Generation, h.Offset, h.Bytes = s.Segment, s.Serial, s.Index, s.Generation, s.Offset, s.Bytes
			h.ByteOffset = d.Offset
			if h.Serial == 0 {
				return t, false // no slot names that
			}
		}
		t.Tensors = append(t.Tensors, protocol.TupleTensor{Name: d.Name, Handle: h})
	}
	return t, true
}

// encoded compares what the encoder writes with what the tuple itself does, and
// with what a reader gets from it.
func encoded(t *testing.T, e *protocol.TupleEncoder, m *protocol.TupleMessage) bool {
	t.Helper()
	got, err := e.Append([]byte("before"), m)
	tuple, ok := tupleOf(m)
	var want []byte
	if ok {
		var refused error
		want, refused = tuple.MarshalJSON()
		ok = refused == nil
	}
	if !ok {
		require.Error(t, err)
		require.Equal(t, "before", string(got), "what was there stays alone")
		return false
	}
	require.NoError(t, err)
	require.Equal(t, "before"+string(want), string(got))
	parsed, err := protocol.ParseTuple(want)
	require.NoError(t, err)
	require.Equal(t, tuple.Sequence, parsed.Sequence)
	require.Len(t, parsed.Tensors, len(tuple.Tensors))
	for i := range parsed.Tensors {
		require.Equal(t, tuple.Tensors[i].Name, parsed.Tensors[i].Name)
		want := tuple.Tensors[i].Handle
		require.Equal(t, want.Bytes, parsed.Tensors[i].Handle.Bytes)
		require.Equal(t, want.Generation, parsed.Tensors[i].Handle.Generation)
		require.Equal(t, len(want.Shape), len(parsed.Tensors[i].Handle.Shape))
	}
	return true
}

func storageNo(n uint64) protocol.Storage {
	return protocol.Storage{Segment: n, Serial: n + 1, Index: uint32(n), Generation: 3 * n, Offset: 4096 * n, Bytes: 1 << 20}
}

func TestTupleEncoderWritesWhatTheTupleDoes(t *testing.T) {
	plain := &protocol.Body{Tensors: []protocol.Tensor{{Code: 2, Bits: 32, Lanes: 1, DeviceType: 1, Shape: []int64{4, 8}}}}
	named := &protocol.Body{Tensors: []protocol.Tensor{
		{Code: 4, Bits: 16, Lanes: 1, DeviceType: 1, Shape: []int64{3}, Name: "ünï/\"w\"\n", Offset: 256},
		{Ref: 1, Code: 0, Bits: 8, Lanes: 4, DeviceType: 1, Shape: []int64{2, 2}, Strides: []int64{-1, 2}, Name: "b", ReadOnly: true},
		{Ref: -1, Code: 6, Bits: 8, Lanes: 1, DeviceType: 1, Shape: []int64{0}, Name: "none"},
	}}
	withMeta := *plain
	withMeta.Meta = []byte(`{"epoch":3,"name":"\u00fc"}`)
	otherMeta := *plain
	otherMeta.Meta = []byte(`4`)
	withTree := *plain
	withTree.Tree = []byte(`[{"$":"tensor","i":0}]`)
	noTensors := &protocol.Body{Tree: []byte(`{"a":1}`)}
	e := newEncoder(t)
	n := uint64(0)
	for range 2 { // each of them after each other
		for _, body := range []*protocol.Body{plain, plain, &withMeta, &otherMeta, plain, named, named, &withTree, noTensors, plain} {
			for _, writable := range []bool{false, true, true} {
				n++
				m := &protocol.TupleMessage{Sequence: n, Stamp: 1000 * n, Lost: n % 3, Body: wireBody(t, body),
					Storages: []protocol.Storage{storageNo(n), storageNo(n + 7)}, Writable: writable}
				require.True(t, encoded(t, e, m))
			}
		}
	}
}

func TestTupleEncoderRefusesWhatNoReaderTakes(t *testing.T) {
	good := func() *protocol.TupleMessage {
		return &protocol.TupleMessage{Sequence: 1, Storages: []protocol.Storage{storageNo(1)}, Body: wireBody(t, oneTensor())}
	}
	for name, change := range map[string]func(m *protocol.TupleMessage){
		"sequence":   func(m *protocol.TupleMessage) { m.Sequence = 0 },
		"stamp":      func(m *protocol.TupleMessage) { m.Stamp = protocol.MaxSafeInt + 1 },
		"no storage": func(m *protocol.TupleMessage) { m.Storages = nil },
		"index":      func(m *protocol.TupleMessage) { m.Storages[0].Index = protocol.MaxStorages },
		"generation": func(m *protocol.TupleMessage) { m.Storages[0].Generation = 1 << 52 },
		"offset":     func(m *protocol.TupleMessage) { m.Storages[0].Offset = protocol.MaxSafeInt },
		"serial":     func(m *protocol.TupleMessage) { m.Storages[0].Serial = 0 },
		"empty body": func(m *protocol.TupleMessage) { m.Body = nil },
		"cut body":   func(m *protocol.TupleMessage) { m.Body = m.Body[:len(m.Body)-1] },
		"meta":       func(m *protocol.TupleMessage) { m.Body = wireBody(t, &protocol.Body{Meta: []byte(`{`)}) },
		"value":      func(m *protocol.TupleMessage) { m.Body = wireBody(t, &protocol.Body{Tree: []byte(`[1] 2`)}) },
		"name twice": func(m *protocol.TupleMessage) {
			b := stateDict(2)
			b.Tensors[1].Name = b.Tensors[0].Name
			m.Body = wireBody(t, b)
		},
		"other device":  func(m *protocol.TupleMessage) { b := oneTensor(); b.Tensors[0].DeviceType = 2; m.Body = wireBody(t, b) },
		"unknown dtype": func(m *protocol.TupleMessage) { b := oneTensor(); b.Tensors[0].Bits = 7; m.Body = wireBody(t, b) },
		"view outside": func(m *protocol.TupleMessage) {
			b := oneTensor()
			b.Tensors[0].Offset = 2 << 20
			m.Body = wireBody(t, b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, bad := newEncoder(t), good()
			change(bad)
			require.False(t, encoded(t, e, bad), "at first")
			require.True(t, encoded(t, e, good()))
			require.False(t, encoded(t, e, bad), "after a good one")
			require.True(t, encoded(t, e, good()))
		})
	}
	_, err := protocol.NewTupleEncoder("a//b", "", encoderHost, protocol.Origin{})
	require.ErrorIs(t, err, protocol.ErrInvalidHandle)
}

func TestTupleEncoderForgetsLongDescriptions(t *testing.T) {
	e := newEncoder(t)
	long := &protocol.TupleMessage{Sequence: 1, Storages: []protocol.Storage{{Segment: 1, Serial: 1, Bytes: 1 << 30}}, Body: wireBody(t, stateDict(2000))}
	require.True(t, encoded(t, e, long))
	require.True(t, encoded(t, e, long))
}

func TestTupleEncoderAllocatesNothingForMessagesAlike(t *testing.T) {
	e := newEncoder(t)
	m := &protocol.TupleMessage{Sequence: 1, Storages: []protocol.Storage{storageNo(1)}, Body: wireBody(t, stateDict(3))}
	dst := make([]byte, 0, 4096)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		m.Sequence++
		m.Storages[0].Generation++
		var err error
		dst, err = e.Append(dst[:0], m)
		require.NoError(t, err)
	}))
}

func FuzzTupleEncoder(f *testing.F) {
	for _, b := range []*protocol.Body{oneTensor(), stateDict(3), {Tree: []byte(`{"a":1}`), Meta: []byte(`2`)}, {Meta: []byte(`{`)}} {
		wire := wireBody(f, b)
		f.Add(wire, wire, uint64(1), uint64(1<<20), true)
		f.Add(wireBody(f, oneTensor()), wire, uint64(0), uint64(3), false)
	}
	f.Fuzz(func(t *testing.T, before, body []byte, number, size uint64, writable bool) {
		e := newEncoder(t)
		storages := []protocol.Storage{{Segment: number, Serial: number, Index: uint32(number), Generation: number, Offset: number, Bytes: size}, storageNo(1)}
		encoded(t, e, &protocol.TupleMessage{Sequence: 1, Body: before, Storages: storages, Writable: true})
		m := &protocol.TupleMessage{Sequence: number, Body: bytes.Clone(body), Storages: storages, Writable: writable}
		first := encoded(t, e, m)
		if again := encoded(t, e, m); first != again {
			t.Fatal("taken once and refused once")
		}
	})
}

func BenchmarkTupleEncoder(b *testing.B) {
	for _, c := range []struct {
		name string
		body *protocol.Body
	}{{"one tensor", oneTensor()}, {"300 tensors", stateDict(300)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			e := newEncoder(b)
			m := &protocol.TupleMessage{Storages: []protocol.Storage{{Segment: 1, Serial: 1, Bytes: 1 << 30}}, Body: wireBody(b, c.body)}
			var dst []byte
			for b.Loop() {
				m.Sequence++
				var err error
				if dst, err = e.Append(dst[:0], m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
