package cuda

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// couples runs a test for every pair of languages, of which one process lends to the other.
func couples(t *testing.T, f func(t *testing.T, m machine, owner, borrower *speaker)) {
	for _, from := range languages {
		for _, to := range languages {
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				from.with(t)
				to.with(t)
				m := start(t, 1)
				f(t, m, m.speak(t, from), m.speak(t, to))
			})
		}
	}
}

// lenders runs a test for every pair of languages, in which one process has lent three
// tensors of memory that another library allocated to the other.
func lenders(t *testing.T, f func(t *testing.T, m machine, owner, borrower *speaker)) {
	couples(t, func(t *testing.T, m machine, owner, borrower *speaker) {
		owner.do(command{"do": "lend", "queue": "q", "bytes": 300_000, "seed": 3, "count": 3})
		assert.Equal(t, numbers(3, 3), borrower.do(command{"do": "take", "queue": "q", "count": 3, "hold": true}))
		f(t, m, owner, borrower)
	})
}

// To free what a borrower has open is undefined; the driver's stand-in ends a process that does.
func TestOwnerFreesWhatNobodyBorrowsAnyMore(t *testing.T) {
	lenders(t, func(t *testing.T, m machine, owner, borrower *speaker) {
		owner.Tell(command{"do": "free"})
		assert.Equal(t, numbers(3, 3), borrower.do(command{"do": "held"}))
		borrower.do(command{"do": "release"})
		var a answer
		owner.Next(&a)
		assert.Empty(t, a.Message+a.Broken)
		owner.Done()
		borrower.Done()
		m.empty(t)
	})
}

func TestBorrowerIsKilled(t *testing.T) {
	lenders(t, func(t *testing.T, m machine, owner, borrower *speaker) {
		borrower.Kill()
		owner.do(command{"do": "free"})
		owner.Done()
		m.empty(t)
	})
}

// ownerIsKilled ends the owner: what the borrower holds is Expired then, and leaves nothing.
func ownerIsKilled(t *testing.T, m machine, owner, borrower *speaker) {
	t.Helper()
	owner.Kill()
	testkit.Gone(t, m.Broker, owner.PID())
	assert.Equal(t, "Expired", borrower.try(command{"do": "held"}).Code)
	borrower.do(command{"do": "release"})
	borrower.Done()
	m.empty(t)
}

func TestOwnerOfBorrowedMemoryIsKilled(t *testing.T) { lenders(t, ownerIsKilled) }

func TestBorrowedMemoryOutlivesTheBroker(t *testing.T) {
	lenders(t, func(t *testing.T, m machine, owner, borrower *speaker) {
		m.Kill()
		m.Restart()
		assert.Equal(t, numbers(3, 3), borrower.do(command{"do": "held"}))
		owner.do(command{"do": "lend", "queue": "q", "seed": 9})
		assert.Equal(t, numbers(9, 1), borrower.do(command{"do": "take", "queue": "q"}))
		ownerIsKilled(t, m, owner, borrower)
	})
}

// GPUs are found by UUID for lent memory too.
func TestLentMemoryIsOnTheSameGPUUnderOtherNumbers(t *testing.T) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			l.with(t)
			languages[1].with(t)
			m := start(t, 2)
			sees := func(numbers string) testkit.StartOption { return testkit.Env("CUDA_VISIBLE_DEVICES", numbers) }
			owner, blind, both := m.speak(t, l, sees("1")), m.speak(t, l, sees("0")), m.speak(t, languages[1])
			owner.do(command{"do": "lend", "queue": "q", "seed": 3})
			a := blind.try(command{"do": "take", "queue": "q"})
			assert.Equal(t, "NotFound", a.Code, "%s", a.Message+a.Broken)
			assert.Contains(t, a.Message, "CUDA_VISIBLE_DEVICES")
			assert.Equal(t, numbers(3, 1), both.do(command{"do": "take", "queue": "q"}), "it was left for a taker that sees the GPU")
			blind.Done()
			both.Done()
			owner.do(command{"do": "free"})
			owner.Done()
			m.empty(t)
		})
	}
}

func init() {
	roles["lend to oneself"] = on(lendToOneself)
	roles["lend what cannot be"] = on(lendWhatCannotBe)
}

