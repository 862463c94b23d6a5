package protocol_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func randomTensor(r *rand.Rand, refs int) protocol.Tensor {
	t := protocol.Tensor{
		Ref: r.IntN(refs), Code: uint8(r.Uint32()), Bits: uint8(r.Uint32()), Lanes: uint16(r.Uint32()),
		DeviceType: int32(r.Uint32()), DeviceID: int32(r.Uint32()), Offset: r.Uint64(),
		ReadOnly: r.IntN(2) == 0, Shape: []int64{},
	}
	for range r.IntN(protocol.MaxNdim + 1) {
		t.Shape = append(t.Shape, r.Int64N(math.MaxInt64))
	}
	if r.IntN(2) == 0 {
		t.Strides = []int64{}
		for range t.Shape {
			t.Strides = append(t.Strides, int64(r.Uint64()))
		}
	}
	if len(t.Shape) > 0 && r.IntN(4) == 0 {
		t.Ref, t.Shape[r.IntN(len(t.Shape))] = -1, 0
	}
	t.Name = strings.Repeat("ü/a", r.IntN(5))
	return t
}

func TestBodyParsesToWhatWasAppended(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		want := &protocol.Body{Tensors: []protocol.Tensor{}}
		for range r.IntN(5) {
			want.Tensors = append(want.Tensors, randomTensor(r, 7))
		}
		if r.IntN(2) == 0 {
			want.Tree = []byte(`{"a":1}`)
		}
		if r.IntN(2) == 0 {
			want.Meta = []byte(`{"epoch":3}`)
		}
		before := []byte("before")
		wire, err := protocol.AppendBody(before, want)
		require.NoError(t, err)
		require.Equal(t, before, wire[:len(before)])
		wire = wire[len(before):]
		n, err := protocol.BodyLen(want)
		require.NoError(t, err)
		require.Len(t, wire, n)

		got, err := protocol.ParseBody(wire)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, got.CheckRefs(7))
	}
}

func TestAppendBodyWritesInPlaceWhereThereIsRoom(t *testing.T) {
	b := stateDict(3)
	n, err := protocol.BodyLen(b)
	require.NoError(t, err)
	room := make([]byte, n+8)
	for i := range room {
		room[i] = 0xff // so that padding that is not written shows
	}
	wire, err := protocol.AppendBody(room[:0], b)
	require.NoError(t, err)
	assert.Same(t, &room[0], &wire[0])
	assert.Equal(t, bytes.Repeat([]byte{0xff}, 8), room[n:])
	got, err := protocol.ParseBody(wire)
	require.NoError(t, err)
	assert.Equal(t, "layers.2.weight", got.Tensors[2].Name)
}

func TestParseLoneParsesOneTensorAloneAndAllocatesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var dims [2 * protocol.MaxNdim]int64
	for range 500 {
		want := randomTensor(r, 7)
		parts := protocol.Body{Tensors: []protocol.Tensor{want}}
		switch r.IntN(8) {
		case 0:
			parts.Tree = []byte(`[]`)
		case 1:
			parts.Meta = []byte(`0`)
		case 2:
			parts.Tensors = append(parts.Tensors, want)
		}
		wire, err := protocol.AppendBody(nil, &parts)
		require.NoError(t, err)
		var got protocol.Tensor
		if want.Name != "" || len(parts.Tensors) > 1 || parts.Tree != nil || parts.Meta != nil {
			require.False(t, protocol.ParseLone(wire, &got, dims[:]))
			continue
		}
		require.True(t, protocol.ParseLone(wire, &got, dims[:]))
		require.Equal(t, want, got)
		if n := len(want.Shape) + len(want.Strides); n > 0 {
			require.False(t, protocol.ParseLone(wire, &got, dims[:n-1]))
		}
		require.False(t, protocol.ParseLone(wire[:len(wire)-1], &got, dims[:]))
		require.Zero(t, testing.AllocsPerRun(1, func() { protocol.ParseLone(wire, &got, dims[:]) }))
	}
}

