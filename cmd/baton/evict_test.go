package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// roleHolder has this program be a process that holds what the name "held" has, and memory of its
// own where the value is "own".
const roleHolder = "BATON_TEST_HOLDER"

// kept is what such a process has taken.
var kept *client.Message

func holdUntilKilled(what string) {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.WithName("holder"))
	if err != nil {
		panic(err)
	}
	if _, err := c.Get(ctx, "held"); err != nil {
		panic(err)
	}
	if what == "own" {
		if _, err := c.Zeros(ctx, dlpack.Uint8, []int64{1 << 20}); err != nil {
			panic(err)
		}
	}
	if what == "leases" {
		x, err := c.Zeros(ctx, dlpack.Uint8, []int64{1 << 20})
		if err != nil {
			panic(err)
		}
		for _, lease := range []client.LeaseOption{client.LeaseFor(time.Hour), client.LeaseOnce()} {
			if _, err := x.Handle(ctx, lease); err != nil {
				panic(err)
			}
		}
	}
	if what == "reader" {
		t, err := c.Topic(ctx, "steps", client.Overwrite(false))
		if err == nil {
			_, err = t.Reader(ctx)
		}
		if err != nil {
			panic(err)
		}
	}
	if what == "item" {
		q, err := c.Queue(ctx, "work", client.Redeliver(true))
		if err == nil {
			kept, err = q.Get(ctx)
		}
		if err != nil {
			panic(err)
		}
	}
	os.Stdout.Write([]byte{1})
	select {}
}

// holder starts such a process, which is killed at the end of the test, and waits until it holds what it is to.
func (p *place) holder(what string) *exec.Cmd {
	p.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(slices.Clone(p.env), roleHolder+"="+what)
	out, err := cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, cmd.Start())
	p.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	_, err = out.Read(make([]byte, 1))
	require.NoError(p.t, err)
	return cmd
}

// A session is named as in other commands; where that means several, nothing is done.
func TestEvictTakesANameOrAPid(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
	require.NoError(t, err)
	first, second := p.holder("nothing"), p.holder("nothing")
	rows := p.sessionsOf("holder")
	require.Len(t, rows, 2)
	said := p.baton("evict", "holder", "--yes")
	said.fails(t, 2, "holder means several sessions: ", "give the number of the one that is meant")
	for _, r := range rows {
		assert.Regexp(t, fmt.Sprintf(`\b%d \(holder, pid \d+, live\)`, r.Serial), said.err)
	}
	assert.Len(t, p.sessionsOf("holder"), 2)
	assert.Regexp(t, fmt.Sprintf(`^evicted session \d+ \(holder, pid %d\): its process was killed\n$`, first.Process.Pid),
		p.must("evict", fmt.Sprint(first.Process.Pid), "--kill", "--yes"))
	p.until("one is left", func() bool { return len(p.sessionsOf("holder")) == 1 })
	assert.Contains(t, p.must("evict", "holder", "--kill", "--yes"), fmt.Sprintf("(holder, pid %d): its process was killed", second.Process.Pid))
}

