package protocol_test

import (
	"fmt"
	"testing"

	"github.com/baton-ipc/baton/protocol"
)

func oneTensor() *protocol.Body {
	return &protocol.Body{Tensors: []protocol.Tensor{{
		Code: 2, Bits: 32, Lanes: 1, DeviceType: 1, Shape: []int64{1024, 1024},
	}}}
}

func stateDict(n int) *protocol.Body {
	b := &protocol.Body{}
	for i := range n {
		b.Tensors = append(b.Tensors, protocol.Tensor{
			Code: 2, Bits: 32, Lanes: 1, DeviceType: 1, Offset: uint64(i) * 4096,
			Shape: []int64{32, 32}, Name: fmt.Sprintf("layers.%d.weight", i),
		})
	}
	return b
}

func BenchmarkAppendBody(b *testing.B) {
	for _, c := range []struct {
		name string
		body *protocol.Body
	}{{"one tensor", oneTensor()}, {"300 tensors", stateDict(300)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			n, err := protocol.BodyLen(c.body)
			if err != nil {
				b.Fatal(err)
			}
			dst := make([]byte, 0, n)
			for b.Loop() {
				if _, err := protocol.AppendBody(dst, c.body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseBody(b *testing.B) {
	for _, c := range []struct {
		name string
		body *protocol.Body
	}{{"one tensor", oneTensor()}, {"300 tensors", stateDict(300)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			src, err := protocol.AppendBody(nil, c.body)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := protocol.ParseBody(src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseLone(b *testing.B) {
	b.ReportAllocs()
	src, err := protocol.AppendBody(nil, oneTensor())
	if err != nil {
		b.Fatal(err)
	}
	var t protocol.Tensor
	var dims [4]int64
	for b.Loop() {
		if !protocol.ParseLone(src, &t, dims[:]) {
			b.Fatal("refused")
		}
	}
}

func BenchmarkParseRefs(b *testing.B) {
	b.ReportAllocs()
	src := protocol.AppendRefs(nil, []protocol.Ref{{Serial: 9, Generation: 3, Index: 300}})
	var space [4]protocol.Ref
	for b.Loop() {
		if _, err := protocol.ParseRefs(space[:0], src, 1); err != nil {
			b.Fatal(err)
		}
	}
}
