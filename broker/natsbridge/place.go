package natsbridge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ipc/baton/internal/lasting"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// lookAtPlace is how often it is looked whether all files of the bridge are there.
const lookAtPlace = 5 * time.Second

// keepPlace makes again what is removed of the bridge's files, until the connection ends. Programs
// find NATS by them.
func (b *Bridge) keepPlace(info Info) {
	tick := time.NewTicker(lookAtPlace)
	defer tick.Stop()
	var trouble lasting.Trouble
	q := quiet{}
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-tick.C:
		}
		made, err := b.makeAgain(info)
		if len(made) > 0 {
			b.cfg.Logger.Warn("files of NATS were removed, and are made again", "dir", b.cfg.RuntimeDir, "files", strings.Join(made, ", "))
		}
		trouble.Note(b.cfg.Logger, "files of NATS were removed and cannot be made again: programs do not find it", err, "dir", b.cfg.RuntimeDir)
		if b.server != nil {
			b.lookAtClients(&q)
		}
	}
}

// makeAgain makes what is missing, the lock first: where another bridge has it, the directory is
// that one's, and nothing is written.
func (b *Bridge) makeAgain(info Info) (made []string, err error) {
	if missing(b.path(lockFile)) {
		if _, err := os.Lstat(b.cfg.RuntimeDir); err != nil {
			return nil, nil // the broker makes it
		}
		lock, err := takeLock(b.cfg.RuntimeDir)
		if err != nil {
			return nil, err
		}
		b.lock.Close()
		b.lock = lock
		b.signLock()
		made = append(made, lockFile)
	}
	if !b.hasLock() {
		return made, nil
	}
	if b.server != nil && missing(b.path(seedFile)) {
		if err := writeSeed(b.path(seedFile), b.server.key); err != nil {
			return made, err
		}
		made = append(made, seedFile)
	}
	if missing(b.path(infoFile)) {
		if err := info.write(b.cfg.RuntimeDir); err != nil {
			return made, err
		}
		made = append(made, infoFile)
	}
	return made, nil
}

func (b *Bridge) path(name string) string { return filepath.Join(b.cfg.RuntimeDir, name) }

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// hasLock tells whether the lock in the directory is this bridge's.
func (b *Bridge) hasLock() bool {
	_, own, err := b.lock.Stat()
	return err == nil && own.IsAt(b.path(lockFile))
}

// removeInfo removes the file that describes this bridge. A file of another one is not touched.
func (b *Bridge) removeInfo() error {
	if !b.hasLock() {
		return nil
	}
	if err := os.Remove(b.path(infoFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove how to connect to NATS: %w", err)
	}
	return nil
}

// signLock notes the port of the server and this process in the lock, which stays when the server
// ends: the next one takes the port again, so that NATS clients find it by themselves. Without the
// note it takes any. A joined bridge leaves the port of the server before.
func (b *Bridge) signLock() {
	port := b.formerPort()
	if b.server != nil {
		port = Info{Mode: ModeEmbedded, URL: b.server.url()}.port()
	}
	if err := b.lock.Sign(fmt.Sprintf("%d\n%d\n", port, os.Getpid())); err != nil {
		b.cfg.Logger.Debug("the port of NATS cannot be noted for the next server", "error", err)
	}
}

// locked is the error of a directory whose lock another bridge has.
func locked(dir string) error {
	data, _ := sys.ReadFile(filepath.Join(dir, lockFile))
	_, rest, _ := strings.Cut(string(data), "\n")
	line, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(line)
	if err != nil || pid <= 0 {
		return protocol.Errorf(protocol.CodeBusy, "wait until the broker that has it has ended, stop that one, or choose another directory",
			"%w, by another broker (%s)", ErrLocked, dir)
	}
	return protocol.Errorf(protocol.CodeBusy, fmt.Sprintf("wait until that process has ended, or end it (kill -TERM %d)", pid),
		"%w, by the broker of process %d (%s), which runs or has not ended yet", ErrLocked, pid, dir).With("pid", pid)
}

// formerPort is what the server before has noted; 0: nothing.
func (b *Bridge) formerPort() int {
	data, _ := sys.ReadFile(b.path(lockFile))
	line, _, _ := strings.Cut(string(data), "\n")
	if n, err := strconv.Atoi(line); err == nil && n > 0 && n <= 65535 {
		return n
	}
	return 0
}
