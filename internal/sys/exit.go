package sys

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit is how a process has ended, as far as the kernel tells a process that is not its parent.
type Exit struct {
	Known  bool
	Signal int // what ended it; 0: it has exited
	Status int // what it has exited with
}

// String tells it to people: "was killed by SIGKILL"; "" where nothing is known.
func (e Exit) String() string {
	switch {
	case !e.Known:
		return ""
	case e.Signal == 0:
		return fmt.Sprintf("has exited with status %d", e.Status)
	}
	name := unix.SignalName(syscall.Signal(e.Signal))
	if name == "" {
		name = fmt.Sprintf("signal %d", e.Signal)
	}
	return "was killed by " + name
}

func exitOf(status uint32) Exit {
	s := unix.WaitStatus(status)
	switch {
	case s.Signaled():
		return Exit{Known: true, Signal: int(s.Signal())}
	case s.Exited():
		return Exit{Known: true, Status: s.ExitStatus()}
	}
	return Exit{}
}

// Exit tells how the process has ended. It may be called before Wait has returned: a process that ends gives
// back its memory first.
func (w *Watched) Exit() (exit Exit) {
	if known := w.exit.Load(); known != nil {
		return *known
	}
	raw, err := w.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { exit = w.look(int(fd)) })
	}
	if known := w.exit.Load(); err != nil && known != nil { // Wait has ended meanwhile
		return *known
	}
	return exit
}

// look asks the kernel: what is there of the process before its parent has waited for it, and what the pidfd
// keeps of it after that.
func (w *Watched) look(pidfd int) Exit {
	if w.start != 0 {
		if exit := exitInStat(w.pid, w.start); exit.Known {
			return exit
		}
	}
	return exitOfPidfd(pidfd)
}

// The fields of /proc/PID/stat from the third one on, and the flag of a process that ends: its exit code is
// set by then.
const (
	statFlags = 6
	statExit  = 49
	exiting   = 0x4
)

func exitInStat(pid int, start uint64) Exit {
	f, err := processStat(pid)
	if err != nil || len(f) <= statExit || f[19] != strconv.FormatUint(start, 10) {
		return Exit{}
	}
	flags, err := strconv.ParseUint(f[statFlags], 10, 32)
	if err != nil || flags&exiting == 0 {
		return Exit{}
	}
	code, err := strconv.ParseUint(f[statExit], 10, 32)
	if err != nil || code == 0 && !mayLookAt(pid) {
		return Exit{} // the kernel writes 0 for those that may not know
	}
	return exitOf(uint32(code))
}

// mayLookAt tells whether the kernel shows this process what it keeps from other users.
func mayLookAt(pid int) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil || !os.IsPermission(err)
}
