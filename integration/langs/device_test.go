package langs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/integration/cuda/standin"
	"github.com/baton-ipc/baton/internal/testkit"
)

// onGPU does what it is told with tensors on a GPU: "send" to the topic t, "put"
// into the queue q, "take" out of it; "value" sends one that every driver can check.
func onGPU(p *testkit.Child) error {
	gpus, err := cudaipc.Open()
	if err != nil {
		return err
	}
	c, err := p.Connect(client.WithDevices(gpus))
	if err != nil {
		return err
	}
	d := &goDriver{c, map[string]*client.Topic{}, map[string]*client.Queue{}, map[string]*client.Reader{}, nil}
	gpu := gpus.Devices()[0]
	for {
		var what string
		if p.Hear(&what) != nil {
			return c.Close()
		}
		o := &order{Topic: "t", Queue: "q", Count: 1, Words: 100, Seed: 5, Redeliver: true}
		switch what {
		case "value":
			_, err = d.carryOut(p.Context(), &order{Do: "send", Topic: "t", Count: 1, Words: 100, Seed: 5})
		case "send", "put":
			err = d.sendFilled(p, gpu, o, what)
		case "take":
			err = d.takeFilled(p, gpu, o)
		}
		if err != nil {
			return err
		}
		if err := p.Say("done"); err != nil {
			return err
		}
	}
}

const filling = 0x5a

func (d *goDriver) sendFilled(p *testkit.Child, gpu *cudaipc.Device, o *order, what string) error {
	x, err := d.c.Alloc(p.Context(), dlpack.Uint8, []int64{5000}, client.Device("cuda:0"))
	if err != nil {
		return err
	}
	defer x.Release()
	at, err := x.Pointer()
	if err != nil {
		return err
	}
	if err := gpu.Fill(at, filling, 5000, cudaipc.LegacyStream); err != nil {
		return err
	}
	if what == "put" {
		q, err := d.queue(p.Context(), o)
		if err != nil {
			return err
		}
		return q.Put(p.Context(), x)
	}
	t, err := d.topic(p.Context(), o)
	if err != nil {
		return err
	}
	return t.Send(p.Context(), x)
}

func (d *goDriver) takeFilled(p *testkit.Child, gpu *cudaipc.Device, o *order) error {
	q, err := d.queue(p.Context(), o)
	if err != nil {
		return err
	}
	m, err := q.Get(p.Context())
	if err != nil {
		return err
	}
	defer m.Release()
	x := m.Tensor()
	at, err := x.Pointer()
	if err != nil {
		return err
	}
	if err := x.UseOn(client.LegacyStream); err != nil {
		return err
	}
	got := make([]byte, 5000)
	if err := gpu.CopyOut(got, at, cudaipc.LegacyStream); err != nil {
		return err
	}
	for _, b := range got {
		if b != filling {
			return errors.New("another tensor than was put")
		}
	}
	return nil
}

// lacking are the codes of a session without a driver, or with one that does not see the GPU.
var lacking = []string{"Unsupported", "NotFound"}

// A session without a GPU gets the protocol's code for that, and nothing is lost: a topic's
// reader goes on, a queue's item stays for a taker that can have it.
func TestTensorOnAGPUIsLeftToWhoCanHaveIt(t *testing.T) {
	gpus := standin.New(t, 1)
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			has := b.Start("gpu", nil, gpus.On())
			tell := func(what string) {
				has.Tell(what)
				has.Next(new(string))
			}
			not := start(t, b, l)
			not.do(command{"do": "read", "topic": "t"})
			tell("send")
			tell("value")
			refused := not.try(command{"do": "receive", "topic": "t"})
			assert.Contains(t, lacking, refused.Code, "%s", refused.Message+refused.Broken)
			assert.Contains(t, refused.Message, "GPU")
			require.Equal(t, uint64(5), not.do(command{"do": "receive", "topic": "t"}).Seed)

			tell("put")
			q := command{"do": "take", "queue": "q", "redeliver": true, "timeout_ms": 60000}
			for range 2 { // it stays, however often it is tried
				refused = not.try(q)
				assert.Contains(t, lacking, refused.Code, "%s", refused.Message+refused.Broken)
			}
			tell("take")
			assert.Equal(t, "Empty", not.try(command{"do": "take", "queue": "q", "redeliver": true, "timeout_ms": 1}).Code)
			not.do(command{"do": "forget"})
			not.Done()
			has.Done()
			testkit.AuditEmpty(t, b)
		})
	}
}