func lendWhatCannotBe(w *worker) error {
	slab, err := w.alloc(4096)
	if err != nil {
		return err
	}
	at, err := slab.Pointer()
	if err != nil {
		return err
	}
	own, err := w.gpu.Malloc(4096)
	if err != nil {
		return err
	}
	gpu := dlpack.Device{Type: dlpack.CUDA}
	for what, v := range map[string]struct {
		dlpack.View
		want error
	}{
		"virtual memory":                    {dlpack.View{Device: gpu, Shape: []int64{4096}, Data: uintptr(at)}, protocol.ErrUnsupported},
		"memory of the machine":             {dlpack.View{Device: dlpack.CPUDevice, Shape: []int64{4096}, Data: 4096}, protocol.ErrUnsupported},
		"nothing":                           {dlpack.View{Device: gpu, Shape: []int64{0}, Data: uintptr(own)}, protocol.ErrInvalid},
		"more than there is":                {dlpack.View{Device: gpu, Shape: []int64{1 << 40}, Data: uintptr(own)}, protocol.ErrInvalid},
		"a GPU that is not here":            {dlpack.View{Device: dlpack.Device{Type: dlpack.CUDA, ID: 99}, Shape: []int64{1}, Data: uintptr(own)}, protocol.ErrNotFound},
		"an address that was not allocated": {dlpack.View{Device: gpu, Shape: []int64{1}, Data: 12345}, protocol.ErrInvalid},
	} {
		v.DType = dlpack.Uint8
		if t, err := w.c.Lend(w.ctx, v.View, func() { panic("it was never lent") }); !errors.Is(err, v.want) {
			return fmt.Errorf("%s: %v: %w", what, t, err)
		}
	}
	slab.Release()
	return w.gpu.Free(own)
}

func TestWhatTheDriverCannotLendIsRefused(t *testing.T) {
	m := start(t, 1)
	m.play("lend what cannot be", nil).Ended()
	m.empty(t)
}

// lendToOneself lends memory to another client of the same process, which the driver
// would refuse to open it.
func lendToOneself(w *worker) error {
	other, err := w.Connect(client.WithDevices(w.driver))
	if err != nil {
		return err
	}
	d := &driver{worker: w, queues: map[string]*client.Queue{}}
	// The clients of one process are two sessions: this one takes.
	taker := &driver{worker: &worker{Child: w.Child, ctx: w.ctx, driver: w.driver, gpu: w.gpu, stream: w.stream, c: other}, queues: map[string]*client.Queue{}}
	o := order{Queue: "q", Bytes: 300_000, Seed: 3, Count: 3, Hold: true}
	var a answer
	for _, step := range []struct {
		d  *driver
		do string
	}{{taker, "take nothing"}, {d, "lend"}, {taker, "take"}, {taker, "held"}, {taker, "release"}, {d, "free"}} {
		now := o
		if now.Do = step.do; step.do == "take nothing" { // keeps the queue
			now.Do, now.Count = "take", 0
		}
		if a, err = step.d.carryOut(&now); err != nil {
			return fmt.Errorf("%s: %w", step.do, err)
		}
		if err := w.Say(a.Seen); err != nil {
			return err
		}
	}
	// What is held when its lender closes is Expired, and stays as it is.
	if _, err := d.carryOut(&order{Do: "lend", Queue: "q", Bytes: 4096, Seed: 5, Count: 1}); err != nil {
		return err
	}
	if _, err := taker.carryOut(&order{Do: "take", Queue: "q", Count: 1, Hold: true}); err != nil {
		return err
	}
	if err := w.c.Close(); err != nil {
		return err
	}
	_, err = taker.carryOut(&order{Do: "held"})
	if err := w.Say(fmt.Sprint(errors.Is(err, protocol.ErrExpired))); err != nil {
		return err
	}
	taker.release()
	return other.Close()
}

func TestClientsOfOneProcessLendToEachOther(t *testing.T) {
	m := start(t, 1)
	p := m.play("lend to oneself", nil)
	for _, want := range [][]any{nil, nil, numbers(3, 3), numbers(3, 3), nil, nil} {
		var got []any
		p.Next(&got)
		assert.Equal(t, want, got)
	}
	var expired string
	p.Next(&expired)
	assert.Equal(t, "true", expired)
	p.Ended()
	m.empty(t)
}
