package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/npy"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newGetCommand) }

// getResult is what `get --json` prints.
type getResult struct {
	Name     string  `json:"name"`
	Revision uint64  `json:"revision"`
	Tensor   string  `json:"tensor"`
	DType    string  `json:"dtype"`
	Shape    []int64 `json:"shape"`
	Bytes    int64   `json:"bytes"`
	Live     bool    `json:"live"`
	File     string  `json:"file"`
}

type getFlags struct {
	clientFlags
	file   string
	tensor string
	json   bool
}

func newGetCommand(a *app) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get NAME -o FILE.npy",
		Short: "Write a name's tensor to a .npy file",
		Long: `Write the newest revision of a name to a .npy file (-o - for standard output),
byte for byte as numpy.save would. The file appears whole or not at all.

A bundle of one tensor is written as it is; of several, --tensor picks one by its
path (baton show NAME lists them).`,
		GroupID: groupCarry,
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.get(cmd.Context(), &f, args[0])
		},
		ValidArgsFunction: a.completeRows(&f.clientFlags, protocol.ListNames),
	}
	f.add(cmd, "how long to wait for a broker, for the name to be set, and for what other hosts say of it; 0: not at all, and for hosts that share the namespace up to 5s")
	cmd.Flags().StringVarP(&f.file, "output", "o", "", "`file` to write")
	cmd.Flags().StringVar(&f.tensor, "tensor", "", "`path` of the tensor in a bundle")
	cmd.RegisterFlagCompletionFunc("tensor", a.completeTensors(&f.clientFlags))
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (a *app) get(ctx context.Context, f *getFlags, name string) (err error) {
	if err := protocol.CheckName(name); err != nil {
		return &usage{cause: err}
	}
	f.file = a.output(f.file)
	switch strings.ToLower(filepath.Ext(f.file)) {
	case ".npz", ".safetensors":
		return badUsage("-o %s: only .npy files can be written, one tensor each", f.file)
	}
	switch {
	case f.file == "":
		return badUsage("say where to write it: -o FILE.npy, or -o - for standard output")
	case f.file == "-" && f.json:
		return badUsage("--json and -o - both want standard output")
	}
	c, err := a.connect(ctx, &f.clientFlags, f.timeout > 0)
	if err != nil {
		return err
	}
	defer closeClient(c, &err)
	bounded, cancel := f.within(ctx)
	defer cancel()
	b, err := awaitName(bounded, c, name, f.timeout)
	if err != nil {
		return err
	}
	defer b.Release()
	t, err := pick(b, name, f.tensor)
	if err != nil {
		return err
	}
	r := getResult{Name: name, Revision: b.Revision, Tensor: t.Name(), DType: t.DType().String(), Shape: t.Shape(),
		Bytes: t.NumBytes(), Live: b.Live, File: f.file}
	if r.Shape == nil {
		r.Shape = []int64{}
	}
	if f.file == "-" {
		return writeArray(a.out, t)
	}
	if err := writeWhole(ctx, f.file, func(w io.Writer) error { return writeArray(w, t) }); err != nil {
		return err
	}
	if f.json {
		return a.printJSON(r)
	}
	return a.println(fmt.Sprintf("%s: revision %d, %s, %s, written to %s", name, b.Revision,
		describe(r.DType, r.Shape), termtext.Bytes(r.Bytes), f.file))
}

// awaitName gets a name, waiting for it to be set for as long as given.
func awaitName(ctx context.Context, c *client.Client, name string, timeout time.Duration) (*client.Bundle, error) {
	b, err := c.Get(ctx, name, client.WaitForName(timeout))
	if timeout > 0 && errors.Is(err, protocol.ErrNotFound) {
		return nil, protocol.Errorf(protocol.CodeTimeout, "give the call a longer timeout", "name %s was not set within %s", name, timeout)
	}
	return b, err
}

// pick finds the tensor to write.
func pick(b *client.Bundle, name, path string) (*client.Tensor, error) {
	if path != "" {
		if t := b.Tensor(path); t != nil {
			return t, nil
		}
		remedy := "choose one of " + few(b.Names())
		if len(b.Names()) == 1 && b.Names()[0] == "" {
			remedy = "leave --tensor out: it is one tensor, without a path"
		}
		return nil, protocol.Errorf(protocol.CodeNotFound, remedy, "%s has no tensor %s", name, path)
	}
	switch n := len(b.Tensors()); n {
	case 1:
		return b.Tensors()[0], nil
	case 0:
		return nil, protocol.Errorf(protocol.CodeNotFound, "see it with `baton show`", "%s has no tensor", name)
	default:
		return nil, protocol.Errorf(protocol.CodeInvalid, "choose one with --tensor: "+few(b.Names()), "%s is a bundle of %d tensors", name, n)
	}
}

