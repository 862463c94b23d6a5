package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

// Machine says where the checks of the machine look.
type Machine struct {
	// Root is the file system: / of this machine, or another in tests.
	Root fs.FS
	// ReadMemory tells the machine's memory.
	ReadMemory func() (sys.Memory, error)
}

// ThisMachine is the one that the process runs on.
func ThisMachine() Machine { return Machine{os.DirFS("/"), sys.ReadMemory} }

// Checks lists what to look at on the machine.
func (m Machine) Checks() []Check {
	plain := func(f func() Finding) func(context.Context) Finding {
		return func(context.Context) Finding { return f() }
	}
	return []Check{
		{Name: "kernel", Look: plain(m.kernel)},
		{Name: "memory", Look: plain(m.memory)},
		{Name: "container limit", Look: plain(m.container)},
		{Name: "memfd", Look: plain(memfd)},
		{Name: "pidfd", Look: plain(pidfd)},
		{Name: "peer pidfd", Look: peerPidfd},
		{Name: "open files", Look: plain(m.openFiles)},
		{Name: "mappings", Look: plain(m.mappings)},
		{Name: "huge pages", Look: plain(m.hugePages)},
		{Name: "/dev/shm", Look: plain(m.devShm)},
		{Name: "GPU", Look: plain(m.gpu)},
		{Name: "loopback", Look: plain(loopback)},
	}
}

func (m Machine) read(name string) (string, error) {
	data, err := fs.ReadFile(m.Root, name)
	return strings.TrimSpace(string(data)), err
}

func bytes(n uint64) string { return termtext.Bytes(int64(min(n, 1<<62))) }

// The oldest kernels: pidfds that can be waited for came with 5.3, and the
// project is used from 5.14 on.
var (
	oldestKernel    = [2]int{5, 3}
	supportedKernel = [2]int{5, 14}
)

func (m Machine) kernel() Finding {
	release, err := m.read("proc/sys/kernel/osrelease")
	if err != nil {
		return warn("mount /proc", "the kernel's version cannot be read: %v", err)
	}
	v, known := parseRelease(release)
	switch {
	case !known:
		return warn("", "Linux %s, a version of a form that is not known", release)
	case older(v, oldestKernel):
		return fail("use Linux 5.14 or newer", "Linux %s is too old: it has no pidfds to wait for", release)
	case older(v, supportedKernel):
		return warn("use Linux 5.14 or newer", "Linux %s is older than what Baton is made for", release)
	}
	return ok("Linux %s", release)
}

