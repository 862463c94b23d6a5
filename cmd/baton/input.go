package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// input reads what may keep its reader waiting, such as a pipe or a terminal. The end of its context ends the wait, and
// so does a time in which nothing comes.
type input struct {
	ctx  context.Context
	name string
	file *os.File
	most time.Duration // that it waits for more; 0: no bound
	// over is at its end once ctx has ended.
	over *os.File
	stop func()
}

// openInput opens what a command reads: a file, or - for standard input. size is -1 where it is not known.
func (a *app) openInput(ctx context.Context, path string, most time.Duration) (source io.ReadCloser, size int64, err error) {
	file, own := a.in, path != "-"
	if own {
		f, err := sys.OpenAtOnce(path)
		if err != nil {
			return nil, -1, notFoundFile(err)
		}
		file = f
	}
	f, is := file.(*os.File)
	if !is {
		return io.NopCloser(file), -1, nil
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && own {
		return f, info.Size(), nil
	}
	if err == nil && info.IsDir() && own {
		f.Close()
		return nil, -1, protocol.Errorf(protocol.CodeInvalid, "name a .npy file, or - for standard input", "%s is a directory", path)
	}
	in := &input{ctx: ctx, name: path, file: f, most: most}
	if !own {
		in.name = "standard input"
	}
	over, end, err := os.Pipe()
	if err != nil {
		if own {
			f.Close()
		}
		return nil, -1, fmt.Errorf("read %s: %w", in.name, err)
	}
	unwatch := context.AfterFunc(ctx, func() { end.Close() })
	in.over = over
	in.stop = func() {
		if unwatch() {
			end.Close()
		}
		over.Close()
		if own {
			f.Close()
		}
	}
	return in, -1, nil
}

func (in *input) Read(p []byte) (int, error) {
	milliseconds := -1
	if in.most > 0 {
		milliseconds = int(min((in.most+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
	}
	ready, err := sys.AwaitReadable(in.file, in.over, milliseconds)
	switch {
	case err != nil:
		return 0, fmt.Errorf("wait for %s: %w", in.name, err)
	case ready:
		return in.file.Read(p)
	case errors.Is(in.ctx.Err(), context.Canceled):
		return 0, in.ctx.Err()
	}
	return 0, protocol.Errorf(protocol.CodeTimeout, "see what is to write there, or give it longer (--timeout)", "nothing came from %s in time", in.name)
}

// Close ends no read that is under way.
func (in *input) Close() error {
	in.stop()
	return nil
}
