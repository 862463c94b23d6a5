package memory

import (
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// hugePageSizes are the sizes of huge pages that a grant may name.
var hugePageSizes = []uint64{2 << 20, 1 << 30}

// InHugePages tells whether a file is a memfd in huge pages: all of one size are on
// one file system of the kernel's own.
func InHugePages(id sys.FileID) bool {
	return slices.ContainsFunc(hugePageSizes, func(size uint64) bool {
		fd, err := sys.CreateHugeMemfd("baton-probe", 0, size)
		if err != nil {
			return false
		}
		defer fd.Close()
		_, probe, err := fd.Stat()
		return err == nil && probe.Dev == id.Dev
	})
}

// checkPageBytes refuses what no segment can lie in.
func (m *Memory) checkPageBytes(r *protocol.Grant) error {
	switch {
	case r.PageBytes == 0:
		return nil
	case !slices.Contains(hugePageSizes, r.PageBytes):
		return protocol.Errorf(protocol.CodeInvalid, "ask for pages of 2 MiB or 1 GiB", "grant in pages of %d bytes", r.PageBytes)
	case r.Device != "":
		return protocol.Errorf(protocol.CodeInvalid, "leave the huge pages out", "grant of memory on %s in huge pages", r.Device)
	case m.store.Files.Kind() == protocol.KindFile:
		return protocol.Errorf(protocol.CodeUnsupported, "leave the huge pages out, or run the broker without --memory-dir",
			"memory lies in files of %s here, which have no huge pages of their own", m.limits.MemoryDir)
	}
	return nil
}

// checkHugePages refuses what the machine has no huge pages for. They were taken
// out of its memory when they were reserved, so nothing else is to be left free.
func (m *Memory) checkHugePages(bytes, pageBytes uint64) error {
	free, err := sys.FreeHugePages(pageBytes)
	if err != nil {
		return protocol.Errorf(protocol.CodeUnsupported, "leave the huge pages out", "%w", err)
	}
	if need := bytes / pageBytes; need > free {
		return m.noRoom(lack{code: protocol.CodeOutOfMemory,
			remedy: "release tensors in huge pages, reserve more (sysctl vm.nr_hugepages; `baton doctor` shows them), or leave the huge pages out",
			limit:  free * pageBytes, missing: (need - free) * pageBytes}, "%d bytes more need %d huge pages of %d KiB, and %d are free", bytes, need, pageBytes>>10, free)
	}
	return nil
}
