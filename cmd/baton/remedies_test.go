package main_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

// otherBroker serves at an address that is not this user's own one.
func (p *place) otherBroker(args ...string) (address string) {
	p.t.Helper()
	dir := p.file("other")
	require.NoError(p.t, os.MkdirAll(dir, 0o700))
	address = filepath.Join(dir, "o.sock")
	p.serve(append([]string{"--address", address, "--runtime-dir", dir}, args...)...)
	return address
}

// A command that is printed goes to the broker that was asked.
func TestPrintedCommandsReachTheBrokerThatWasAsked(t *testing.T) {
	p := newPlace(t)
	p.serve()
	address := p.otherBroker()
	put := func(opts ...client.Option) {
		c := p.client(opts...)
		x := p.tensor(c, 1024)
		q, err := c.Queue(p.ctx(), "work")
		require.NoError(t, err)
		require.NoError(t, q.Put(p.ctx(), x))
	}
	put()
	put(client.WithAddress(address), client.WithNamespace("team-b"))
	waiting := func(args ...string) (n int) {
		var rows []struct{ Waiting int }
		p.json(&rows, append([]string{"ls", "topics"}, args...)...)
		for _, r := range rows {
			n += r.Waiting
		}
		return n
	}
	at := []string{"--address", address, "--namespace", "team-b"}

	var found []struct {
		Messages []struct{ Free string }
	}
	p.json(&found, append([]string{"why", "queue", "work"}, at...)...)
	require.Len(t, found, 1)
	free := found[0].Messages[0].Free
	assert.Equal(t, "baton purge --address="+address+" --namespace=team-b work", free)
	assert.Contains(t, p.must(append([]string{"why", "queue", "work"}, at...)...), free)
	words := strings.Fields(free)
	r := p.baton(words[1:]...)
	assert.Equal(t, 2, r.code)
	assert.Contains(t, r.err, "drop all messages that are kept in work (broker at "+address+")")
	p.must(append(words[1:], "--yes")...)
	assert.Equal(t, 0, waiting(at...))
	assert.Equal(t, 1, waiting(), "the user's own broker keeps what it has")
	assert.NotContains(t, p.baton("purge", "work").err, "broker at", "it is the user's own")

	r = p.baton(append([]string{"show", "nothing"}, at...)...)
	assert.Contains(t, r.err, "baton ls --address="+address+" --namespace=team-b names")
	r = p.baton("revoke", "77", "--yes", "--address", address)
	assert.Contains(t, r.err, "baton ls --address="+address+" leases")
	r = p.baton("stop", "--discard", "--address", address)
	assert.Contains(t, r.err, "(broker at "+address+")")
}

// The error of a call, too, has a command that finds the function.
func TestTheErrorOfACallNamesItsNamespaceAndBroker(t *testing.T) {
	p := newPlace(t)
	address := p.otherBroker()
	c := p.client(client.WithAddress(address), client.WithNamespace("team-b"))
	_, err := client.Handle(c, "slow", func(ctx context.Context, _ struct{}) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	})
	require.NoError(t, err)
	r := p.baton("call", "--address", address, "--namespace", "team-b", "--timeout", "50ms", "slow")
	require.NotZero(t, r.code)
	assert.Contains(t, r.err, "baton why --address="+address+" --namespace=team-b function slow")
}

// Where names have the memory, a refusal and doctor say so, and how it comes free: no session is to copy anything.
func TestMemoryOfNamesIsNamedWithWhatFreesIt(t *testing.T) {
	p := newPlace(t)
	p.serve("--memory", "64MiB")
	setter := p.client(client.WithName("setter"))
	for _, name := range []string{"a", "b", "c"} {
		x := p.tensor(setter, 4<<20)
		_, err := setter.Set(p.ctx(), name, x)
		require.NoError(t, err)
		x.Release()
	}
	refused := func() (text string) {
		c := p.client(client.WithName("another"))
		_, err := c.Zeros(p.ctx(), dlpack.Float32, []int64{8 << 20})
		require.Error(t, err)
		return err.Error()
	}
	text := refused()
	assert.Regexp(t, `setter \(pid \d+\): holds 0 bytes, was granted \d+ bytes, .*\(held of what it was granted: names 50331648 bytes\)`, text)
	assert.Contains(t, text, "baton delete NAME")
	assert.NotContains(t, text, "copy the small tensors")
	require.NoError(t, setter.Close())
	p.until("the setter has ended", func() bool { return !p.hasSession("setter") })
	assert.Contains(t, refused(), "baton ls names, baton delete NAME")

	p.must("limit", "--memory", "48MiB")
	f := p.findings()["broker's memory"]
	assert.Equal(t, "warn", f.State)
	assert.Contains(t, f.Text, "held by names 48 MiB")
	assert.Contains(t, f.Remedy, "baton ls names, baton delete NAME")
	assert.NotContains(t, f.Remedy, "SESSION")

	p.must("limit", "--memory", "1GiB")
	leaser := p.client(client.WithName("leaser"))
	x := p.tensor(leaser, 16<<20)
	_, err := x.Handle(p.ctx(), client.LeaseFor(time.Hour))
	require.NoError(t, err)
	x.Release()
	q, err := leaser.Queue(p.ctx(), "work", client.Linger(time.Hour))
	require.NoError(t, err)
	y := p.tensor(leaser, 16<<20)
	require.NoError(t, q.Put(p.ctx(), y))
	y.Release()
	require.NoError(t, leaser.Close())
	p.until("the sender has ended", func() bool { return !p.hasSession("leaser") })
	p.must("limit", "--memory", "128MiB")
	f = p.findings("--address", p.socket())["broker's memory"]
	at := " --address=" + p.socket()
	assert.Contains(t, f.Text, "leases 64 MiB, messages of ended sessions 64 MiB")
	assert.Contains(t, f.Remedy, "baton ls"+at+" leases, baton revoke"+at+" LEASE")
	assert.Contains(t, f.Remedy, "baton ls"+at+" topics --all, baton purge"+at+" NAME")
}
