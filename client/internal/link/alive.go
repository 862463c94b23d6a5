package link

import (
	"sync"

	"github.com/baton-ipc/baton/internal/sys"
)

// alive is the file by which a broker knows that this program was not replaced by
// exec. One serves all clients of the process.
var alive struct {
	mu   sync.Mutex // guards what follows
	file *sys.FD
	id   sys.FileID
}

// aliveFile returns that file, which a hello brings; none where it cannot be made:
// then the session stays until the process ends. A program may have closed all its
// descriptors: then the number is another file's, or free, and is left alone.
func aliveFile() []*sys.FD {
	alive.mu.Lock()
	defer alive.mu.Unlock()
	if alive.file != nil {
		if _, id, err := alive.file.Stat(); err == nil && id == alive.id {
			return []*sys.FD{alive.file}
		}
		alive.file = nil
	}
	file, err := sys.OpenAlive()
	if err != nil {
		return nil
	}
	if _, alive.id, err = file.Stat(); err != nil {
		return nil
	}
	alive.file = file
	return []*sys.FD{file}
}
