package sys

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// OpenPidfd opens a pidfd of a process.
func OpenPidfd(pid int) (*FD, error) {
	n, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open a pidfd of process %d: %w", pid, err)
	}
	return NewFD(n), nil
}

// PidfdPID returns the process that a pidfd stands for, -1 once it has ended.
func PidfdPID(f *FD) (int, error) {
	fd, err := f.Acquire()
	if err != nil {
		return 0, fmt.Errorf("read a pidfd: %w", err)
	}
	defer f.Release()
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, fmt.Errorf("read a pidfd: %w", err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, "Pid:"); ok {
			return strconv.Atoi(strings.TrimSpace(rest))
		}
	}
	return 0, fmt.Errorf("descriptor %d is not a pidfd", fd)
}

// Watched is a process that is waited for by its pidfd.
type Watched struct {
	file  *os.File
	pid   int // 0: not known, or of another pid namespace
	start uint64
	exit  atomic.Pointer[Exit] // as Wait has found it
}

// WatchPidfd takes ownership of the descriptor, until Wait has returned or Stop is called.
func WatchPidfd(f *FD) *Watched {
	return WatchProcess(f, 0, 0)
}

// WatchProcess is WatchPidfd of a process whose number and start time are known: then more can be said
// of how it ends.
func WatchProcess(f *FD, pid int, start uint64) *Watched {
	n := f.take()
	unix.SetNonblock(n, true)
	return &Watched{file: os.NewFile(uintptr(n), "pidfd"), pid: pid, start: start}
}

// Wait blocks a goroutine, not a thread, until the process has ended, or Stop is called, and
// tells whether it ended.
func (w *Watched) Wait() bool {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return false
	}
	ended := false
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(p, 0)
		ended = n > 0 && p[0].Revents&unix.POLLIN != 0
		if ended {
			exit := w.look(int(fd))
			w.exit.Store(&exit)
		}
		return ended
	})
	w.file.Close()
	return err == nil && ended
}

// Stop ends a Wait.
func (w *Watched) Stop() { w.file.Close() }

// Kill sends SIGKILL to the process, and to no other that has its number by now. Of one that
// has ended already, also where its parent has not waited for it, the error is os.ErrProcessDone.
func (w *Watched) Kill() error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return os.ErrProcessDone // it was stopped: the process has ended
	}
	var killed error
	if err := raw.Control(func(fd uintptr) { killed = kill(int(fd)) }); err != nil {
		return os.ErrProcessDone
	}
	return killed
}

// KillPidfd is Watched.Kill for a descriptor that stays the caller's.
func KillPidfd(f *FD) error {
	fd, err := f.Acquire()
	if err != nil {
		return fmt.Errorf("kill a process: %w", err)
	}
	defer f.Release()
	return kill(fd)
}

// MayKill tells why this process may not kill another one; nil: it may, or that has ended.
func MayKill(f *FD) error {
	fd, err := f.Acquire()
	if err != nil {
		return fmt.Errorf("look whether a process can be killed: %w", err)
	}
	defer f.Release()
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != unix.ESRCH {
		return err
	}
	return nil
}

func kill(pidfd int) error {
	if IsReadable(pidfd) {
		return os.ErrProcessDone
	}
	err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	if err == unix.ESRCH {
		return os.ErrProcessDone
	}
	return err
}

// IsReadable tells whether something can be read from a descriptor now. A pidfd is readable once all threads of
// its process have ended.
func IsReadable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// WaitPidfd is WatchPidfd by two functions.
func WaitPidfd(f *FD) (wait func() bool, stop func()) {
	w := WatchPidfd(f)
	return w.Wait, w.Stop
}
