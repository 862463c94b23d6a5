package sessionfiles

import (
	"runtime"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Mapping is a shared file that is mapped here until nothing refers to the
// mapping any more. Views of its region (lanes, refcounts, bells) do not: code that looks
// through one has its mapping reachable, or keeps it to the end of the look with
// runtime.KeepAlive.
type Mapping struct{ shm.Region }

// lifted is memory to unmap. dl, where given, has exports whose C code counts
// down in it.
type lifted struct {
	memory []byte
	dl     *Exports
}

// NewMapping maps a shared file after checking that it has the size of the
// layout: a mapping longer than its file ends in SIGBUS. With dl it stays mapped
// while tensors exported from there are out.
func NewMapping(fd *sys.FD, bytes uint64, write bool, dl *Exports) (*Mapping, error) {
	size, _, err := fd.Stat()
	if err != nil {
		return nil, err
	}
	if uint64(size) < bytes {
		return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version",
			"a shared file has %d bytes, not %d", size, bytes)
	}
	b, err := sys.Map(fd, int(bytes), write)
	if err == nil && write {
		if err = sys.DontFork(b); err != nil {
			sys.Unmap(b)
		}
	}
	if sys.IsNoSpace(err) {
		return nil, protocol.Errorf(protocol.CodeOutOfMemory, "raise the limit of addresses (ulimit -v) or of mappings (vm.max_map_count)", "%w", err)
	}
	if err != nil {
		return nil, err
	}
	m := &Mapping{shm.NewRegion(b)}
	runtime.AddCleanup(m, unmap, lifted{b, dl})
	return m, nil
}

// lookAgain is how often it is looked whether C code has deleted what it had.
const lookAgain = 2 * time.Second

// unmap unmaps now, or once C code has deleted all that counts down there.
func unmap(l lifted) {
	if l.dl == nil || l.dl.end() {
		sys.Unmap(l.memory)
		return
	}
	go func() { // nothing tells when: a deleter makes no call
		for !l.dl.end() {
			time.Sleep(lookAgain)
		}
		sys.Unmap(l.memory)
	}()
}

// newOwnMapping maps a file that came with hello and checks that its head is that
// of the role. Other heads are not looked at: those of other sessions' files are written
// by those sessions, those of bells and claims by all, so they prove nothing, and a
// hostile session must not make its neighbours' files look broken.
func newOwnMapping(fd *sys.FD, bytes uint64, write bool, role uint32, dl *Exports) (*Mapping, error) {
	r, err := NewMapping(fd, bytes, write, dl)
	if err != nil {
		return nil, err
	}
	if m, l, got := r.Load64(protocol.HeadMagic), r.Load32(protocol.HeadLayout), r.Load32(protocol.HeadRole); m != protocol.Magic || l != protocol.Layout || got != role {
		return nil, protocol.Errorf(protocol.CodeVersion, "use broker and client of one version",
			"shared file has magic %#x, layout %d, role %d; expected layout %d, role %d", m, l, got, protocol.Layout, role)
	}
	return r, nil
}
