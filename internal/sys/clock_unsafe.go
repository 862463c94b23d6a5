package sys

import _ "unsafe" // for go:linkname

// nanotime reads CLOCK_MONOTONIC through the vDSO, about 20 ns; the system call
// of x/sys costs ten times that, and time.Now's reading is relative to the
// start of its process, so that two processes could not compare theirs.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64

// Monotonic returns CLOCK_MONOTONIC in nanoseconds: one clock for all processes
// of the machine, so that stamps of different senders compare.
func Monotonic() uint64 { return uint64(nanotime()) }
