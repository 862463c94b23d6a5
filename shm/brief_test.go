package shm

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

// lone is a message of one tensor as words.
func lone(t *testing.T, d protocol.Tensor) (SlotHead, []uint64) {
	body, err := protocol.AppendBody(nil, &protocol.Body{Tensors: []protocol.Tensor{d}})
	require.NoError(t, err)
	words := AppendBytes(AppendRef(nil, protocol.Ref{Serial: 7, Generation: 9, Index: 300}), body)
	return SlotHead{Nref: 1, Tensors: 1, Body: uint32(len(body))}, words
}

func TestBriefMessagesReadAsTheyWereWritten(t *testing.T) {
	f32 := protocol.Tensor{Code: 2, Bits: 32, Lanes: 1, DeviceType: 1}
	for _, shape := range [][]int64{{}, {0}, {4096}, {2, 3}, {2, 3, 5, 7}, {math.MaxUint32}} {
		for _, readOnly := range []bool{false, true} {
			d := f32
			d.Shape, d.ReadOnly = shape, readOnly
			h, words := lone(t, d)
			h.Flags, h.Bytes = protocol.SlotWritable|protocol.SlotLive, 4
			for _, n := range shape {
				h.Bytes *= uint64(n)
			}
			w, ok := packBrief(&h, words)
			require.True(t, ok, "%v", shape)
			got, back, ok := unpackBrief(&w, h.Stamp, nil)
			require.True(t, ok)
			assert.Equal(t, words, back)
			assert.Equal(t, h, got)
		}
	}
}

func TestOtherMessagesAreNotBrief(t *testing.T) {
	plain := protocol.Tensor{Code: 2, Bits: 32, Lanes: 1, DeviceType: 1, Shape: []int64{2, 3}}
	for what, change := range map[string]func(d *protocol.Tensor){
		"a view":           func(d *protocol.Tensor) { d.Offset = 256 },
		"strides":          func(d *protocol.Tensor) { d.Strides = []int64{1, 2} },
		"a name":           func(d *protocol.Tensor) { d.Name = "x" },
		"a GPU":            func(d *protocol.Tensor) { d.DeviceType = 2 },
		"a second GPU":     func(d *protocol.Tensor) { d.DeviceID = 1 },
		"five dimensions":  func(d *protocol.Tensor) { d.Shape = []int64{1, 1, 1, 1, 1} },
		"a large extent":   func(d *protocol.Tensor) { d.Shape = []int64{1 << 32} },
		"without elements": func(d *protocol.Tensor) { d.Ref, d.Shape = -1, []int64{0} },
	} {
		d := plain
		change(&d)
		h, words := lone(t, d)
		_, ok := packBrief(&h, words)
		assert.False(t, ok, what)
	}
	h, words := lone(t, plain)
	h.Flags = protocol.SlotSpilled
	_, ok := packBrief(&h, words)
	assert.False(t, ok)
	h.Flags = protocol.SlotOrdered
	_, ok = packBrief(&h, append(words, 0, 0))
	assert.False(t, ok)
}

func TestImpossibleBriefMessagesAreRefused(t *testing.T) {
	h, words := lone(t, protocol.Tensor{Code: 2, Bits: 32, Lanes: 1, DeviceType: 1, Shape: []int64{2, 3}})
	w, ok := packBrief(&h, words)
	require.True(t, ok)
	for _, bad := range []struct{ word, bits uint64 }{{0, 5 << 16}, {0, 1 << 24}, {0, protocol.SlotSpilled}, {0, 64}, {3, 1 << 32}} {
		wrong := w
		wrong[bad.word] |= bad.bits
		_, _, ok := unpackBrief(&wrong, 0, nil)
		assert.False(t, ok, "%+v", bad)
	}
	most := w
	most[0], most[3], most[4], most[5] = most[0]&^(7<<16)|4<<16, math.MaxUint32, math.MaxUint64, math.MaxUint64
	got, _, ok := unpackBrief(&most, 0, nil)
	require.True(t, ok)
	assert.EqualValues(t, math.MaxUint64/8+1, got.Bytes)
}
