// Package bench measures Baton on the machine at hand: hand-over, waking,
// taking references, allocation, tuples on NATS, whether costs stay flat, and
// what a broker and a waiting client take at rest.
//
//	bench.Child() // first of all: in a process that Run has started it does not return
//	report, err := bench.Run(ctx, bench.Options{})
//	fmt.Println(report.Render(style))
//
// # How
//
// Each measurement runs between real processes, which this program starts from
// its own binary, each confined to one CPU, with a broker of their own. Time
// stamps are CLOCK_MONOTONIC, one clock for all, and lie in memory that the two
// share with their parent. The measurements of a group are taken in turn, in
// several passes, and with them the floor: what the machine can do at least, in
// the same language. Pairs of processes that are compared are alive together and
// take turns in short slices, so that a phase in which the machine does less falls on
// all of them. A figure's ratio is the median over the slices of its own p50 divided
// by the floor's of the slice beside it, or over the passes where there are no slices.
//
// Neither side of a pair sleeps to wait for the other, except where sleeping is
// what is measured: there the sender looks at the page of the receiver until that
// one has parked.
//
// # Ownership
//
// Run starts processes, brokers and a temporary folder, and ends or removes all
// of them before it returns. The Report is the caller's.
//
// # Concurrency
//
// One Run at a time: two would measure each other.
//
// # Hostile peers
//
// There are none: the processes measured are this program. A broker that others
// use is never touched.
//
// # Death
//
// When a process of a pair dies the other is killed and Run fails. When Run's own
// process is killed, the kernel ends what it has started; only the brokers'
// temporary folder stays.
package bench
