package sys

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Futex operations without the PRIVATE flag: the word is shared by processes.
const (
	futexWait = 0
	futexWake = 1
)

// FutexWait sleeps while *word is value, at most for the time given. It returns
// when woken, when the word differs, at a signal or at the time's end: the
// caller looks again in every case. The goroutine's processor is handed on
// (Syscall6), so that other goroutines and the collector run meanwhile.
func FutexWait(word *uint32, value uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	// Sound: word points into a mapping that the caller keeps; ts lives on the
	// stack until the call returns.
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// FutexWake wakes all threads that wait on the word. It never blocks, so it does not
// hand its processor on.
func FutexWake(word *uint32) {
	// Sound: as above.
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
}
