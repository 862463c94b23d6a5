package sys

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInTheWay is of what stands where a regular file is expected.
var ErrInTheWay = errors.New("it is no regular file")

// ErrTooLong is of a file that is longer than it may be.
var ErrTooLong = errors.New("it is too long")

// ReadFile is os.ReadFile for a path at which only a regular file is expected: a pipe that stands there is an
// error, where os.ReadFile would wait for its writer.
func ReadFile(path string) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// ReadAtMost is ReadFile for a file of so many bytes at most: a longer one is ErrTooLong.
func ReadAtMost(path string, most int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = &os.PathError{Op: "read", Path: path, Err: ErrTooLong}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// OpenRegular opens a regular file for reading, and waits for nothing: what else stands there is ErrInTheWay.
func OpenRegular(path string) (*os.File, error) { return openRegular(path, os.O_RDONLY) }

// OpenAppend opens a regular file to append to it, and waits for nothing, as OpenRegular. One that is not there is made,
// mode 0600.
func OpenAppend(path string) (*os.File, error) {
	return openRegular(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE)
}

func openRegular(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if isErrno(err, unix.ENXIO) || isErrno(err, unix.EISDIR) { // a socket, a pipe without a reader; a directory to be written
		return nil, &os.PathError{Op: "open", Path: path, Err: ErrInTheWay}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: path, Err: ErrInTheWay}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenAtOnce opens any file for reading, and waits for nothing, as for the writer of a pipe: AwaitReadable does.
func OpenAtOnce(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// AwaitReadable waits until something can be read from a file, or its end, at most for so many milliseconds (-1: without
// a bound). It returns false before that where over is readable or at its end, or the time is.
func AwaitReadable(f, over *os.File, milliseconds int) (ready bool, err error) {
	err = control(f, func(fd int) error {
		return control(over, func(end int) error {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(end), Events: unix.POLLIN}}
			for {
				if _, err := unix.Poll(p, milliseconds); err != unix.EINTR { // at worst it waits for longer
					ready = p[0].Revents != 0 && p[1].Revents == 0
					return err
				}
			}
		})
	})
	return ready, err
}
