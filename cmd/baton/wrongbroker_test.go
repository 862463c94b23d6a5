package main_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// lost waits until a client hears that its session is over, and goes on with a new one.
func (p *place) lost(c *client.Client) *client.Client {
	p.t.Helper()
	p.until("the session is over", func() bool {
		return errors.Is(c.Broker(p.ctx(), protocol.OpStatus, nil, nil), protocol.ErrSessionLost)
	})
	again, err := c.Reopen(p.ctx())
	require.NoError(p.t, err)
	p.t.Cleanup(func() { again.Close() })
	return again
}

// states are those of the sessions by serial.
func (p *place) states() map[uint64]string {
	p.t.Helper()
	var rows []struct {
		Serial uint64
		State  string
	}
	p.json(&rows, "ls", "sessions")
	states := map[uint64]string{}
	for _, r := range rows {
		states[r.Serial] = r.State
	}
	return states
}

// mapsSession tells how this process has a session's file mapped.
func mapsSession(t *testing.T, serial uint64) (reads, writes bool) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), fmt.Sprintf("/session-%d", serial)) {
			reads = reads || strings.Contains(line, " r--s ")
			writes = writes || strings.Contains(line, " rw-s ")
		}
	}
	return reads, writes
}

// A program gave its session up because another broker stood at the address for a while. The
// first one's successor ends that session once nothing of it is held, though a new
// session of the same process has its file mapped.
func TestSessionThatItsProgramGaveUpEndsWhereTheProgramReadsItsFile(t *testing.T) {
	p := newPlace(t)
	memory := p.file("memory")
	first := p.serve("--memory-dir", memory)
	c, err := client.Connect(p.ctx(), client.WithAddress(p.socket())) // which nothing else refers to
	require.NoError(t, err)
	x := p.tensor(c, 4)
	topic, err := c.Topic(p.ctx(), "t", client.Overwrite(false), client.Depth(2))
	require.NoError(t, err)
	_, err = topic.Reader(p.ctx())
	require.NoError(t, err)
	work, err := c.Queue(p.ctx(), "work", client.Redeliver(true))
	require.NoError(t, err)
	require.NoError(t, work.Put(p.ctx(), x))
	item, err := work.Get(p.ctx())
	require.NoError(t, err)
	var serial uint64
	for serial = range p.states() {
	}

	first.signal(syscall.SIGKILL)
	first.wait()
	mistaken := p.serve()
	d := p.lost(c)
	mistaken.signal(syscall.SIGKILL)
	mistaken.wait()
	second := p.serve("--memory-dir", memory)
	e := p.lost(d)
	require.NoError(t, d.Close())
	require.Equal(t, "disconnected", p.states()[serial])

	again, err := e.Queue(p.ctx(), "work", client.Redeliver(true))
	require.NoError(t, err)
	soon, cancel := context.WithTimeout(p.ctx(), 10*time.Millisecond)
	defer cancel()
	_, err = again.Get(soon)
	require.ErrorIs(t, err, protocol.ErrEmpty, "the old session has it")
	reads, writes := mapsSession(t, serial)
	require.True(t, reads && writes, "as its own and as another's")

	item.Release()
	x.Release()
	require.NoError(t, c.Close())
	c, topic, work, item, x = nil, nil, nil, nil, nil
	p.until("the old session is over", func() bool {
		runtime.GC() // unmaps what nothing refers to any more
		_, writes := mapsSession(t, serial)
		return !writes && p.states()[serial] == ""
	})
	reads, _ = mapsSession(t, serial)
	require.True(t, reads, "its file is still mapped")
	m, err := again.Get(p.ctx())
	require.NoError(t, err, "its item goes to others")
	m.Release()
	free, err := e.Topic(p.ctx(), "t", client.Overwrite(false), client.Depth(2))
	require.NoError(t, err)
	for range 6 {
		require.NoError(t, free.Send(p.ctx(), p.tensor(e, 4)), "no reader is waited for")
	}
	second.signal(syscall.SIGTERM)
	require.Zero(t, second.wait().code)
}

// The memory directory may have other instances of this runtime directory. The next broker
// takes the one that the last one had, and none that another broker has.
func TestNextBrokerTakesTheInstanceThatTheLastOneHad(t *testing.T) {
	p := newPlace(t)
	memory := p.file("memory")
	for range 8 { // of which the next one could take any
		broker := p.serve("--memory-dir", memory)
		p.must("set", "x", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
		broker.signal(syscall.SIGKILL)
		broker.wait()
		hidden, err := filepath.Glob(filepath.Join(memory, "baton-*"))
		require.NoError(t, err)
		for _, folder := range hidden {
			require.NoError(t, os.Rename(folder, filepath.Join(p.dir, filepath.Base(folder))))
		}
	}
	last := p.left()
	p.removed("state.json")
	folders, err := filepath.Glob(filepath.Join(p.dir, "baton-*"))
	require.NoError(t, err)
	require.Len(t, folders, 8)
	for _, folder := range folders {
		require.NoError(t, os.Rename(folder, filepath.Join(memory, filepath.Base(folder))))
	}
	for range 3 {
		broker := p.serve("--memory-dir", memory)
		require.Equal(t, last, p.left())
		broker.signal(syscall.SIGTERM)
		require.Zero(t, broker.wait().code)
		// The others were used later now.
		for _, folder := range folders {
			if filepath.Base(folder) != "baton-"+last {
				require.NoError(t, os.Chtimes(filepath.Join(memory, filepath.Base(folder)), time.Time{}, time.Now().Add(time.Hour)))
			}
		}
	}
}

// A broker that lives keeps its memory, though its lock and its socket were removed just
// now: another one at its address does not take it from the clients.
func TestBrokerThatLivesKeepsItsMemory(t *testing.T) {
	for name, flags := range map[string][]string{"memfds": nil, "files": {"--memory-dir", "memory"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the other one waits a while
			p := newPlace(t)
			if flags != nil {
				flags[1] = p.file(flags[1])
			}
			broker := p.serve(flags...)
			c := p.client()
			was := p.statusOf(c)
			broker.freeze() // else it makes both again
			p.removed("broker.lock", "broker.sock")
			p.launch(append([]string{"--no-nats"}, flags...)...).wait().fails(t, 1, fmt.Sprintf("lives (pid %d)", was.PID), "kill -CONT")
			broker.signal(syscall.SIGCONT)
			p.must("status", "--timeout", "1m")
			require.Equal(t, was.PID, p.statusOf(c).PID)
		})
	}
}
