// Package standin builds and describes a stand-in for NVIDIA's driver: a
// libcuda.so.1 in C (src/) with the part of the driver interface that Baton
// uses, for tests on machines without a GPU. It lives with the tests and is never
// shipped.
//
// # What it is honest about
//
// A test that passes because the stand-in is kinder than a GPU is worth nothing,
// so it is as unkind as the real driver where that can be known:
//
//   - A device address cannot be touched by the processor: addresses are reserved
//     without access, and only streams reach what is behind them. A write to what
//     is mapped for reading, or to what is unmapped meanwhile, is error 700, and
//     the context is of no use afterwards.
//   - Memory is counted for the machine, in all processes together, and lives as
//     long as a descriptor, a mapping, or a message on its way in a socket keeps
//     it: a file with a lock that the kernel gives up with the last of them. So
//     kill -9 at any place is accounted for by the kernel and not by the stand-in.
//   - An exported descriptor is no file: it has no size, cannot be mapped and
//     cannot be opened anew through /proc. Import leaves the caller's descriptor
//     open. A handle type that was not asked for at creation is refused. Sizes are
//     multiples of 2 MiB. What is mapped has no access until it is set.
//   - Contexts belong to threads, and calls without one give 201, those of virtual
//     memory too, which a GPU may allow. A GPU that CUDA_VISIBLE_DEVICES hides cannot
//     be imported from.
//   - Streams are threads that do their work in order and late, by a random time
//     (BATON_STANDIN_DELAY, microseconds). Copies read and write when they are
//     done, not when they are asked for, except from pageable memory, which is
//     staged. The legacy stream and blocking streams order each other.
//   - To name a stream that was destroyed aborts, and its address is soon another
//     stream's. What is captured into a graph is not done, and its stream cannot
//     be synchronised.
//   - Values are written to and waited for in real shared memory. What is
//     registered has a device address that differs from the host's; a mapping
//     that cannot be written is registered read-only or not at all.
//   - Legacy handles are of cudaMalloc's memory alone, are made of its base, are refused
//     (201) by the process that made them, count reopens, and end with their
//     exporter. Freeing what another process has open aborts.
//   - A forked child has no driver: every call fails.
//
// Tests ask for faults (standin_fault, BATON_STANDIN_FAULTS=name=code@nth) and
// count calls (standin_calls). BATON_STANDIN_LACKS names what the driver is too
// old for: vmm, memops, read-only-register.
//
// # What it cannot show
//
// That the driver itself keeps memory while only an idle descriptor is left, and
// has stopped a dead process's kernels before its pidfd tells; that values written
// by a GPU and its data are seen in that order by another one's; what descriptors of
// the driver look like to fstat; error codes where NVIDIA's documents give
// several; how long anything takes; what a context costs; graphs that run; peers,
// managed memory, MPS, MIG; living beside torch in one process.
package standin
