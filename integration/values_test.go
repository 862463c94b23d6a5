package integration

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// inspect is a role that receives one message of the topic "values" and runs the
// check that the test names on it, so that what arrives is looked at in another
// process.
var checks = map[string]func(m *client.Message) error{}

func init() {
	roles["inspect"] = func(p *testkit.Child) error {
		var name string
		if err := p.Config(&name); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		topic, err := c.Topic(p.Context(), "values")
		if err != nil {
			return err
		}
		r, err := topic.Reader(p.Context())
		if err != nil {
			return err
		}
		if err := p.Say("joined"); err != nil {
			return err
		}
		m, err := r.Receive(p.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		defer m.Release()
		return checks[name](m)
	}
}

// sendTo sends a value to a child that inspects it.
func sendTo(t *testing.T, b *testkit.Broker, c *client.Client, check string, v any, opts ...client.SendOption) {
	t.Helper()
	ctx := testkit.Context(t)
	p := b.Start("inspect", check)
	p.Next(new(string))
	topic, err := c.Topic(ctx, "values")
	require.NoError(t, err)
	require.NoError(t, topic.Send(ctx, v, opts...))
	p.Ended()
	require.NoError(t, topic.Close())
}

const manyTensors = 300

// A bundle whose tensors each have a storage of their own, with a long meta,
// does not fit in a slot: refs and description travel in a storage.
func TestBundleOfManyStoragesArrivesWhole(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	tensors := map[string]*client.Tensor{}
	for i := range manyTensors {
		x, err := filled(ctx, c, 10+i, uint64(i))
		require.NoError(t, err)
		tensors[fmt.Sprintf("layer%03d/weight", i)] = x
	}
	sendTo(t, b, c, "many", tensors, client.Meta(map[string]any{"long": strings.Repeat("x", 50_000)}))
	for _, x := range tensors {
		x.Release()
	}
	testkit.Audit(t, b)
}

func init() {
	checks["many"] = func(m *client.Message) error {
		bundle, err := m.Bundle()
		if err != nil {
			return err
		}
		if len(bundle.Tensors()) != manyTensors {
			return fmt.Errorf("%d tensors came", len(bundle.Tensors()))
		}
		for i := range manyTensors {
			x := bundle.Tensor(fmt.Sprintf("layer%03d/weight", i))
			if x == nil {
				return fmt.Errorf("tensor %d is missing", i)
			}
			words, err := client.Slice[uint64](x)
			if err != nil {
				return err
			}
			if len(words) != 10+i {
				return fmt.Errorf("tensor %d has %d words", i, len(words))
			}
			if err := verify(words, uint64(i)); err != nil {
				return err
			}
		}
		var meta struct{ Long string }
		if err := m.Meta(&meta); err != nil {
			return err
		}
		if len(meta.Long) != 50_000 {
			return fmt.Errorf("a meta of %d bytes came", len(meta.Long))
		}
		return nil
	}
}

func TestTensorsWithoutElementsTravelWithoutMemory(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	empty, err := c.Alloc(ctx, dlpack.Float32, []int64{0, 7})
	require.NoError(t, err)
	scalar, err := c.Alloc(ctx, dlpack.Float64, nil)
	require.NoError(t, err)
	s, err := client.Slice[float64](scalar)
	require.NoError(t, err)
	s[0] = math.Pi
	sendTo(t, b, c, "empty", map[string]*client.Tensor{"empty": empty, "scalar": scalar})
	empty.Release()
	scalar.Release()
}

func init() {
	checks["empty"] = func(m *client.Message) error {
		b, err := m.Bundle()
		if err != nil {
			return err
		}
		empty, scalar := b.Tensor("empty"), b.Tensor("scalar")
		if fmt.Sprint(empty.Shape()) != "[0 7]" || empty.NumBytes() != 0 || empty.DType() != dlpack.Float32 {
			return fmt.Errorf("the empty tensor came as %v", empty)
		}
		s, err := client.Slice[float64](scalar)
		if err != nil {
			return err
		}
		if len(scalar.Shape()) != 0 || len(s) != 1 || s[0] != math.Pi {
			return fmt.Errorf("the scalar came as %v", scalar)
		}
		return nil
	}
}

func TestStridedViewsArriveAsTheyWereSent(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	x, err := c.Alloc(ctx, dlpack.Int32, []int64{4, 6})
	require.NoError(t, err)
	s, err := client.Slice[int32](x)
	require.NoError(t, err)
	for i := range s {
		s[i] = int32(i)
	}
	turned, err := x.Transpose(0, 1)
	require.NoError(t, err)
	part, err := x.Slice(1, 2, 5)
	require.NoError(t, err)
	rows, err := x.Slice(0, 1, 3)
	require.NoError(t, err)
	same, err := x.AsStrided([]int64{3, 2}, []int64{0, 1}, 5)
	require.NoError(t, err)
	sendTo(t, b, c, "strided", map[string]*client.Tensor{"turned": turned, "part": part, "rows": rows, "same": same})
	x.Release()
	testkit.Audit(t, b)
}

// elements lists a view's elements in order, by its strides over its storage.
func elements(x *client.Tensor) ([]int32, error) {
	strides := x.Strides()
	if strides == nil {
		var err error
		if strides, err = dlpack.CompactStrides(x.Shape()); err != nil {
			return nil, err
		}
	}
	var out []int32
	var walk func(axis int, at int64) error
	walk = func(axis int, at int64) error {
		if axis == len(x.Shape()) {
			one, err := x.AsStrided([]int64{1}, nil, at)
			if err != nil {
				return err
			}
			v, err := client.Slice[int32](one)
			if err != nil {
				return err
			}
			out = append(out, v[0])
			return nil
		}
		for i := range x.Shape()[axis] {
			if err := walk(axis+1, at+i*strides[axis]); err != nil {
				return err
			}
		}
		return nil
	}
	return out, walk(0, 0)
}

func init() {
	checks["strided"] = func(m *client.Message) error {
		b, err := m.Bundle()
		if err != nil {
			return err
		}
		for name, want := range map[string]string{
			"turned": "[0 6 12 18 1 7 13 19 2 8 14 20 3 9 15 21 4 10 16 22 5 11 17 23]",
			"part":   "[2 3 4 8 9 10 14 15 16 20 21 22]",
			"rows":   "[6 7 8 9 10 11 12 13 14 15 16 17]",
			"same":   "[5 6 5 6 5 6]",
		} {
			got, err := elements(b.Tensor(name))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if fmt.Sprint(got) != want {
				return fmt.Errorf("%s is %v", name, got)
			}
		}
		if _, err := b.Tensor("part").Bytes(); !errors.Is(err, protocol.ErrInvalid) {
			return fmt.Errorf("the bytes of a strided view: %v", err)
		}
		return nil
	}
}

func TestNestedValuesKeepTheirStructure(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	x, err := filled(ctx, c, 8, 1)
	require.NoError(t, err)
	y, err := filled(ctx, c, 8, 2)
	require.NoError(t, err)
	sendTo(t, b, c, "nested", map[string]any{
		"step": 41, "rate": 0.5, "nan": math.NaN(), "name": "a/b~c", "none": nil, "raw": []byte{0, 1, 2},
		"layers": []any{map[string]any{"w": x, "b": y}, "bias", true, int64(1) << 60},
	})
	x.Release()
	y.Release()
}

func init() {
	checks["nested"] = func(m *client.Message) error {
		v, err := m.Value()
		if err != nil {
			return err
		}
		top := v.(map[string]any)
		layers := top["layers"].([]any)
		for name, seed := range map[string]uint64{"w": 1, "b": 2} {
			words, err := client.Slice[uint64](layers[0].(map[string]any)[name].(*client.Tensor))
			if err != nil {
				return err
			}
			if err := verify(words, seed); err != nil {
				return err
			}
		}
		if !math.IsNaN(top["nan"].(float64)) {
			return fmt.Errorf("not a number came as %v", top["nan"])
		}
		delete(top, "nan")
		layers[0] = nil
		want := `map[layers:[<nil> bias true 1152921504606846976] name:a/b~c none:<nil> rate:0.5 raw:[0 1 2] step:41]`
		if got := fmt.Sprint(top); got != want {
			return fmt.Errorf("the value came as %s", got)
		}
		return nil
	}
}

// Messages of a topic arrive read-only; items of a queue may be written.
func TestWhoMayWriteDependsOnHowItCame(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	x, err := filled(ctx, c, 8, 1)
	require.NoError(t, err)
	sendTo(t, b, c, "readonly", x)
	q, err := c.Queue(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, q.Put(ctx, map[string]*client.Tensor{"mine": x, "theirs": x.AsReadOnly()}))
	m, err := b.Connect().Queue(ctx, "q")
	require.NoError(t, err)
	item, err := m.Get(ctx)
	require.NoError(t, err)
	bundle, err := item.Bundle()
	require.NoError(t, err)
	require.False(t, bundle.Tensor("mine").ReadOnly())
	require.True(t, bundle.Tensor("theirs").ReadOnly())
	item.Release()
	x.Release()
}

func init() {
	checks["readonly"] = func(m *client.Message) error {
		if !m.Tensor().ReadOnly() {
			return errors.New("a topic's message came writable")
		}
		if m.Tensor().AsReadOnly() == nil || !m.Tensor().Retain().ReadOnly() {
			return errors.New("a view of it is writable")
		}
		return nil
	}
}

// Passing on what was received is a send like any other: the sender in the
// middle may die, and the tensor's maker too.
func TestReceivedTensorIsPassedOn(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	relay := b.Start("relay", nil)
	relay.Next(new(string))
	maker := ready(b, sendConfig{channel: channel{Topic: "in"}, From: "maker", Count: 3, Words: 4096})
	out, err := c.Queue(ctx, "out")
	require.NoError(t, err)
	maker.Tell("go")
	for id := range 3 {
		m, err := out.Get(ctx)
		require.NoError(t, err)
		k, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, note{"maker", id, seedOf("maker", id)}, k)
		if id == 0 {
			maker.Next(new(int))
			maker.Ended()
			relay.Kill()
			testkit.Audit(t, b)
			_, err = verifyMessage(m)
			require.NoError(t, err)
		}
		m.Release()
		if id == 0 {
			n, err := out.Len(ctx)
			require.NoError(t, err)
			if n < 2 { // killed before it had passed all on
				break
			}
		}
	}
	require.NoError(t, out.Close())
}

func init() {
	roles["relay"] = func(p *testkit.Child) error {
		c, err := p.Connect()
		if err != nil {
			return err
		}
		in, err := c.Topic(p.Context(), "in")
		if err != nil {
			return err
		}
		out, err := c.Queue(p.Context(), "out")
		if err != nil {
			return err
		}
		r, err := in.Reader(p.Context())
		if err != nil {
			return err
		}
		if err := p.Say("joined"); err != nil {
			return err
		}
		for {
			m, err := r.Receive(p.Context())
			if err != nil {
				return err
			}
			b, err := m.Bundle()
			if err != nil {
				return err
			}
			if err := out.Put(p.Context(), b, client.Meta(m.RawMeta())); err != nil {
				return err
			}
			m.Release()
		}
	}
}
