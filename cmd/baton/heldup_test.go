package main_test

import (
	"context"
	"fmt"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// One item of a queue keeps its sender from sending, though others behind it were taken: a taker has it that is suspended,
// or whose session is over, or no taker has it since it was given back. Each surface says which item it is and what has it.
func TestItemThatHoldsUpItsSenderIsNamed(t *testing.T) {
	p := newPlace(t)
	broker := p.serve("--http", "127.0.0.1:0", "--metrics-topics", "4")
	c := p.client()
	_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
	require.NoError(t, err)
	queue, err := c.Queue(p.ctx(), "work", client.Redeliver(true), client.Depth(3))
	require.NoError(t, err)
	x := p.tensor(c, 1024)
	require.NoError(t, queue.Put(p.ctx(), x))
	taker := p.holder("item")
	serial := p.sessionsOf("holder")[0].Serial
	for range 2 {
		require.NoError(t, queue.Put(p.ctx(), x))
	}
	second, err := queue.Get(p.ctx())
	require.NoError(t, err)
	second.Release()
	full := func() string {
		t.Helper()
		soon, cancel := context.WithTimeout(p.ctx(), 10*time.Millisecond)
		defer cancel()
		err := queue.Put(soon, x)
		require.ErrorIs(t, err, protocol.ErrFull)
		return err.Error()
	}
	holds := func(hasIt, free string) {
		t.Helper()
		text := p.must("why", "queue", "work")
		assert.Contains(t, text, "\nheld up: no room for 1 sender until one item is done with, though fewer items of that sender wait than the depth:\nSENDER ")
		assert.Regexp(t, `(?m)^tester \(pid \d+\) +1 +\S+ \S*s +at least \S+ \S*s +`+hasIt+` +`+free+`$`, text)
		var all []struct {
			HeldUp int `json:"held_up"`
			By     []struct {
				Sequence int
				For      float64 `json:"held_up_seconds"`
			} `json:"held_up_by"`
		}
		p.json(&all, "why", "queue", "work")
		require.Len(t, all, 1)
		require.Len(t, all[0].By, 1)
		assert.Equal(t, []int{1, 1}, []int{all[0].HeldUp, all[0].By[0].Sequence})
		assert.Positive(t, all[0].By[0].For)
		_, metrics := fetch(t, "http://127.0.0.1:"+broker.port(1)+"/metrics", "")
		for _, name := range []string{`baton_queue_held_up_seconds`, `baton_topic_held_up_seconds\{kind="queue",namespace="default",topic="work"\}`} {
			assert.Regexp(t, `(?m)^`+name+` [1-9\d.e-]*[1-9]`, metrics)
		}
	}
	pid := taker.Process.Pid
	evict := fmt.Sprintf("baton evict %d --kill", serial)
	holder := fmt.Sprintf(`holder \(pid %d\)`, pid)

	assert.Contains(t, full(), "item 1 of this sender holds it up, which a taker has and has not released: 1 of 3 items wait")
	holds(holder, evict)
	require.NoError(t, taker.Process.Signal(syscall.SIGSTOP))
	p.until("it is suspended", func() bool {
		return regexp.MustCompile("live, suspended").MatchString(p.must("ls", "sessions", "holder"))
	})
	holds(holder+", suspended", fmt.Sprintf("kill -CONT %d, or %s", pid, evict))
	require.NoError(t, taker.Process.Signal(syscall.SIGCONT))
	p.must("evict", fmt.Sprint(serial), "--yes")
	p.until("its session is over", func() bool { return regexp.MustCompile("session is over").MatchString(p.must("why", "queue", "work")) })
	holds(holder+", whose session is over", evict)
	assert.Contains(t, full(), "which a taker has and has not released")
	require.NoError(t, taker.Process.Kill())
	p.until("the item is given back", func() bool { return regexp.MustCompile("given back").MatchString(p.must("why", "queue", "work")) })
	holds("no taker: it was given back, and waits for one", "baton purge work")
	assert.Contains(t, full(), "item 1 of this sender holds it up, which no taker has: 2 of 3 items wait")

	first, err := queue.Get(p.ctx())
	require.NoError(t, err)
	first.Release()
	require.NoError(t, queue.Put(p.ctx(), x))
	assert.NotContains(t, p.must("why", "queue", "work"), "held up")
}

// A queue whose items all wait for a taker is full, and no item of it holds up others.
func TestFullQueueOfWhichNothingWasTakenHoldsNothingUp(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	queue, err := c.Queue(p.ctx(), "work", client.Redeliver(true), client.Depth(2))
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, queue.Put(p.ctx(), 1))
	}
	soon, cancel := context.WithTimeout(p.ctx(), 10*time.Millisecond)
	defer cancel()
	err = queue.Put(soon, 1)
	require.ErrorIs(t, err, protocol.ErrFull)
	assert.NotContains(t, err.Error(), "holds it up")
	assert.NotContains(t, p.must("why", "queue", "work"), "held up")
}
