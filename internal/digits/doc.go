// Package digits is the work that `baton demo` does: 1,797 small pictures of
// handwritten digits, and a two-layer network that learns to read them.
//
// # Purpose
//
// The demo shows processes that train one network together, each updating the
// same parameters in shared memory without locks (Hogwild, Niu et al. 2011). This
// package knows nothing of shared memory: a Model is four slices that the caller
// provides, and everything here reads and writes them where they are.
//
// # Ownership
//
// A Model does not own its slices; their maker keeps them alive and mapped
// for as long as a Trainer or a call uses them. A Set owns its pictures; the
// slices it hands out are views that must not be written. Trainer and Sampler own
// their scratch memory and allocate nothing after they are made.
//
// # Concurrency
//
// A Set is read-only and may be used by any number of goroutines. A Trainer or a
// Sampler belongs to one goroutine at a time. Any number of Trainers, in any
// number of processes, may work on the same parameters at once:
//
//   - No torn values. Each parameter is a float32 at an address divisible by
//     four, read and written by single instructions of that width; amd64 and arm64
//     make those indivisible, and Go's memory model promises that a read of a
//     location no larger than a machine word sees a value that was written there.
//     So a reader sees an old or a new parameter, never half of each. Storages
//     of Baton are aligned to 256 bytes, so float32 slices over them qualify.
//   - No consistent picture. A reader may see one parameter from before an update
//     and its neighbour from after it.
//   - Lost updates. Taking a step is a load, a subtraction and a store. Two
//     writers that do so at once leave one of both results. Hogwild accepts this:
//     steps are small and mostly touch different parameters (the rows of pixels
//     that are blank in a batch are left alone), and the next batch corrects what
//     was lost.
//
// Go's race detector reports such updates between goroutines of one process,
// rightly in its terms; between processes it sees nothing.
//
// # Hostile input
//
// Pictures and labels may lie in memory that another process writes at the same
// moment: each value is copied once, checked, and the copy is used. Pixels outside
// 0 to 1 and labels above 9 are refused before any parameter changes. Parameters
// may hold anything: the worst is a wrong prediction, or ErrDiverged.
//
// # Death
//
// A process that dies in the middle of a step leaves some parameters stepped and
// others not, which is what the other workers see all the time anyway. Nothing has
// to be repaired.
package digits
