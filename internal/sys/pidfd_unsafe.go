package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// pidfdInfo is the first version of what PIDFD_GET_INFO fills in.
type pidfdInfo struct {
	mask, cgroup             uint64
	pid, tgid, ppid          uint32
	ruid, rgid, euid, egid   uint32
	suid, sgid, fsuid, fsgid uint32
	exit                     int32
}

const (
	pidfdGetInfo  = 3<<30 | unsafe.Sizeof(pidfdInfo{})<<16 | 0xff<<8 | 11
	pidfdInfoExit = 1 << 3
)

// exitOfPidfd asks for what a pidfd keeps of a process that was waited for: since Linux 6.15.
func exitOfPidfd(pidfd int) Exit {
	info := pidfdInfo{mask: pidfdInfoExit}
	// Sound: the kernel writes as many bytes as the request names, which are those of the structure.
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || info.mask&pidfdInfoExit == 0 {
		return Exit{}
	}
	return exitOf(uint32(info.exit))
}
