package bench

import (
	"context"
	"fmt"
)

const iceName = "iceoryx2, "

// rust measures the client in Rust: against iceoryx2 with the same work, in mixed
// company with Go, and alone.
func (b *bencher) rust(ctx context.Context, group string) error {
	var ms []measurement
	both, n := [2]string{b.opts.Rust, b.opts.Rust}, b.opts.rounds(20000)
	for _, size := range sizes {
		ice := b.figure(group, iceName+size.name, UnitTime)
		own := b.figure(group, "round trip, "+size.name, UnitTime).against(ice.Name, atMost("ratio", 0.6))
		ms = append(ms, b.comparison(size.name, b.spinTrip(group),
			trip(ice, job{Role: "iceoryx2-cycle", N: n, Bytes: size.bytes, programs: both}),
			trip(own, job{Role: "cycle", N: n, Bytes: size.bytes, programs: both})))
	}
	// With more readers, as far as there are CPUs to spare: all have what is sent, and answer.
	for readers := 2; readers < len(b.cpus) && readers <= maxReaders; readers *= 2 {
		ms = append(ms, b.shared(group, readers, both))
	}
	golang := b.figure(group, "round trip, Go and Go", UnitTime)
	j := job{Role: "cycle", N: n, Bytes: sizes[0].bytes}
	company := []contender{trip(golang, j)}
	for i, name := range []string{"Rust and Go", "Go and Rust"} {
		j.programs = [2]string{}
		j.programs[i] = b.opts.Rust
		company = append(company, trip(b.figure(group, "round trip, "+name, UnitTime).against(golang.Name, atMost("ratio", 1)), j))
	}
	n = b.opts.rounds(2000)
	floor := b.figure(group, futexName+", round trip", UnitTime)
	event := b.figure(group, iceName+"event, round trip", UnitTime).against(floor.Name, nil)
	wake := b.figure(group, "wake, round trip", UnitTime).against(floor.Name, atMost("ratio", 1.3))
	ms = append(ms, b.comparison("mixed company", company...), b.comparison("wakes",
		trip(floor, job{Role: "futex", N: n}),
		trip(event, job{Role: "iceoryx2-wake", N: n, programs: both}),
		trip(wake, job{Role: "wake", N: n, Bytes: 4096, programs: both})))
	ms = append(ms,
		b.local(group, slotStep, atMost("p50", 50), job{Role: "slot", N: b.opts.rounds(500000), programs: both}),
		b.local(group, "client: try_recv, drop", nil, job{Role: "message", N: b.opts.rounds(500000), programs: both}))
	for _, size := range sizes {
		ms = append(ms, b.local(group, fmt.Sprintf("alloc and drop, %s", size.name), nil,
			job{Role: "alloc", N: b.opts.rounds(200000), Bytes: size.bytes, programs: both}))
	}
	return b.inTurn(ctx, group, append(ms, b.forks(group, both)...))
}

// shared compares round trips of 4 KiB to several readers.
func (b *bencher) shared(group string, readers int, programs [2]string) measurement {
	name := fmt.Sprintf("4 KiB, %d readers", readers)
	j := job{N: b.opts.rounds(20000), Bytes: 4 << 10, Readers: readers, programs: programs}
	ice := b.figure(group, iceName+name, UnitTime)
	theirs, ours := j, j
	theirs.Role, ours.Role = "iceoryx2-cycle", "cycle"
	return b.comparison(name, trip(ice, theirs), trip(b.figure(group, "round trip, "+name, UnitTime).against(ice.Name, nil), ours))
}

// forks measures how long fork keeps a process, without a session and with one, by
// what it holds: that a child counts before its parent runs on.
func (b *bencher) forks(group string, programs [2]string) []measurement {
	const bare = "bare fork"
	n := b.opts.rounds(500)
	ms := []measurement{b.local(group, bare, nil, job{Role: "fork-bare", N: n, programs: programs})}
	for _, held := range []int{0, 1, 1000} {
		name := fmt.Sprintf("fork, %d held", held)
		b.figure(group, name, UnitTime).against(bare, nil)
		ms = append(ms, b.local(group, name, nil, job{Role: "fork", N: n, Storages: held, programs: programs}))
	}
	return ms
}