// few lists names, at most as many as fit on a few lines.
func few(names []string) string {
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// writeArray writes a tensor as .npy, from where it lies.
func writeArray(w io.Writer, t *client.Tensor) error {
	if t.Contiguous() {
		data, err := t.Bytes()
		if err != nil {
			return err
		}
		return npy.Write(w, t.DType().String(), t.Shape(), data)
	}
	data, err := spanned(t)
	if err != nil {
		return err
	}
	return npy.WriteStrided(w, t.DType().String(), t.Shape(), t.Strides(), data)
}

// spanned returns the bytes from the first to the last element of a tensor with
// gaps: those of a flat view over them.
func spanned(t *client.Tensor) ([]byte, error) {
	item, whole := t.DType().ItemSize()
	span, err := t.DType().SpanBytes(t.Shape(), t.Strides())
	if err != nil {
		return nil, err
	}
	if !whole || item == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "publish it contiguous", "elements of %s with gaps cannot be written", t.DType())
	}
	flat, err := t.AsStrided([]int64{span / int64(item)}, nil, 0)
	if err != nil {
		return nil, err
	}
	return flat.Bytes()
}

// output is "-" for a path that stands for standard output, such as /dev/stdout: what is said beside the data goes
// elsewhere then.
func (a *app) output(path string) string {
	if out, is := a.out.(*os.File); is && path != "" {
		there, err := os.Stat(path)
		if own, e := out.Stat(); err == nil && e == nil && os.SameFile(there, own) {
			return "-"
		}
	}
	return path
}

// writeWhole writes a file under another name and renames it when it is whole. A symbolic link stays, and its target is
// written. A file that is there already keeps its mode, and its owner where this user may give files away.
// What is there and no regular file (a pipe, a device) is written directly.
func writeWhole(ctx context.Context, path string, write func(io.Writer) error) (err error) {
	buffered := func(f *os.File) error {
		w := bufio.NewWriterSize(f, 1<<20)
		if err := write(w); err != nil {
			f.Close()
			return err
		}
		if err := w.Flush(); err != nil {
			f.Close()
			return err
		}
		return f.Close()
	}
	before, err := os.Stat(path)
	if err == nil && !before.Mode().IsRegular() {
		f, err := openWaiting(ctx, path)
		if err != nil {
			return notWritable(path, err)
		}
		defer context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Now()) })()
		if err := buffered(f); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		return ctx.Err()
	}
	target, err := linked(path)
	if err != nil {
		return notWritable(path, err)
	}
	temporary := filepath.Join(filepath.Dir(target), fmt.Sprintf(".%s.%d.tmp", filepath.Base(target), os.Getpid()))
	mode := fs.FileMode(0o666)
	if before != nil {
		mode = 0o600 // until it has that of the other file
	}
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return notWritable(path, err)
	}
	if before != nil {
		if st, is := before.Sys().(*syscall.Stat_t); is {
			_ = f.Chown(int(st.Uid), int(st.Gid)) // others' files may become this user's, as where a program saves one
		}
		_ = f.Chmod(before.Mode().Perm())
	}
	if err = buffered(f); err == nil {
		err = os.Rename(temporary, target)
	}
	if err != nil {
		os.Remove(temporary)
	}
	return err
}

// linked follows symbolic links from a path to the file that they stand for, which may be missing: a link stays, as
// where a shell writes.
func linked(path string) (target string, err error) {
	for range 40 { // as the kernel follows
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil // no link, or nothing that can be looked at: then it cannot be written either
		}
		if dir, _ := filepath.Split(path); !filepath.IsAbs(to) {
			to = dir + to
		}
		// ".." in it is of where a link to a directory leads.
		dir, name := filepath.Split(to)
		if dir, err = filepath.EvalSymlinks(cmp.Or(dir, ".")); err != nil {
			return "", err
		}
		path = filepath.Join(dir, name)
	}
	return "", syscall.ELOOP
}

// openWaiting opens what is no regular file to write it. The end of ctx ends the wait for a reader of a pipe, and that
// for room in it once that has its deadline.
func openWaiting(ctx context.Context, path string) (*os.File, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
		if !errors.Is(err, syscall.ENXIO) {
			return f, err
		}
		if info, e := os.Stat(path); e != nil || info.Mode()&fs.ModeNamedPipe == 0 {
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// notWritable tells why a file cannot be made, by the name that the user gave.
func notWritable(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return protocol.Errorf(protocol.CodeInvalid, "name a file in a directory that is there and may be written", "cannot write %s: %w", path, err)
}

// describe writes dtype and shape in short: float32[64,8,8].
func describe(dtype string, shape []int64) string {
	parts := make([]string, len(shape))
	for i, n := range shape {
		parts[i] = fmt.Sprint(n)
	}
	return dtype + "[" + strings.Join(parts, ",") + "]"
}
