// Package demo is `baton demo`: processes that train one network together over
// shared memory, one of which is killed half-way.
//
// # Purpose
//
// Run starts a broker of its own (`baton serve` on a private runtime directory)
// and then the same program again in several roles, each a real process:
//
//	loader     fills batches of pictures in place and puts them on the queue
//	           digits/batches
//	workers    take them and train the network whose parameters are the live
//	           name weights/digits, all in place and without locks; in turn they
//	           publish a snapshot as weights/digits-eval, and each sends its
//	           losses on the topic digits/progress
//	           where a Python with the package is at hand, two more workers, which
//	           are Python processes, do the same with NumPy (worker.py)
//	evaluator  watches the snapshots and measures accuracy on held-out pictures
//
// Run itself takes no part in the training: it reads the progress, counts tuples
// as an ordinary NATS client, kills worker 1 with SIGKILL half-way, and at the end
// asks the broker what is left. It alone draws on the terminal; the evaluator
// reports to it. Worker 1 is the one that allocated the shared
// parameters, so that its death shows whether memory outlives its maker.
//
// # Figures
//
// Each role reports its client's counts on its standard output. What the killed
// worker did is known up to the last progress it sent. Every batch that was put is
// trained: the queue redelivers what the killed worker had taken.
//
// Bytes copied are measured by the receivers. Each sender says where the bytes of
// each tensor lie: the memory file, by device and inode, and the offset in it,
// both from the kernel's list of its mappings. The receiver looks up its own bytes
// in the same way. The same place is the same memory; another place would mean
// that was copied, and is counted with all its bytes. A snapshot is a copy
// that the training program itself makes before it publishes (digits.Model.CopyTo)
// and is not on the way of any hand-over.
//
// # Ownership
//
// Run owns the runtime directory and all processes that it started, and has ended
// and removed them when it returns. Roles own what their clients hold until they
// end.
//
// # Concurrency
//
// Run keeps its goroutine on one thread, because children die with the thread that
// started them. Run and Role may be called once at a time in a process.
//
// # Hostile peers
//
// The broker serves this user alone, in a directory with mode 0700. Lines of roles
// are checked as JSON; a role that breaks the form ends the run with an error.
//
// # Death
//
// When Run's process is killed the kernel kills the roles and ends the broker. A
// directory with a few small files stays behind, which the next run removes.
package demo
