package sys

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// SeveralProcessors tells whether the machine, or the container as far as its
// control group says, has more than one processor. What this process is confined
// to does not count: its peers may run on the others.
func SeveralProcessors() bool {
	for _, path := range []string{"/sys/fs/cgroup/cpuset.cpus.effective", "/sys/devices/system/cpu/online"} {
		if list, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(list)) != "" {
			return several(string(list))
		}
	}
	return false
}

// several tells whether a list such as "0-3,8" names more than one.
func several(list string) bool { return strings.ContainsAny(list, ",-") }

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
