package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Affinity lists the CPUs that the calling thread may run on, in order.
func Affinity() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the thread's CPUs: %w", err)
	}
	var cpus []int
	for cpu, left := 0, set.Count(); left > 0; cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
			left--
		}
	}
	return cpus, nil
}

// SetAffinity confines the calling thread to some CPUs. Processes that the
// thread starts inherit it, and Go programs among them count those CPUs alone.
// The caller has locked its goroutine to the thread.
func SetAffinity(cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("confine the thread to CPUs %v: %w", cpus, err)
	}
	return nil
}