// What stays of a suspended process is what it was granted and what it holds of others.
func TestEvictTellsHowMuchOfASuspendedProcessStays(t *testing.T) {
	for what, stays := range map[string]string{
		"nothing": "1.0 MiB stay until it goes on or ends, 0 B that it was granted and 1.0 MiB that it holds of others",
		"own":     "5.0 MiB stay until it goes on or ends, 4.0 MiB that it was granted and 1.0 MiB that it holds of others",
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			former := p.serve()
			c := p.client()
			_, err := c.Set(p.ctx(), "held", p.tensor(c, 1<<18))
			require.NoError(t, err)
			holder := p.holder(what)
			require.NoError(t, holder.Process.Signal(syscall.SIGSTOP))
			serial := p.sessionsOf("holder")[0].Serial
			var rows []struct{ Version string }
			p.json(&rows, "ls", "sessions", "holder")
			was := rows[0].Version
			require.NotEmpty(t, was)
			said := p.must("evict", fmt.Sprint(serial), "--yes")
			steered := p.events("--kind", "steered")
			require.Len(t, steered, 1)
			var who struct {
				PID int
				By  int `json:"by_pid"`
			}
			require.NoError(t, json.Unmarshal(steered[0].Details, &who))
			assert.Equal(t, holder.Process.Pid, who.PID)
			assert.NotContains(t, []int{0, who.PID}, who.By)
			assert.Equal(t, fmt.Sprintf("evicted session %d (holder, pid %d): its process does not know of it yet, so %s\n", serial, holder.Process.Pid, stays), said)
			if what == "own" { // which a next broker has of the previous one
				p.serve("--replace")
				former.wait()
				var rows []struct{ Language, Version, State string }
				p.json(&rows, "ls", "sessions", "holder")
				require.Len(t, rows, 1)
				assert.Equal(t, []string{"go", was}, []string{rows[0].Language, rows[0].Version})
			}
			said = p.must("evict", fmt.Sprint(serial), "--kill", "--yes")
			assert.True(t, strings.HasSuffix(said, ": its process was killed\n"), said)
		})
	}
}

// Leases of an evicted session end with it, also those for a time, which outlive a session that dies.
func TestEvictEndsAllLeases(t *testing.T) {
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprint("kill=", kill), func(t *testing.T) {
			p := newPlace(t)
			p.serve()
			c := p.client()
			_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
			require.NoError(t, err)
			holder := p.holder("leases")
			var leases []struct {
				Maker string
				PID   int
			}
			p.json(&leases, "ls", "leases")
			require.Len(t, leases, 2)
			assert.Equal(t, holder.Process.Pid, leases[0].PID)
			args := []string{"evict", fmt.Sprint(p.sessionsOf("holder")[0].Serial), "--yes"}
			if kill {
				args = append(args, "--kill")
			}
			p.must(args...)
			leases = nil
			p.json(&leases, "ls", "leases")
			assert.Empty(t, leases)
		})
	}
}

// saysWhoHasTheItem looks whether `why` names the evicted taker of an item, and the command that frees it.
func (p *place) saysWhoHasTheItem(pid int) {
	p.t.Helper()
	serial := p.sessionsOf("holder")[0].Serial
	assert.Regexp(p.t, fmt.Sprintf(`a taker: claimed by holder \(pid %d\), whose session is over +when its taker's process lets go of it, or ends +baton evict %d --kill`, pid, serial), p.must("why", "queue", "work"))
}

// evictTaker evicts a session that has the first of two items of a queue, whose sender keeps its own references to both. It
// returns the process and what the command said.
func (p *place) evictTaker() (q *client.Queue, holder *os.Process, said string) {
	p.t.Helper()
	c := p.client()
	_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
	require.NoError(p.t, err)
	q, err = c.Queue(p.ctx(), "work", client.Redeliver(true))
	require.NoError(p.t, err)
	for range 2 {
		require.NoError(p.t, q.Put(p.ctx(), p.tensor(c, 1)))
	}
	holder = p.holder("item").Process
	return q, holder, p.must("evict", fmt.Sprint(p.sessionsOf("holder")[0].Serial), "--yes")
}

// takes takes the next item of a queue.
func (p *place) takes(q *client.Queue) (sequence uint64) {
	p.t.Helper()
	m, err := q.Get(p.ctx())
	require.NoError(p.t, err, p.must("why", "queue", "work"))
	defer m.Release()
	return m.Sequence
}

// An item that the process of an evicted taker may still write goes to no other taker: the reply says so.
func TestEvictTellsWhichItemsOtherTakersDoNotGetYet(t *testing.T) {
	p := newPlace(t)
	p.serve()
	q, holder, said := p.evictTaker()
	assert.True(t, strings.HasSuffix(said, ", which stay until it drops them or ends; 1 item that it took and has not acknowledged goes to another taker then\n"), said)
	p.saysWhoHasTheItem(holder.Pid)
	assert.EqualValues(t, 2, p.takes(q))
	require.NoError(t, holder.Kill())
	assert.EqualValues(t, 1, p.takes(q))
}

