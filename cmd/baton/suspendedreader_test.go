package main_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// A suspended reader of a lossless topic keeps its senders waiting: why says so, and offers to let it go on before it
// offers to drop what waits.
func TestASuspendedReaderOfALosslessTopicIsNamed(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	x := p.tensor(c, 1)
	_, err := c.Set(p.ctx(), "held", x)
	require.NoError(t, err)
	topic, err := c.Topic(p.ctx(), "steps", client.Overwrite(false), client.Depth(2))
	require.NoError(t, err)
	reader := p.holder("reader")
	serial, pid := p.sessionsOf("holder")[0].Serial, reader.Process.Pid
	for range 2 {
		require.NoError(t, topic.Send(p.ctx(), x))
	}
	soon, cancel := context.WithTimeout(p.ctx(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, topic.Send(soon, x), protocol.ErrFull)
	require.NotContains(t, p.must("why", "topic", "steps"), "suspended")

	require.NoError(t, reader.Process.Signal(syscall.SIGSTOP))
	p.until("the reader is suspended", func() bool { return p.isSuspended("holder") })
	text := p.must("why", "topic", "steps")
	assert.Contains(t, text, "holder, suspended")
	free := fmt.Sprintf("kill -CONT %d, or baton evict %d --kill, or baton purge steps", pid, serial)
	assert.Contains(t, text, free)
	var all []struct {
		Takers   []struct{ Suspended bool }
		Messages []struct{ Free string }
	}
	p.json(&all, "why", "topic", "steps")
	require.Len(t, all, 1)
	assert.True(t, all[0].Takers[0].Suspended)
	assert.Equal(t, free, all[0].Messages[0].Free)
	assert.Contains(t, p.must("show", "topic", "steps"), "senders held up by one item")
}

// isSuspended tells whether a session's process is, as the broker shows it.
func (p *place) isSuspended(name string) bool {
	var rows []struct {
		Name    string
		Stopped bool
	}
	p.json(&rows, "ls", "sessions")
	for _, r := range rows {
		if r.Name == name {
			return r.Stopped
		}
	}
	return false
}

// A broker that is started without the memory directory of the previous one says where that one's names are.
func TestABrokerWithoutTheMemoryDirectoryOfThePreviousOneSaysWhereThatLies(t *testing.T) {
	p := newPlace(t)
	dir := p.file("memory")
	broker := p.serve("--memory-dir", dir)
	c := p.client()
	_, err := c.Set(p.ctx(), "weights", p.tensor(c, 1))
	require.NoError(t, err)
	broker.signal(syscall.SIGTERM)
	broker.wait()
	broker = p.serve()
	broker.logs("a previous broker had its memory in a directory that this one does not use")
	broker.logs(dir)
	assert.NotContains(t, broker.err.String(), "nothing of it is left")
	broker.signal(syscall.SIGTERM)
	broker.wait()
	p.serve("--memory-dir", dir)
	assert.Contains(t, p.must("ls", "names"), "weights")
}
