package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/npy"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newSetCommand) }

// setResult is what `set --json` prints.
type setResult struct {
	Name     string  `json:"name"`
	Revision uint64  `json:"revision"`
	DType    string  `json:"dtype"`
	Shape    []int64 `json:"shape"`
	Bytes    int64   `json:"bytes"`
	Live     bool    `json:"live"`
}

func newSetCommand(a *app) *cobra.Command {
	var f clientFlags
	var live, asJSON bool
	cmd := &cobra.Command{
		Use:   "set NAME FILE.npy",
		Short: "Publish the array of a .npy file under a name",
		Long: `Publish the array of a .npy file (- for standard input) as the next revision of
a name. Programs get it with baton.get(NAME) and follow it with baton.watch(NAME).

A broker is started if this user has none; such a broker ends, and its names with
it, when no program has used it for a minute. Under baton serve a name stays until
baton delete, or until the broker ends: after a restart the next broker has only names
whose memory a living program has mapped. With serve --memory-dir it has all of them.`,
		GroupID: groupCarry,
		Args:    takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.set(cmd.Context(), &f, args[0], args[1], live, asJSON, cmd.Flags().Changed("timeout"))
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return []string{"npy"}, cobra.ShellCompDirectiveFilterFileExt
			}
			return a.completeRows(&f, protocol.ListNames)(cmd, args, begun)
		},
	}
	f.add(cmd, "how long to wait for a broker named by address and for memory, and, if it is given, each time for more of the input")
	cmd.Flags().Lookup("timeout").DefValue = "30s"
	f.timeout = 30 * time.Second
	cmd.Flags().BoolVar(&live, "live", false, "a live name: one array that every holder may write in place")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) set(ctx context.Context, f *clientFlags, name, path string, live, asJSON, timed bool) (err error) {
	if err := protocol.CheckName(name); err != nil {
		return &usage{cause: err}
	}
	most := time.Duration(0) // what a program writes there may take its time
	if timed {
		most = f.timeout
	}
	source, header, err := a.openArray(ctx, path, most)
	if err != nil {
		return err
	}
	defer source.Close()
	c, err := a.connect(ctx, f, true)
	if err != nil {
		return nothingDone(err)
	}
	defer closeClient(c, &err)

	t, err := load(ctx, c, source, header)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer t.Release()
	var opts []client.SetOption
	if live {
		opts = append(opts, client.Live())
	}
	bounded, cancel := f.within(ctx)
	defer cancel()
	revision, err := c.Set(bounded, name, t, opts...)
	if err != nil {
		return maybeDone(err, "baton show name "+name)
	}
	r := setResult{Name: name, Revision: revision, DType: header.DType, Shape: header.Shape, Bytes: header.NBytes(), Live: live}
	if asJSON {
		return a.printJSON(r)
	}
	return a.println(fmt.Sprintf("%s: revision %d, %s, %s", name, revision, describe(r.DType, r.Shape), termtext.Bytes(r.Bytes)))
}

// openArray opens a .npy file and reads its header. A file that ends before its
// data does is refused before memory is taken for it.
func (a *app) openArray(ctx context.Context, path string, most time.Duration) (io.ReadCloser, npy.Header, error) {
	source, size, err := a.openInput(ctx, path, most)
	if err != nil {
		return nil, npy.Header{}, err
	}
	h, err := npy.ReadHeader(source)
	if err == nil && size >= 0 && size-h.DataOffset < h.NBytes() {
		err = npy.Truncated("data", size-h.DataOffset, h.NBytes())
	}
	if err != nil {
		source.Close()
		return nil, h, fmt.Errorf("%s: %w", path, err)
	}
	return source, h, nil
}

// notFoundFile gives a missing file the exit status of what was not found.
func notFoundFile(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return protocol.Errorf(protocol.CodeNotFound, "check the path", "%w", err)
	}
	return err
}

// load reads an array into shared memory, as it lies in the file.
func load(ctx context.Context, c *client.Client, source io.Reader, h npy.Header) (*client.Tensor, error) {
	dtype, err := dlpack.ParseDType(h.DType)
	if err != nil {
		return nil, err
	}
	t, err := c.Alloc(ctx, dtype, h.Shape)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*client.Tensor, error) {
		t.Release()
		return nil, err
	}
	data, err := t.Bytes()
	if err != nil {
		return fail(err)
	}
	if err := npy.ReadFull(source, data); err != nil {
		return fail(err)
	}
	if !h.FortranOrder {
		return t, nil
	}
	// The view is lent by t, so a holder of its own lets t go.
	view, err := t.AsStrided(h.Shape, h.Strides(), 0)
	if err != nil {
		return fail(err)
	}
	defer t.Release()
	return view.Retain(), nil
}
