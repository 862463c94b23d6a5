package client_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/stretchr/testify/require"
)

// What docs/functions.md shows of Go stands here as it stands there, and runs. "…" there is anything here.
func TestPageOfFunctions(t *testing.T) {
	page, err := os.ReadFile("../docs/functions.md")
	require.NoError(t, err)
	source, err := os.ReadFile("page_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 6)
	flat := func(text string) string { return regexp.MustCompile(`\s+`).ReplaceAllString(text, " ") }
	for _, b := range blocks {
		shown := regexp.QuoteMeta(strings.TrimSpace(flat(b[1])))
		require.Regexp(t, strings.ReplaceAll(shown, "…", ".*?"), flat(string(source)))
	}

	t.Setenv("BATON_ADDRESS", newBroker(t))
	require.NoError(t, pageCalls(t, limited(t)))
}

func pageCalls(t *testing.T, ctx context.Context) error {
	type Normalize struct {
		Image *client.Tensor
		Mean  float64 `baton:"mean,default=0.5"`
	}

	c, err := client.Connect(ctx)
	if err != nil {
		return err
	}
	r, err := client.Handle(c, "vision/normalize", func(ctx context.Context, in Normalize) (*client.Tensor, error) {
		x, err := client.Slice[float32](in.Image)
		for i := range x {
			x[i] -= float32(in.Mean)
		}
		return in.Image, err
	}, client.Concurrency(4), client.Doc("Subtracts the mean."))
	if err != nil {
		return err
	}
	defer r.Close(ctx)
	x := tensor(t, c, 1, 2)
	defer x.Release()

	y, err := client.Call[*client.Tensor](ctx, c, "vision/normalize", x, client.Arg("mean", 0.25))
	if err != nil {
		return err
	}
	defer y.Release()

	f, err := c.Function(ctx, "vision/normalize", client.Wait(5*time.Second))
	if err != nil {
		return err
	}
	fmt.Println(f.Signature()) // (image: tensor, mean: float = 0.5) -> tensor
	v, err := f.Call(ctx, x)   // whatever it returns
	require.NoError(t, err)
	require.Equal(t, "(image: tensor, mean: float = 0.5) -> tensor", f.Signature())
	require.Equal(t, []float32{0.25, 1.25}, values(t, v.(*client.Tensor)))
	v.(*client.Tensor).Release()

	require.NoError(t, pageStreams(ctx, c, x))
	return pageTrains(t, ctx, c, x)
}

// Frames is what the page's stream takes.
type Frames struct{ Rate int64 }

func pageStreams(ctx context.Context, c *client.Client, x *client.Tensor) error {
	camera := fakeCamera{x}
	shown := 0
	show := func(frame *client.Tensor) { shown += len(frame.Shape()) }
	client.HandleStream(c, "camera/frames", func(ctx context.Context, in Frames, send func(*client.Tensor) error) error {
		for frame := range camera.Frames(in.Rate) {
			if err := send(frame); err != nil {
				return err // nothing more is wanted
			}
		}
		return nil
	})
	for frame, err := range client.Parts[*client.Tensor](ctx, c, "camera/frames", client.Arg("rate", 30)) {
		if err != nil {
			return err
		}
		show(frame)
		frame.Release()
	}
	if shown != 30 {
		return fmt.Errorf("%d frames were shown", shown)
	}
	return nil
}

type fakeCamera struct{ x *client.Tensor }

// Frames gives a tensor so often.
func (f fakeCamera) Frames(rate int64) func(yield func(*client.Tensor) bool) {
	return func(yield func(*client.Tensor) bool) {
		for range rate {
			if !yield(f.x.Retain()) {
				return
			}
		}
	}
}

func pageTrains(t *testing.T, ctx context.Context, c *client.Client, data *client.Tensor) error {
	steps := 0
	type Train struct {
		Data   *client.Tensor
		OnStep *client.Function `baton:"on_step"`
	}

	client.Handle(c, "train", func(ctx context.Context, in Train) (float64, error) {
		loss := 0.4
	again:
		goOn, err := client.CallOf[bool](ctx, in.OnStep, loss)
		if steps++; goOn && err == nil {
			loss /= 2
			goto again
		}
		return loss, err
	})
	loss, err := client.Call[float64](ctx, c, "train", data, client.Arg("on_step", client.Func(
		func(ctx context.Context, loss float64) (bool, error) { return loss > 0.1, nil })))
	require.Equal(t, []any{0.1, 3}, []any{loss, steps})
	return err
}
