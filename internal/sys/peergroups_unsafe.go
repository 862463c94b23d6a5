package sys

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fewGroups is how many supplementary groups are asked for at first.
const fewGroups = 32

// PeerGroups returns the supplementary groups of the process that called connect, as they
// were then.
func PeerGroups(c *net.UnixConn) (groups []uint32, err error) {
	err = control(c, func(fd int) error {
		groups = make([]uint32, fewGroups)
		for {
			n := uint32(4 * len(groups))
			// Sound: the kernel writes at most n bytes, which groups has, and n; both live until
			// the call returns.
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&n)), 0)
			if errno == unix.ERANGE && int(n/4) > len(groups) {
				groups = make([]uint32, n/4)
				continue
			}
			if errno != 0 {
				return errno
			}
			groups = groups[:n/4]
			return nil
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read the peer's groups: %w", err)
	}
	return groups, nil
}
