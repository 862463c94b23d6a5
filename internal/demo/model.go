package demo

import (
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/digits"
	"github.com/baton-ipc/baton/protocol"
)

// modelSpecs are the tensors of the network's parameters.
func modelSpecs() []client.Spec {
	var specs []client.Spec
	for _, p := range digits.Params() {
		specs = append(specs, client.Spec{Name: p.Name, DType: dlpack.Float32, Shape: p.Shape})
	}
	return specs
}

// batchSpecs are the tensors of one batch.
func batchSpecs() []client.Spec {
	return []client.Spec{
		{Name: tensorImages, DType: dlpack.Float32, Shape: []int64{BatchSize, digits.Pixels}},
		{Name: tensorLabels, DType: dlpack.Uint8, Shape: []int64{BatchSize}},
	}
}

// slice returns a bundle's tensor as a slice over the shared memory, which lives
// as long as the bundle.
func slice[T client.Number](b *client.Bundle, name string) ([]T, error) {
	t := b.Tensor(name)
	if t == nil {
		return nil, protocol.Errorf(protocol.CodeProtocol, "run all roles of one version", "a bundle of %v has no tensor %q", b.Names(), name)
	}
	return client.Slice[T](t)
}

// modelOf returns the network whose parameters a bundle holds, in place.
func modelOf(b *client.Bundle) (digits.Model, error) {
	var m digits.Model
	into := []*[]float32{&m.W1, &m.B1, &m.W2, &m.B2}
	for i, p := range digits.Params() {
		var err error
		if *into[i], err = slice[float32](b, p.Name); err != nil {
			return m, err
		}
	}
	return m, m.Check()
}

// batchOf returns a batch's pictures and labels, in place.
func batchOf(b *client.Bundle) (images []float32, labels []byte, err error) {
	if images, err = slice[float32](b, tensorImages); err == nil {
		labels, err = slice[uint8](b, tensorLabels)
	}
	return images, labels, err
}
