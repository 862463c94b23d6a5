package client_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// What was released may be another tensor's by then: its bytes are not copied.
func TestCompactRefusesWhatItCannotCopy(t *testing.T) {
	ctx, c, _ := pair(t)
	x, kept := tensor(t, c, 42), tensor(t, c, 1)
	b := client.NewBundle(map[string]*client.Tensor{"kept": kept, "x": x})
	x.Release()
	other := tensor(t, c, 99)
	_, err := c.Compact(ctx, b)
	require.ErrorIs(t, err, protocol.ErrClosed)
	_, err = c.Compact(ctx, client.NewBundle(map[string]*client.Tensor{"x": x.AsReadOnly()}))
	require.ErrorIs(t, err, protocol.ErrClosed)
	got, err := c.AllocBundle(ctx, client.Spec{Name: "y", DType: dlpack.Float32, Shape: []int64{1}})
	require.NoError(t, err)
	got.Release()
	_, err = c.Compact(ctx, got)
	require.ErrorIs(t, err, protocol.ErrClosed)
	require.ErrorIs(t, x.Written(ctx), protocol.ErrClosed)

	_, err = c.Compact(ctx, nil)
	require.ErrorIs(t, err, protocol.ErrInvalid)
	_, err = c.Compact(ctx, client.NewBundle(map[string]*client.Tensor{"none": nil}))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.ErrorContains(t, err, `"none"`)
	_, err = c.Compact(ctx, client.NewBundle(map[string]*client.Tensor{"zero": {}}))
	require.ErrorIs(t, err, protocol.ErrClosed)
	other.Release()
	kept.Release()
	nothingLives(t, c)
}

func TestNoErrorHasNoKind(t *testing.T) {
	require.NoError(t, client.OfKind("test.None", nil))
	ctx, c, p := pair(t)
	handle(t, p, "f", func(context.Context, struct{}) (int, error) { return 1, client.OfKind("test.None", nil) })
	n, err := client.Call[int](ctx, c, "f")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestZeroValuesAreClosed(t *testing.T) {
	var q client.Queue
	_, err := q.Get(t.Context())
	require.ErrorIs(t, err, protocol.ErrClosed)
	_, err = q.TryGet(t.Context())
	require.ErrorIs(t, err, protocol.ErrClosed)
	require.ErrorIs(t, q.Put(t.Context(), 1), protocol.ErrClosed)
	require.NoError(t, q.Close())

	var x client.Tensor
	_, err = x.Bytes()
	require.ErrorIs(t, err, protocol.ErrClosed)
	_, err = client.Slice[float32](&x)
	require.ErrorIs(t, err, protocol.ErrClosed)
	_, err = x.ToDLPack()
	require.ErrorIs(t, err, protocol.ErrClosed)
	_, err = x.Handle(t.Context())
	require.ErrorIs(t, err, protocol.ErrClosed)
	require.NotEmpty(t, x.String())
}

// refuses looks for a refusal that names what is wrong.
func refuses(t *testing.T, err error, says string) {
	t.Helper()
	var e *protocol.Error
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.True(t, errors.As(err, &e), err)
	require.Contains(t, e.Message+" "+e.Remedy, says)
}

func TestRefusalsNameWhatIsWrong(t *testing.T) {
	ctx, c, p := pair(t)
	refuses(t, client.RegisterError("test.Nil", nil), "give a function")

	x := tensor(t, c, 1)
	defer x.Release()
	_, err := x.Handle(ctx, client.LeaseFor(0))
	refuses(t, err, "LeaseSession")
	_, err = x.Handle(ctx, client.LeaseFor(-1))
	refuses(t, err, "LeaseSession")

	for _, reply := range []any{5, map[string]any{}, (*int)(nil)} {
		refuses(t, c.Broker(ctx, "status", nil, reply), "pointer")
	}
	require.NoError(t, c.Broker(ctx, "status", nil, nil))

	_, err = client.Handle[int, int](p, "nil", nil)
	refuses(t, err, "nil is nil")
	_, err = client.HandleStream[int, int](p, "nil", nil)
	refuses(t, err, "nil is nil")
	handle(t, p, "takes", func(context.Context, *client.Function) (int, error) { return 1, nil })
	_, err = client.Call[int](ctx, c, "takes", client.Func[int, int](nil))
	refuses(t, err, "client.Func is nil")

	_, err = client.Handle(p, "f", func(context.Context, chan int) (int, error) { return 1, nil })
	refuses(t, err, "the parameter x: a value of the Go type chan int")
	_, err = client.Handle(p, "f", func(context.Context, struct{ To []chan int }) (int, error) { return 1, nil })
	refuses(t, err, "field To of")
	_, err = client.Handle(p, "f", func(context.Context, struct{ To func() }) (int, error) { return 1, nil })
	refuses(t, err, "client.Func")
	_, err = client.Handle(p, "f", func(context.Context, int) (map[string]*chan int, error) { return nil, nil })
	refuses(t, err, "the result: a value of the Go type map[string]*chan int")
	_, err = client.HandleStream(p, "f", func(context.Context, int, func(complex128) error) error { return nil })
	refuses(t, err, "the result: a value of the Go type complex128")
	_, err = client.HandleMethods(p, "g", hasChan{})
	refuses(t, err, "the result: a value of the Go type chan int")
	handle(t, p, "own", func(_ context.Context, in nested) (nested, error) { return in, nil })
	v, err := client.Call[nested](ctx, c, "own", nested{nested{}})
	require.NoError(t, err)
	require.Equal(t, nested{nested{}}, v)
}

// nested is a type that is made of itself.
type nested []nested

type hasChan struct{}

func (hasChan) Give(context.Context, int) (chan int, error) { return nil, nil }

func TestNamesOfSessionsArePrintable(t *testing.T) {
	address := newBroker(t)
	for _, name := range []string{"", "\xff\x00\n", "a\nb", "a\x7f", "a\u0085b", "a\xffb"} {
		_, err := client.Connect(t.Context(), client.WithAddress(address), client.WithName(name))
		require.ErrorIs(t, err, protocol.ErrInvalid, "%q", name)
	}
	c, err := client.Connect(t.Context(), client.WithAddress(address), client.WithName("Näme 1"))
	require.NoError(t, err)
	require.NoError(t, c.Close())
}
