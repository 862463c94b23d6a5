package sys

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is what bounds this process's memory, in bytes.
type Memory struct {
	Total     uint64 // of the machine
	Available uint64 // of the machine, as the kernel estimates it
	Limit     uint64 // smallest limit of the control groups above us; 0: none
	Used      uint64 // of the group with that limit, without what the kernel can drop
}

// Free returns how much more can be taken before something is killed.
func (m Memory) Free() uint64 {
	free := m.Available
	if m.Limit > 0 {
		left := uint64(0)
		if m.Limit > m.Used {
			left = m.Limit - m.Used
		}
		free = min(free, left)
	}
	return free
}

// Short tells whether little is left: less than a third of the control group's limit, or a tenth
// of the machine's memory.
func (m Memory) Short() bool {
	return m.Limit > 0 && m.Limit-min(m.Used, m.Limit) < m.Limit/3 || m.Available < m.Total/10
}

// Bound returns the smaller of the machine's memory and the group limit.
func (m Memory) Bound() uint64 {
	if m.Limit > 0 {
		return min(m.Total, m.Limit)
	}
	return m.Total
}

// ReadMemory reads the figures of the machine and of the control groups
// (version 2, or version 1's memory controller) that this process is in.
func ReadMemory() (Memory, error) {
	var m Memory
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, fmt.Errorf("read the machine's memory: %w", err)
	}
	m.Total = meminfo(data, "MemTotal:")
	m.Available = meminfo(data, "MemAvailable:")
	readGroups(&m)
	return m, nil
}

func meminfo(data []byte, key string) uint64 {
	i := bytes.Index(data, []byte(key))
	if i < 0 {
		return 0
	}
	f := strings.Fields(string(data[i+len(key) : min(len(data), i+len(key)+32)]))
	if len(f) == 0 {
		return 0
	}
	kib, _ := strconv.ParseUint(f[0], 10, 64)
	return kib << 10
}

func readGroups(m *Memory) {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		parts := strings.SplitN(sc.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "":
			walkGroup(m, "/sys/fs/cgroup", parts[2], "memory.max", "memory.current")
		case strings.Contains(","+parts[1]+",", ",memory,"):
			walkGroup(m, "/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes", "memory.usage_in_bytes")
		}
	}
}

// walkGroup looks at every group from ours to the root: any may have a limit.
func walkGroup(m *Memory, root, path, limitFile, usedFile string) {
	for {
		dir := filepath.Join(root, path)
		limit, ok := readNumber(filepath.Join(dir, limitFile))
		if ok && limit < 1<<60 && (m.Limit == 0 || limit < m.Limit) {
			used, _ := readNumber(filepath.Join(dir, usedFile))
			cache := statNumber(filepath.Join(dir, "memory.stat"), "inactive_file ")
			m.Limit, m.Used = limit, used-min(used, cache)
		}
		if path == "/" || path == "." || path == "" {
			return
		}
		path = filepath.Dir(path)
	}
}

func readNumber(path string) (uint64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}

func statNumber(path, key string) uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// FreeHugePages returns how many huge pages of a size are reserved on the machine
// and not promised to a process. It fails where the kernel has none of that size.
func FreeHugePages(pageBytes uint64) (uint64, error) {
	dir := fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB", pageBytes>>10)
	var n [2]uint64
	for i, file := range []string{"free_hugepages", "resv_hugepages"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err == nil {
			n[i], err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		}
		if err != nil {
			return 0, fmt.Errorf("read the machine's huge pages of %d KiB: %w", pageBytes>>10, err)
		}
	}
	return n[0] - min(n[0], n[1]), nil
}