func TestAppendBodyRefusesWhatHasNoForm(t *testing.T) {
	elements := []int64{2, 3}
	for name, x := range map[string]protocol.Tensor{
		"65 dimensions":          {Shape: make([]int64, 65)},
		"negative dimension":     {Shape: []int64{2, -1}},
		"strides of other count": {Shape: elements, Strides: []int64{1}},
		"no storage":             {Ref: -1, Shape: elements},
		"no storage for scalar":  {Ref: -1},
		"ref out of range":       {Ref: protocol.MaxRefs, Shape: elements},
		"negative ref":           {Ref: -2, Shape: []int64{0}},
		"long name":              {Shape: elements, Name: strings.Repeat("x", 65536)},
		"name not UTF-8":         {Shape: elements, Name: "\xff"},
		"description too long":   {Shape: elements, Name: strings.Repeat("x", 65520)},
	} {
		dst := []byte("as it was")
		got, err := protocol.AppendBody(dst, &protocol.Body{Tensors: []protocol.Tensor{x}})
		assert.ErrorIs(t, err, protocol.ErrInvalid, name)
		assert.Equal(t, "as it was", string(got), name)
	}
	_, err := protocol.BodyLen(&protocol.Body{Tensors: make([]protocol.Tensor, protocol.MaxTensors+1)})
	assert.ErrorIs(t, err, protocol.ErrInvalid)
	half := make([]byte, protocol.MaxBody/2)
	_, err = protocol.BodyLen(&protocol.Body{Tree: half, Meta: half})
	assert.ErrorIs(t, err, protocol.ErrInvalid)
}

// Every bit of a body matters, or changes a value that is carried.
func TestParseBodySurvivesEveryFlippedBit(t *testing.T) {
	b := stateDict(3)
	b.Tensors[1].Strides = []int64{1, 32}
	b.Tree, b.Meta = []byte(`[1]`), []byte(`{}`)
	wire, err := protocol.AppendBody(nil, b)
	require.NoError(t, err)
	for bit := range len(wire) * 8 {
		damaged := bytes.Clone(wire)
		damaged[bit/8] ^= 1 << (bit % 8)
		got, err := protocol.ParseBody(damaged)
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrProtocol)
			continue
		}
		again, err := protocol.AppendBody(nil, got)
		require.NoError(t, err, "bit %d", bit)
		require.Equal(t, damaged, again, "bit %d: two forms of one body", bit)
	}
	for n := range wire {
		_, err := protocol.ParseBody(wire[:n])
		require.ErrorIs(t, err, protocol.ErrProtocol, "cut to %d bytes", n)
	}
}

func TestParseBodyRefusesLengthsThatOverflow(t *testing.T) {
	for _, at := range []int{protocol.BodyTensors, protocol.BodyTable, protocol.BodyTree, protocol.BodyMeta} {
		wire, err := protocol.AppendBody(nil, oneTensor())
		require.NoError(t, err)
		binary.LittleEndian.PutUint32(wire[at:], math.MaxUint32)
		_, err = protocol.ParseBody(wire)
		assert.ErrorIs(t, err, protocol.ErrProtocol, "at %d", at)
	}
	long := make([]byte, protocol.MaxBody+1)
	binary.LittleEndian.PutUint32(long[protocol.BodyTree:], protocol.MaxBody+1-protocol.BodySize)
	_, err := protocol.ParseBody(long)
	assert.ErrorIs(t, err, protocol.ErrProtocol)
	binary.LittleEndian.PutUint32(long[protocol.BodyTree:], protocol.MaxBody-protocol.BodySize)
	_, err = protocol.ParseBody(long[:protocol.MaxBody])
	assert.NoError(t, err)
}

func TestCheckRefsRefusesStorageThatTheMessageDoesNotName(t *testing.T) {
	b := oneTensor()
	b.Tensors[0].Ref = 2
	assert.NoError(t, b.CheckRefs(3))
	assert.ErrorIs(t, b.CheckRefs(2), protocol.ErrProtocol)
	b.Tensors[0].Ref = -1
	assert.NoError(t, b.CheckRefs(0))
}

