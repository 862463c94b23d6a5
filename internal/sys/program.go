package sys

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// mostCommand bounds what is read of a command line.
const mostCommand = 1024

// CommandLine returns how a process was started, its arguments separated by spaces; "" where it
// cannot be read, of a process of another pid namespace or user, say. The process may have
// written over it.
func CommandLine(pid int) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, mostCommand)
	n, _ := f.Read(buf)
	return strings.TrimSpace(string(bytes.ReplaceAll(bytes.TrimRight(buf[:n], "\x00"), []byte{0}, []byte{' '})))
}

// ofContainer finds the name that container runtimes give their control groups.
var ofContainer = regexp.MustCompile(`[0-9a-f]{64}`)

// Container returns the first digits of the id of the container in which a process runs, as
// container runtimes show it; "" where its control group says of none.
func Container(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	id := ofContainer.Find(data)
	if id == nil {
		return ""
	}
	return string(id[:12])
}
