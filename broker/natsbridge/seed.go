package natsbridge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nats-io/nkeys"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

const seedFile = "nats.seed"

// seedKey gives the key in the seed file of a private directory. A missing,
// unreadable or damaged file is replaced by a new random key, and so is one that
// others could read: it may be known to them.
func seedKey(dir string) (key nkeys.KeyPair, path string, err error) {
	path = filepath.Join(dir, seedFile)
	if key := readSeed(path); key != nil {
		return key, path, nil
	}
	key, err = nkeys.CreateUser()
	if err != nil {
		return nil, "", fmt.Errorf("make a NATS key: %w", err)
	}
	if err := writeSeed(path, key); err != nil {
		return nil, "", err
	}
	return key, path, nil
}

func writeSeed(path string, key nkeys.KeyPair) error {
	seed, err := key.Seed()
	if err != nil {
		return fmt.Errorf("make a NATS key: %w", err)
	}
	if err := writePrivate(path, append(seed, '\n')); err != nil {
		return fmt.Errorf("write the NATS seed: %w", err)
	}
	return nil
}

// readSeed gives the key in a file that only we can read, else nil.
func readSeed(path string) nkeys.KeyPair {
	f, err := openOwn(path, 0o077)
	if err != nil {
		return nil
	}
	defer f.Close()
	data := make([]byte, 256)
	n, _ := f.Read(data)
	key, err := nkeys.ParseDecoratedUserNKey(data[:n])
	if err != nil {
		return nil
	}
	return key
}

// openOwn opens a regular file that belongs to this user (root may open any
// user's) and whose mode has none of the refused bits.
func openOwn(path string, refused os.FileMode) (*os.File, error) {
	// O_NONBLOCK: a pipe may stand there, which would block the open.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil {
		err = checkOwn(path, st, refused)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// inTheWay says what to do about what stands where a file of the bridge belongs.
func inTheWay(err error) error {
	if errors.Is(err, sys.ErrInTheWay) {
		return protocol.Errorf(protocol.CodePermission, "move it away, or choose another runtime directory (--runtime-dir)", "%w", err)
	}
	return err
}

func checkOwn(path string, st os.FileInfo, refused os.FileMode) error {
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", path)
	}
	if st.Mode().Perm()&refused != 0 {
		return fmt.Errorf("%s is open to others (mode %04o)", path, st.Mode().Perm())
	}
	of, ok := st.Sys().(*syscall.Stat_t)
	if me := os.Geteuid(); !ok || me != 0 && of.Uid != uint32(me) {
		return fmt.Errorf("%s belongs to another user", path)
	}
	return nil
}

// writePrivate replaces a file whole, mode 0600: a reader sees the old or the new.
func writePrivate(path string, data []byte) error {
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return inTheWay(&os.PathError{Op: "replace", Path: path, Err: sys.ErrInTheWay})
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