func parseRelease(s string) (v [2]int, known bool) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) < 2 {
		return v, false
	}
	for i := range v {
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

func older(v, than [2]int) bool { return v[0] < than[0] || v[0] == than[0] && v[1] < than[1] }

// Below these a broker has little to give.
const (
	littleMemory = 256 << 20
	noMemory     = 32 << 20
)

func (m Machine) memory() Finding {
	mem, err := m.ReadMemory()
	if err != nil {
		return fail("mount /proc", "the machine's memory cannot be read: %v", err)
	}
	const remedy = "end programs that hold memory, or set --memory below what is free"
	text := fmt.Sprintf("%s, %s of them free", bytes(mem.Total), bytes(mem.Available))
	if mem.Free() < mem.Available {
		text += fmt.Sprintf(", %s within the container's limit", bytes(mem.Free()))
	}
	most := mem.Bound() / 2
	text += fmt.Sprintf("; a broker hands out at most %s unless --memory says otherwise", bytes(most))
	switch {
	case mem.Free() < noMemory:
		return fail(remedy, "%s", text)
	case most > mem.Free() && (mem.Free() < littleMemory || mem.Available < mem.Total/20):
		return warn(remedy, "%s", text)
	}
	return ok("%s", text)
}

func (m Machine) container() Finding {
	mem, err := m.ReadMemory()
	if err != nil {
		return warn("mount /proc and /sys", "limits cannot be read: %v", err)
	}
	inside := "not in a container that can be seen"
	for _, mark := range []string{".dockerenv", "run/.containerenv"} {
		if _, err := fs.Stat(m.Root, mark); err == nil {
			inside = "in a container"
		}
	}
	if mem.Limit == 0 {
		return ok("%s, no memory limit", inside)
	}
	left := mem.Limit - min(mem.Limit, mem.Used)
	text := fmt.Sprintf("%s, memory limit %s, %s of it free", inside, bytes(mem.Limit), bytes(left))
	if left < littleMemory {
		return warn("raise the container's memory limit: shared memory counts against the one that allocates it", "%s", text)
	}
	return ok("%s", text).note("processes of several containers share a broker by its socket's directory alone")
}

func memfd() Finding {
	const remedy = "allow memfd_create in the sandbox's or container's profile, or use --memory-dir"
	f, err := sys.CreateMemfd("baton-doctor", protocol.SessionBytes) // the largest that a broker makes at its start
	if sys.IsTooLarge(err) {
		return fail("raise the limit of the size of files (ulimit -f), which binds memory files too", "memory files cannot be as large as is needed: %v", err)
	}
	if err != nil {
		return fail(remedy, "memory files cannot be made: %v", err)
	}
	defer f.Close()
	if !f.Sealed() {
		return fail(remedy, "memory files cannot be sealed against resizing")
	}
	if err := f.Reserve(0, 1<<16); err != nil {
		return fail(remedy, "memory files cannot be filled: %v", err)
	}
	r, err := f.ReopenReadOnly()
	if err != nil {
		return fail("mount /proc", "memory files cannot be opened anew for reading: %v", err)
	}
	r.Close()
	return ok("memory files can be made, sealed and passed on read-only")
}

func pidfd() Finding {
	f, err := sys.OpenPidfd(os.Getpid())
	if err != nil {
		return fail("use Linux 5.14 or newer and allow pidfd_open in the sandbox's profile",
			"the end of processes cannot be seen: %v", err)
	}
	f.Close()
	return ok("the end of processes can be seen")
}

// peerPidfd tries SO_PEERPIDFD on a connection to ourselves.
func peerPidfd(ctx context.Context) Finding {
	const remedy = "nothing to do: clients send a pidfd of their own; Linux 6.5 or newer does without"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@baton-doctor-%d", os.Getpid()), Net: "unix"})
	if err != nil {
		return warn("allow Unix sockets", "a socket cannot be made: %v", err)
	}
	defer l.Close()
	var d net.Dialer
	near, err := d.DialContext(ctx, "unix", l.Addr().String())
	if err != nil {
		return warn("allow Unix sockets", "a socket cannot be connected: %v", err)
	}
	defer near.Close()
	far, err := l.AcceptUnix()
	if err != nil {
		return warn("allow Unix sockets", "a socket cannot be connected: %v", err)
	}
	defer far.Close()
	f, err := sys.PeerPidfd(far)
	if err != nil {
		return warn(remedy, "the kernel does not tell a socket's process across containers (SO_PEERPIDFD): %v", err)
	}
	f.Close()
	return ok("the kernel tells a socket's process, across containers too (SO_PEERPIDFD)")
}

// A session takes a few descriptors of the broker, a segment one.
const (
	enoughFiles = 16384
	filesEach   = 16
)

func (m Machine) openFiles() Finding {
	const remedy = "raise the hard limit: ulimit -Hn, LimitNOFILE= of a systemd unit, --ulimit nofile of a container"
	limits, err := m.read("proc/self/limits")
	if err != nil {
		return warn("mount /proc", "the limit of open files cannot be read: %v", err)
	}
	own, _, err := sys.OpenFiles()
	if err != nil {
		return warn("mount /proc", "the open files cannot be counted: %v", err)
	}
	least := broker.LeastFiles(own) // as baton serve judges
	for _, line := range strings.Split(limits, "\n") {
		rest, found := strings.CutPrefix(line, "Max open files")
		if !found {
			continue
		}
		f := strings.Fields(rest)
		if len(f) < 2 {
			break
		}
		if f[1] == "unlimited" {
			return ok("no limit of open files")
		}
		hard, err := strconv.ParseUint(f[1], 10, 64)
		switch {
		case err != nil:
		case hard < least:
			return fail(remedy, "at most %d open files, too few for a broker, which needs %d", hard, least)
		case hard < enoughFiles:
			return warn(remedy, "at most %d open files: enough for some %d sessions", hard, 1+(hard-least)/filesEach)
		default:
			return ok("at most %d open files", hard)
		}
	}
	return warn("", "the limit of open files cannot be read")
}

func (m Machine) mappings() Finding {
	text, err := m.read("proc/sys/vm/max_map_count")
	n, parseErr := strconv.ParseUint(text, 10, 64)
	switch {
	case errors.Join(err, parseErr) != nil:
		return warn("mount /proc", "the limit of mappings cannot be read")
	case n < 65530:
		return warn("sysctl vm.max_map_count=65530", "a process may have %d mappings, fewer than usual", n)
	}
	return ok("a process may have %d mappings", n)
}

func (m Machine) hugePages() Finding {
	info, err := m.read("proc/meminfo")
	if err != nil {
		return warn("mount /proc", "huge pages cannot be read: %v", err)
	}
	value := func(key string) uint64 {
		for _, line := range strings.Split(info, "\n") {
			if rest, found := strings.CutPrefix(line, key+":"); found {
				n, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				return n
			}
		}
		return 0
	}
	transparent := "unknown"
	if s, err := m.read("sys/kernel/mm/transparent_hugepage/shmem_enabled"); err == nil {
		if _, after, found := strings.Cut(s, "["); found {
			transparent, _, _ = strings.Cut(after, "]")
		}
	}
	const remedy = "for very large tensors: echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
	total := value("HugePages_Total")
	if total == 0 {
		return ok("none reserved, and none used; transparent ones for shared memory: %s", transparent).note(remedy)
	}
	return ok("%d of %d reserved ones free, %s each; transparent ones for shared memory: %s",
		value("HugePages_Free"), total, bytes(value("Hugepagesize")<<10), transparent)
}

func (m Machine) devShm() Finding {
	if _, err := fs.Stat(m.Root, "dev/shm"); err != nil {
		return ok("there is none, and memfds need none")
	}
	free, err := sys.FreeSpace("/dev/shm")
	if err != nil {
		return ok("it cannot be looked at, and memfds need none")
	}
	return ok("%s free; memfds need none of it, --memory-dir /dev/shm/… would", bytes(free))
}

// driverOfValues is the first whose streams write and wait for 64-bit values without
// an option of the kernel module.
const driverOfValues = 515

func (m Machine) gpu() Finding {
	devices, err := fs.ReadDir(m.Root, "dev")
	if err != nil {
		return warn("mount /dev", "devices cannot be listed: %v", err)
	}
	n := 0
	for _, d := range devices {
		if isNumbered, _ := path.Match("nvidia[0-9]*", d.Name()); isNumbered {
			n++
		}
	}
	if n == 0 {
		return ok("no NVIDIA device")
	}
	text := fmt.Sprintf("%d NVIDIA device", n)
	if n > 1 {
		text += "s"
	}
	v, err := m.read("sys/module/nvidia/version")
	if err != nil {
		return ok("%s", text)
	}
	text += ", driver " + v
	major, _, _ := strings.Cut(v, ".")
	if number, err := strconv.Atoi(major); err == nil && number < driverOfValues {
		return warn(fmt.Sprintf("update it to %d or newer (CUDA 11.7)", driverOfValues),
			"%s, whose streams cannot wait for those of other processes: tensors are handed over, and the processor waits", text)
	}
	return ok("%s", text)
}

// loopback is what the embedded NATS server listens on.
func loopback() Finding {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return warn("bring the loopback interface up (ip link set lo up), or use --no-nats",
			"the embedded NATS server cannot listen on 127.0.0.1: %v", err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String()) // one that is down lets listen
	if err != nil {
		return warn("bring the loopback interface up (ip link set lo up), or use --no-nats",
			"no client can reach the embedded NATS server on 127.0.0.1: %v", err)
	}
	c.Close()
	return ok("127.0.0.1 can be listened on, as the embedded NATS server does")
}
