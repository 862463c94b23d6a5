package main_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a command says it has not done is not done later either: a broker that was suspended meanwhile finds that the
// command has gone. It comes to these requests before one that is made after it goes on.
func TestWhatACommandGaveUpIsNotCarriedOutLater(t *testing.T) {
	t.Parallel() // it has to wait until a broker is given up
	p := newPlace(t)
	broker := p.serve()
	c := p.client()
	_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
	require.NoError(t, err)
	q, err := c.Queue(p.ctx(), "work")
	require.NoError(t, err)
	require.NoError(t, q.Put(p.ctx(), p.tensor(c, 1)))
	holder := p.holder("leases")
	var leases []struct{ Lease int }
	p.json(&leases, "ls", "leases")
	require.Len(t, leases, 2)
	serial := fmt.Sprint(p.sessionsOf("holder")[0].Serial)

	broker.freeze()
	var asking []*running
	for _, args := range [][]string{
		{"evict", serial, "--kill", "-y"}, {"purge", "work", "-y"}, {"revoke", fmt.Sprint(leases[0].Lease), fmt.Sprint(leases[1].Lease), "-y"},
		{"delete", "held", "--kind", "name"}, {"delete", "work", "--kind", "queue", "-y"}, {"limit", "--memory", "64MiB"}, {"collect"},
	} {
		asking = append(asking, p.start(p.command(append(args, "--timeout", "1ms")...)))
	}
	asking = append(asking, p.start(p.command("stop", "--timeout", "5s"))) // which has no least time
	for _, a := range asking {
		r := a.wait()
		assert.Equal(t, 5, r.code, "%v\n%s", a.cmd.Args, r.err)
		assert.Contains(t, r.err, "nothing was done", "%v", a.cmd.Args)
		assert.Empty(t, r.out)
	}
	broker.signal(syscall.SIGCONT)

	// All of them but limit and evict, which had only looked.
	p.until("the broker has come to all", func() bool { return len(p.events("--kind", "steered")) >= len(asking)-2 })
	require.NoError(t, holder.Process.Signal(syscall.Signal(0)), "the process lives")
	assert.Equal(t, "live", p.sessionsOf("holder")[0].State)
	p.json(&leases, "ls", "leases")
	assert.Len(t, leases, 2)
	m, err := q.TryGet(p.ctx())
	require.NoError(t, err)
	m.Release()
	p.must("get", "held", "-o", "o.npy")
	for _, e := range p.events("--kind", "steered") {
		assert.Equal(t, "not carried out: the other end of the connection was gone", e.Text)
	}
}

// What the broker had begun with it goes on with, and a command that gave up cannot know how far that came.
func TestCommandThatTheBrokerHadReadSaysThatItMayHaveBeenDone(t *testing.T) {
	t.Parallel() // it has to wait until a broker is given up
	p := newPlace(t)
	broker := p.serve()
	c := p.client()
	_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
	require.NoError(t, err)
	holder := p.holder("nothing")
	require.NoError(t, holder.Process.Signal(syscall.SIGSTOP)) // the broker waits for its answer
	evicting := p.start(p.command("evict", fmt.Sprint(p.sessionsOf("holder")[0].Serial), "--yes"))
	broker.logs("session evicted by hand")
	broker.freeze()
	evicting.wait().fails(t, 5, "is suspended; what was asked for may have been done", "then look with baton ls sessions whether it was done")
	broker.signal(syscall.SIGCONT)
	p.until("it was", func() bool { return p.sessionsOf("holder")[0].State == "evicted" })
}