// Which process has an item is known to the next broker: others that have its bytes too, as its sender does, keep it
// from no taker.
func TestQueueOfAnEvictedTakerGoesOnAtTheNextBroker(t *testing.T) {
	for _, when := range []string{"its process lives", "its process is killed"} {
		t.Run(when, func(t *testing.T) {
			p := newPlace(t)
			former := p.serve()
			q, holder, _ := p.evictTaker()
			require.NoError(t, former.cmd.Process.Kill())
			former.wait()
			p.serve()
			if when == "its process lives" {
				assert.EqualValues(t, 2, p.takes(q))
				require.NoError(t, holder.Kill())
				assert.EqualValues(t, 1, p.takes(q))
			} else {
				require.NoError(t, holder.Kill())
				assert.ElementsMatch(t, []uint64{1, 2}, []uint64{p.takes(q), p.takes(q)})
			}
		})
	}
}

// A program that was evicted while it was suspended goes on when another broker is there, and does not come back. Its
// grants end once it has found out; what it holds stays.
func TestGrantsOfAProgramThatWasEvictedWhileSuspendedEndWhenItGoesOn(t *testing.T) {
	for _, how := range []string{"replaced", "killed"} {
		t.Run(how, func(t *testing.T) {
			p := newPlace(t)
			former := p.serve()
			c := p.client()
			_, err := c.Set(p.ctx(), "held", p.tensor(c, 1<<18))
			require.NoError(t, err)
			holder := p.holder("own")
			require.NoError(t, holder.Process.Signal(syscall.SIGSTOP))
			serial := fmt.Sprint(p.sessionsOf("holder")[0].Serial)
			p.must("evict", serial, "--yes")
			if how == "replaced" {
				p.serve("--replace")
			} else {
				require.NoError(t, former.cmd.Process.Kill())
			}
			former.wait()
			if how == "killed" {
				p.serve()
			}
			var rows []struct {
				State   string
				Stopped bool
				Granted uint64 `json:"granted_bytes"`
				Held    uint64 `json:"held_bytes"`
			}
			p.json(&rows, "ls", "sessions", "holder")
			require.True(t, rows[0].Stopped)
			require.EqualValues(t, 4<<20, rows[0].Granted)
			require.NoError(t, holder.Process.Signal(syscall.SIGCONT))
			p.until("its grants end", func() bool {
				rows = nil
				p.json(&rows, "ls", "sessions", "holder")
				return rows[0].Granted == 0
			})
			assert.Equal(t, "closed", rows[0].State)
			assert.EqualValues(t, 2<<20, rows[0].Held)
			assert.Contains(t, p.must("evict", serial, "--yes"), ": its process holds 2.0 MiB, which stay until it drops them or ends")
			assert.Contains(t, p.must("evict", serial, "--kill", "--yes"), ": its process was killed")
		})
	}
}

// A call that runs at a provider which is evicted ends, though the process of that lives.
func TestCallOfAnEvictedProviderEnds(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c, provider := p.client(), p.client()
	begun, goOn := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(goOn) })
	_, err := client.Handle(provider, "slow", func(ctx context.Context, x int64) (int64, error) {
		close(begun)
		<-goOn
		return x, nil
	})
	require.NoError(t, err)
	f, err := c.Function(p.ctx(), "slow")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := f.Call(p.ctx(), 1)
		ended <- err
	}()
	<-begun
	p.must("evict", fmt.Sprint(provider.Session()), "--yes")
	err = <-ended
	require.ErrorIs(t, err, protocol.ErrProviderDied)
	assert.ErrorContains(t, err, "was evicted")
}
