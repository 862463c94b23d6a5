package testkit

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/baton-ipc/baton/internal/sys"
)

// needs tell, for each name that Need takes, what is missing; "" is nothing.
var needs = map[string]func() string{
	"cargo":    func() string { return program("cargo", "https://rustup.rs") },
	"cc":       func() string { return program("cc", "Debian: apt-get install gcc libc6-dev") },
	"chromium": func() string { return program("chromium", "Debian: apt-get install chromium") },
	"cpus": func() string {
		if runtime.NumCPU() < 2 {
			return "this process may use one CPU alone, and measurements need two"
		}
		return ""
	},
	"cuda": func() string {
		if _, err := os.Stat("/dev/nvidiactl"); err != nil {
			return "this machine or container has no NVIDIA GPU (/dev/nvidiactl)"
		}
		return ""
	},
	"fuse": func() string {
		dir, err := os.MkdirTemp("", "baton-fuse")
		if err != nil {
			return err.Error()
		}
		defer os.Remove(dir)
		device, err := MountFUSE(dir)
		if err != nil {
			return fmt.Sprintf("no file system can be mounted by FUSE here (/dev/fuse, and root): %v", err)
		}
		device.Close()
		exec.Command("umount", "-l", dir).Run()
		return ""
	},
	"go": func() string { return program("go", "https://go.dev/dl") },
	"huge-pages": func() string {
		if free, err := sys.FreeHugePages(2 << 20); err != nil || free < 16 {
			return "the machine has not 16 huge pages of 2 MiB free (as root: sysctl vm.nr_hugepages=16)"
		}
		return ""
	},
	"nats-server":     func() string { return program("nats-server", "https://nats.io/download") },
	"setpriv":         func() string { return program("setpriv", "Debian: apt-get install util-linux") },
	"unshare":         func() string { return program("unshare", "Debian: apt-get install util-linux") },
	"systemd-analyze": func() string { return program("systemd-analyze", "Debian: apt-get install systemd") },
	"script":          func() string { return program("script", "Debian: apt-get install bsdutils") },
	"promtool":        func() string { return program("promtool", "Debian: apt-get install prometheus") },
	"root": func() string {
		if os.Geteuid() != 0 {
			return "the tests do not run as root"
		}
		return ""
	},
}

// MountFUSE mounts a file system that gives no answer, as one of a server that is gone, until the file that it returns is
// closed: then all that wait for it are told that it is gone. The caller unmounts it.
func MountFUSE(dir string) (*os.File, error) {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	mount := exec.Command("mount", "-i", "-t", "fuse", "-o", "fd=3,rootmode=40000,user_id=0,group_id=0", "baton-test", dir)
	mount.ExtraFiles = []*os.File{device}
	if out, err := mount.CombinedOutput(); err != nil {
		device.Close()
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return device, nil
}

func program(name, remedy string) string {
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Sprintf("%s is not installed (%s)", name, remedy)
	}
	return ""
}

// Need skips the test when what it names is missing here, and fails it instead
// when BATON_REQUIRE lists the name.
func Need(t testing.TB, name string) {
	t.Helper()
	ask := needs[name]
	if ask == nil {
		t.Fatalf("testkit does not know how to look for %q", name)
	}
	if reason := ask(); reason != "" {
		Skip(t, name, reason)
	}
}

// OwnHugePages makes the machine's huge pages of 2 MiB the test's own until its
// end: tests of another package, which run at the same time, take and count them too.
func OwnHugePages(t testing.TB) {
	t.Helper()
	f, err := os.Open("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
	if err != nil {
		return // there are none to take
	}
	t.Cleanup(func() { f.Close() })
	if err := sys.NewFD(int(f.Fd())).Lock(true); err != nil {
		t.Fatalf("lock %s: %v", f.Name(), err)
	}
}

// Skip skips the test for a reason under a name, and fails it instead when
// BATON_REQUIRE lists the name. Reasons are counted and told at the end.
func Skip(t testing.TB, name, reason string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("BATON_REQUIRE"), ","), name) {
		t.Fatalf("missing: %s: %s (required by BATON_REQUIRE)", name, reason)
	}
	skips.Lock()
	skips.count[name+": "+reason]++
	skips.Unlock()
	t.Skipf("%s: %s", name, reason)
}

var skips = struct {
	sync.Mutex
	count map[string]int
}{count: map[string]int{}}

// reportSkips writes how many tests were skipped for which reason.
func reportSkips(w io.Writer) {
	skips.Lock()
	defer skips.Unlock()
	reasons := make([]string, 0, len(skips.count))
	for reason := range skips.count {
		reasons = append(reasons, reason)
	}
	slices.Sort(reasons)
	for _, reason := range reasons {
		fmt.Fprintf(w, "skipped: %d × %s\n", skips.count[reason], reason)
	}
}
