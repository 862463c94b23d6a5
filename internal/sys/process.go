package sys

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Credentials of the process that connected to a socket, as the kernel says.
// PID is 0 when the process is in a namespace that this one cannot see.
type Credentials struct {
	PID      int
	UID, GID uint32
}

// PeerCredentials returns the process that called connect, and in that one, the process that listened last.
func PeerCredentials(c *net.UnixConn) (Credentials, error) {
	var cred *unix.Ucred
	err := control(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return Credentials{}, fmt.Errorf("read the peer's credentials: %w", err)
	}
	return Credentials{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}, nil
}

// PeerPidfd returns a pidfd of the process that called connect, CLOEXEC. Kernels
// before 6.5 cannot: then the client must send one.
func PeerPidfd(c *net.UnixConn) (*FD, error) {
	var n int
	err := control(c, func(fd int) (err error) {
		n, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a pidfd of the peer: %w", err)
	}
	return NewFD(n), nil
}

// ParentPID returns the process that made another one.
func ParentPID(pid int) (int, error) {
	f, err := processStat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(f[1])
}

// StartTime returns when a process began, in clock ticks since boot: with the
// boot id and the pid it names one process and no later one. An error says that it could not
// be read, which is no proof that the process has ended: FindProcess tells that.
func StartTime(pid int) (uint64, error) {
	f, err := processStat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// Stopped tells whether the process that had a start time is suspended, by a signal or a debugger.
func Stopped(pid int, start uint64) bool {
	f, err := processStat(pid)
	return err == nil && (f[0] == "T" || f[0] == "t") && f[19] == strconv.FormatUint(start, 10)
}

// Runs tells whether the process that had a start time is there and not suspended, as far as /proc shows it.
func Runs(pid int, start uint64) bool {
	f, err := processStat(pid)
	return err == nil && f[0] != "T" && f[0] != "t" && f[19] == strconv.FormatUint(start, 10)
}

// processStat returns what /proc/PID/stat says behind the name, from field 3 on.
func processStat(pid int) ([]string, error) {
	// By hand: os would ask the poller about each file that it opens, and every
	// session's opening waits for this.
	path := fmt.Sprintf("/proc/%d/stat", pid)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("look at a process: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(fd)
	buf := make([]byte, 2048) // 52 numbers and a name of at most 64 bytes
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, fmt.Errorf("look at a process: %w", &os.PathError{Op: "read", Path: path, Err: err})
	}
	data := buf[:n]
	i := bytes.LastIndexByte(data, ')') // the name may hold anything
	f := strings.Fields(string(data[i+1:]))
	if i < 0 || len(f) < 20 {
		return nil, fmt.Errorf("look at a process: %s has another form", path)
	}
	return f, nil
}

// ProcessState is what can be said of a process that was noted earlier.
type ProcessState int

const (
	// ProcessUnknown: it could not be looked at.
	ProcessUnknown ProcessState = iota
	// ProcessLives: it is the one that was noted.
	ProcessLives
	// ProcessEnded: there is none with this pid, or another one.
	ProcessEnded
)

// FindProcess looks for a process that was noted with pid and start time, in this pid
// namespace and since the machine's last start. It has ended when the kernel has no
// such pid, or when the start time was read and is another; every other error leaves
// it unknown. The descriptor, of whichever process has the pid now, may be nil unless
// it lives. One that has ended and whose parent has not waited for it lives here: HasEnded tells.
func FindProcess(pid int, start uint64) (*FD, ProcessState) {
	fd, err := OpenPidfd(pid)
	if isErrno(err, unix.ESRCH) {
		return nil, ProcessEnded
	}
	began, readErr := StartTime(pid)
	switch {
	case readErr == nil && began != start:
		if err == nil {
			fd.Close()
		}
		return nil, ProcessEnded
	case err != nil:
		return nil, ProcessUnknown
	case readErr != nil:
		return fd, ProcessUnknown
	}
	return fd, ProcessLives
}

// HasEnded tells whether the process that was noted with pid and start time is known to have ended, also where its
// parent has not waited for it yet.
func HasEnded(pid int, start uint64) bool {
	fd, state := FindProcess(pid, start)
	if fd == nil {
		return state == ProcessEnded
	}
	defer fd.Close()
	return state == ProcessLives && hasEnded(fd)
}

// hasEnded tells whether all threads of a process have ended.
func hasEnded(pidfd *FD) bool {
	fd, err := pidfd.Acquire()
	if err != nil {
		return false
	}
	defer pidfd.Release()
	return IsReadable(fd)
}

// PIDNamespace returns the inode of a process's pid namespace, 0 if unknown.
func PIDNamespace(pid int) uint64 {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &st) != nil {
		return 0
	}
	return st.Ino
}

// Lock takes an exclusive lock of the file, which the kernel drops with the
// last descriptor. With wait false it returns syscall.EWOULDBLOCK at once when
// another process has it.
func (f *FD) Lock(wait bool) error {
	fd, err := f.Acquire()
	if err != nil {
		return err
	}
	defer f.Release()
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}

// OpenLock opens or makes a lock file, mode 0600.
func OpenLock(path string) (*FD, error) {
	n, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err == unix.EISDIR {
		err = ErrInTheWay
	}
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	var st unix.Stat_t
	if err = unix.Fstat(n, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = ErrInTheWay
	}
	if err != nil {
		unix.Close(n)
		return nil, fmt.Errorf("open lock: %w", &os.PathError{Op: "lock", Path: path, Err: err})
	}
	return NewFD(n), nil
}

// Sign replaces what stands in a lock file.
func (f *FD) Sign(text string) error {
	fd, err := f.Acquire()
	if err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	defer f.Release()
	_, err = unix.Pwrite(fd, []byte(text), 0)
	if err == nil {
		err = unix.Ftruncate(fd, int64(len(text)))
	}
	if err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	return nil
}

// IsLocked tells that Lock was refused because another has the lock.
func IsLocked(err error) bool { return isErrno(err, unix.EWOULDBLOCK) }

// IsHalfClosed reports of a connection whose end was read whether the peer has ended its
// sending alone, and can still be told something.
func IsHalfClosed(c *net.UnixConn) bool {
	seen, err := endsOf(c)
	return err == nil && seen&(unix.POLLHUP|unix.POLLERR) == 0 && seen&unix.POLLRDHUP != 0
}

// IsPeerGone tells whether the peer of a connection has closed it or ended, so that no reply reaches it. What it had
// sent can still be read. A peer that has ended its sending alone is not gone.
func IsPeerGone(c *net.UnixConn) bool {
	seen, err := endsOf(c)
	return err == nil && seen&(unix.POLLHUP|unix.POLLERR) != 0
}

// endsOf tells, without waiting, which ends of a connection are over.
func endsOf(c *net.UnixConn) (seen int16, err error) {
	err = control(c, func(fd int) error {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		for {
			if _, err := unix.Poll(p, 0); err != unix.EINTR {
				seen = p[0].Revents
				return err
			}
		}
	})
	return seen, err
}

// GiveUp ends a connection in both directions, and tells whether the peer has not yet read all that was sent: what it
// reads later it reads of a peer that IsPeerGone.
func GiveUp(c *net.UnixConn) (unread bool) {
	err := control(c, func(fd int) error {
		if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
			return err
		}
		n, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
		unread = n > 0
		return err
	})
	return err == nil && unread
}

