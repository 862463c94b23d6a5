package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// CPU is the number of the processor on which the calling thread runs, which may be another
// one by the time that it is looked at; -1 where the kernel does not say.
func CPU() int {
	var cpu uint32
	// Sound: the kernel writes a word of 32 bits there, and keeps no address.
	_, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	if errno != 0 {
		return -1
	}
	return int(cpu)
}

// LetOthersRun lets other threads run that wait for the processor of this one.
func LetOthersRun() {
	unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
