package demo

import (
	"fmt"

	"github.com/baton-ipc/baton/protocol"
)

// Result is what a run came to. Its JSON form is what `baton demo --json` prints.
type Result struct {
	Accuracy         float64 `json:"accuracy"` // of the last snapshot on held-out pictures, 0 to 1
	SamplesPerSecond float64 `json:"samples_per_second"`
	BatchesPerSecond float64 `json:"batches_per_second"`
	Handovers        uint64  `json:"handovers"` // messages sent, items put and revisions set, by all processes
	BytesHandedOver  uint64  `json:"bytes_handed_over"`
	BytesCopied      uint64  `json:"bytes_copied"` // on the way, as the receivers found
	NATSTuples       uint64  `json:"nats_tuples"`
	Killed           int     `json:"killed"`         // workers that ended by SIGKILL
	PythonWorkers    int     `json:"python_workers"` // 0 where no Python has the package
	StoragesLeft     int     `json:"storages_left"`  // that the broker lists at the end
	Seconds          float64 `json:"seconds"`        // from the broker's start to the look at what is left

	Batches int `json:"-"`
	Workers int `json:"-"`
	curve   []sample
	died    float64 // when the worker was killed, in seconds of training
	seen    []seen
}

// sample is the accuracy at a moment, in seconds of training.
type sample struct{ at, accuracy float64 }

// Check returns an error when the run did not show what it should.
func (r *Result) Check() error {
	switch {
	case r.StoragesLeft > 0:
		return protocol.Errorf(protocol.CodeInternal, "report this as a bug", "%d storages were still held at the end", r.StoragesLeft)
	case r.BytesCopied > 0:
		return protocol.Errorf(protocol.CodeInternal, "report this as a bug", "%d bytes were copied on the way", r.BytesCopied)
	case r.Killed != 1:
		return fmt.Errorf("%d workers were killed, not 1", r.Killed)
	case r.Accuracy < MinAccuracy:
		return fmt.Errorf("accuracy %.3f is below %.2f: train more batches", r.Accuracy, MinAccuracy)
	}
	return nil
}