func control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// DupSocket returns another descriptor of a socket.
func DupSocket(c syscall.Conn) (dup *FD, err error) {
	err = control(c, func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			dup = NewFD(n)
		}
		return err
	})
	return dup, err
}

// ListenerOf goes on to listen at a socket that another process made. It takes
// ownership of the descriptor.
func ListenerOf(f *FD) (*net.UnixListener, error) {
	file := os.NewFile(uintptr(f.take()), "listener")
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("listen at a socket that was handed over: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("a %s socket was handed over, not a Unix one", l.Addr().Network())
	}
	return u, nil
}

// ListenAgain makes this process the one that peers of a listener see: the kernel shows them
// the credentials of the process that listened last, which of a socket that was handed over
// is the one that handed it over.
func ListenAgain(l *net.UnixListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), unix.SOMAXCONN) }); e != nil {
		return e
	}
	return err
}

// PassFDs encodes descriptors for a message's ancillary data.
func PassFDs(fds []int) []byte {
	if len(fds) == 0 {
		return nil
	}
	return unix.UnixRights(fds...)
}

// FDSpace is the ancillary space for n descriptors.
func FDSpace(n int) int { return unix.CmsgSpace(4 * n) }

// FDsLost tells from the flags of a received message that descriptors came with
// it and this process may have no more open: those that did not fit are gone.
func FDsLost(flags int) bool { return flags&unix.MSG_CTRUNC != 0 }

// ReceiveFDs takes the descriptors out of ancillary data. Go's net package
// receives them CLOEXEC.
func ReceiveFDs(oob []byte) ([]*FD, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse descriptors: %w", err)
	}
	var got []*FD
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			got = append(got, NewFD(fd))
		}
	}
	return got, nil
}

// ReapAny waits until a child has ended, whichever, and collects its end: for a process that
// waits for its children in no other way.
func ReapAny() (pid int, status syscall.WaitStatus, err error) {
	for {
		var s unix.WaitStatus
		pid, err = unix.Wait4(-1, &s, 0, nil)
		if err != unix.EINTR {
			return pid, syscall.WaitStatus(s), err
		}
	}
}

// LeadTo has the descriptor of a file, such as standard error, lead to what another one is, which stays
// open. Programs that are executed inherit it.
func LeadTo(file, other *os.File) error {
	return unix.Dup3(int(other.Fd()), int(file.Fd()), 0)
}
