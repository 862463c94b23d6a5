package demo

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

// Defaults of Options.
const (
	DefaultBatches = 40_000
	DefaultWorkers = 4
	DefaultSeed    = 1
	// MinAccuracy is what the network must reach for the run to succeed.
	MinAccuracy = 0.95
)

// BatchSize is the number of pictures in one batch.
const BatchSize = 64

// How many workers there may be.
const (
	LeastWorkers = 2
	MostWorkers  = 64
)

// Options says how much is trained and by which processes. The zero value is a full run.
type Options struct {
	Batches int           // batches to train; 0: the default, or as many as Duration allows
	Limit   time.Duration // stop loading after this time; 0: only Batches counts
	Workers int           // 0: the default; at least two, because one is killed
	Seed    uint64        // of the parameters and of the order of pictures; 0: the default
	// BrokerMemory is the broker's --memory; "": a default of the demo's own.
	BrokerMemory string
	// Binary is the baton program; "": this one.
	Binary string
	// Python is the interpreter of two more workers, with the package baton of this version and NumPy;
	// NoPython: there are none; "": there are where one is at hand.
	Python string
	// Progress is where progress and remarks are shown, in Style; nil: nowhere.
	Progress io.Writer
	Style    termtext.Style
}

func (o Options) withDefaults() (Options, error) {
	if o.Batches < 0 || o.Limit < 0 {
		return o, protocol.Errorf(protocol.CodeInvalid, "use 0 for the default", "batches %d and limit %v must not be negative", o.Batches, o.Limit)
	}
	if o.Workers == 0 {
		o.Workers = DefaultWorkers
	}
	if o.Workers < LeastWorkers || o.Workers > MostWorkers {
		return o, protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("use %d to %d: one is killed, and the others go on", LeastWorkers, MostWorkers), "%d workers cannot be", o.Workers)
	}
	if o.Batches == 0 && o.Limit == 0 {
		o.Batches = DefaultBatches
	}
	if o.Seed == 0 {
		o.Seed = DefaultSeed
	}
	if o.BrokerMemory == "" {
		// A session asks for 4 MiB at a time; nothing is used but what is asked for.
		o.BrokerMemory = strconv.Itoa(max(256, 8*(o.Workers+4))) + "M"
	}
	if o.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return o, protocol.Errorf(protocol.CodeInvalid, "name the baton program", "this program's own path is unknown: %w", err)
		}
		o.Binary = self
	}
	return o, nil
}

// plan is what each role is told.
type plan struct {
	Batches int     `json:"batches"` // 0: no limit
	Seconds float64 `json:"seconds"` // 0: no limit
	Workers int     `json:"workers"` // those in Python included
	Number  int     `json:"number"`  // of a worker, from 1
	Seed    uint64  `json:"seed"`
}

func (o Options) plan(number int) plan {
	return plan{Batches: o.Batches, Seconds: o.Limit.Seconds(), Workers: o.Workers, Number: number, Seed: o.Seed}
}

// expected estimates how many batches will be trained.
func (p plan) expected() int {
	if p.Seconds == 0 {
		return p.Batches
	}
	const perSecond = 2000 // on a slow machine; faster ones do more than needed
	n := max(int(p.Seconds*perSecond), 1)
	if p.Batches > 0 {
		n = min(n, p.Batches)
	}
	return n
}

// rate is the size of a training step: the fewer steps there will be, the larger.
// The full run takes small ones, so that the learning can be watched.
func (p plan) rate() float32 {
	return min(160/float32(p.expected()), 0.2)
}

// progressEvery is how many batches a worker trains between two progress messages.
func (p plan) progressEvery() int {
	return min(max(p.expected()/(p.Workers*100), 1), 20)
}

// snapshotEvery is how many batches a worker trains between its snapshots. All
// together publish about a hundred, because each trains its share of the batches.
func (p plan) snapshotEvery() int {
	return max(p.expected()/100, 1)
}