func TestRefsParseToWhatWasAppended(t *testing.T) {
	want := []protocol.Ref{
		{Serial: 1, Generation: 0, Index: 0},
		{Serial: math.MaxUint64, Generation: protocol.GenerationMask, Index: protocol.MaxStorages - 1},
	}
	wire := protocol.AppendRefs([]byte("xx"), want)[2:]
	have := []protocol.Ref{{Serial: 9}}
	got, err := protocol.ParseRefs(have, wire, 2)
	require.NoError(t, err)
	assert.Equal(t, append(have, want...), got)
}

func TestParseRefsRefusesNumbersOfNoStorage(t *testing.T) {
	good := protocol.Ref{Serial: 5, Generation: 6, Index: 7}
	for name, change := range map[string]func([]byte){
		"index":      func(b []byte) { binary.LittleEndian.PutUint32(b[protocol.RefIndex:], protocol.MaxStorages) },
		"zero":       func(b []byte) { b[protocol.RefIndex+4] = 1 },
		"generation": func(b []byte) { binary.LittleEndian.PutUint64(b[protocol.RefGeneration:], protocol.GenerationMask+1) },
		"retiring":   func(b []byte) { binary.LittleEndian.PutUint64(b[protocol.RefGeneration:], protocol.Retiring|6) },
		"serial":     func(b []byte) { clear(b[:8]) },
	} {
		wire := protocol.AppendRefs(nil, []protocol.Ref{good, good})
		change(wire[protocol.RefSize:])
		got, err := protocol.ParseRefs(nil, wire, 2)
		assert.ErrorIs(t, err, protocol.ErrProtocol, name)
		assert.Empty(t, got, name)
	}
	wire := protocol.AppendRefs(nil, []protocol.Ref{good})
	for _, n := range []int{-1, 2, protocol.MaxRefs + 1} {
		_, err := protocol.ParseRefs(nil, wire, n)
		assert.ErrorIs(t, err, protocol.ErrProtocol, "%d", n)
	}
}

func TestSpillParsesToWhatWasAppended(t *testing.T) {
	refs := []protocol.Ref{{Serial: 5, Generation: 6, Index: 7}, {Serial: 8, Generation: 9, Index: 10}}
	wire, err := protocol.AppendSpill(nil, refs, []byte("the body"))
	require.NoError(t, err)
	n, err := protocol.SpillLen(2, 8)
	require.NoError(t, err)
	require.Len(t, wire, n)
	gotRefs, body, err := protocol.ParseSpill(append(wire, 0, 0, 0)) // a storage is larger
	require.NoError(t, err)
	assert.Equal(t, refs, gotRefs)
	assert.Equal(t, "the body", string(body))
	for n := range wire {
		_, _, err := protocol.ParseSpill(wire[:n])
		assert.ErrorIs(t, err, protocol.ErrProtocol, "cut to %d bytes", n)
	}
}

func TestSpillRefusesTooMuch(t *testing.T) {
	_, err := protocol.SpillLen(protocol.MaxRefs+1, 0)
	assert.ErrorIs(t, err, protocol.ErrInvalid)
	_, err = protocol.AppendSpill(nil, nil, make([]byte, protocol.MaxBody+1))
	assert.ErrorIs(t, err, protocol.ErrInvalid)

	long := make([]byte, protocol.SpillSize+protocol.MaxBody+1)
	binary.LittleEndian.PutUint64(long, protocol.SpillMagic)
	binary.LittleEndian.PutUint32(long[protocol.SpillBody:], protocol.MaxBody+1)
	_, _, err = protocol.ParseSpill(long)
	assert.ErrorIs(t, err, protocol.ErrProtocol)

	wire, err := protocol.AppendSpill(nil, nil, []byte("x"))
	require.NoError(t, err)
	for _, at := range []int{protocol.SpillMagicAt, protocol.SpillNref, protocol.SpillBody} {
		damaged := bytes.Clone(wire)
		binary.LittleEndian.PutUint32(damaged[at:], math.MaxUint32)
		_, _, err := protocol.ParseSpill(damaged)
		assert.ErrorIs(t, err, protocol.ErrProtocol, "at %d", at)
	}
}
