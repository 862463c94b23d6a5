package main_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
)

// follow starts a command and returns a function that gives its next line.
func (p *place) follow(cmd *exec.Cmd) (*running, func() string) {
	p.t.Helper()
	r, w := io.Pipe()
	cmd.Stdout = w
	run := p.start(cmd)
	p.t.Cleanup(func() { r.Close() })
	out := bufio.NewReader(r)
	return run, func() string {
		p.t.Helper()
		line, err := out.ReadString('\n')
		require.NoError(p.t, err, run.err.String())
		return strings.TrimSuffix(line, "\n")
	}
}

func TestTailPrintsMessagesAsTheyCome(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	x, y := p.tensor(c, 2, 3), p.tensor(c, 4)
	require.NoError(t, topic.Send(p.ctx(), x))

	tail, next := p.follow(p.command("tail", "batches", "--from", "last"))
	line := next()
	assert.Regexp(t, `^tester\S*  #1  float32\[2,3\]$`, line)
	require.NoError(t, topic.Send(p.ctx(), map[string]*client.Tensor{"image": x, "label": y}, client.Meta(map[string]int{"epoch": 3})))
	assert.Regexp(t, `^tester\S*  #2  image float32\[2,3\], label float32\[4\]  meta {"epoch":3}$`, next())
	require.NoError(t, topic.Send(p.ctx(), map[string]any{"step": 7, "x": x}))
	assert.Regexp(t, `#3  x float32\[2,3\]  value {"step":7,"x":{"\$":"tensor","i":0}}$`, next())
	tail.signal(syscall.SIGINT)
	assert.Equal(t, 128+int(syscall.SIGINT), tail.wait().code)
}

func TestTailPrintsLinesOfJSON(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	x := p.tensor(c, 2, 3)
	for i := range 3 {
		require.NoError(t, topic.Send(p.ctx(), map[string]*client.Tensor{"image": x}, client.Meta(i)))
	}
	out := lines(p.must("tail", "batches", "--from", "all", "-n", "2", "--json"))
	require.Len(t, out, 2)
	for i, line := range out {
		var m struct {
			Topic, Sender  string
			Sequence, Lost uint64
			Bytes          int64
			Meta           int
			Tensors        []struct {
				Name, DType string
				Shape       []int64
			}
		}
		require.NoError(t, json.Unmarshal([]byte(line), &m), line)
		assert.Equal(t, "batches", m.Topic)
		assert.Contains(t, m.Sender, "tester")
		assert.Equal(t, uint64(i+1), m.Sequence)
		assert.Equal(t, i, m.Meta)
		assert.Equal(t, int64(24), m.Bytes)
		require.Len(t, m.Tensors, 1)
		assert.Equal(t, "image", m.Tensors[0].Name)
		assert.Equal(t, []int64{2, 3}, m.Tensors[0].Shape)
	}
}

func TestTailKeepsATerminalSafe(t *testing.T) {
	p := newPlace(t)
	p.serve()
	topic, err := p.client().Topic(p.ctx(), "t")
	require.NoError(t, err)
	require.NoError(t, topic.Send(p.ctx(), map[string]any{"text": "\x1b[2Jgone\u202e"}))
	out := p.must("tail", "t", "--from", "all", "-n", "1")
	assert.NotContains(t, out, "\x1b")
	assert.NotContains(t, out, "\u202e")
	assert.Contains(t, out, "gone")
}

func TestTailHoldsNoMemoryAndNoSenderUp(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "t", client.Depth(1))
	require.NoError(t, err)
	x := p.tensor(c, 4)
	require.NoError(t, topic.Send(p.ctx(), x))
	x.Release()
	_, next := p.follow(p.command("tail", "t", "--from", "all"))
	next()
	for range 100 { // far more than are kept: the sender does not wait
		y := p.tensor(c, 4)
		require.NoError(t, topic.Send(p.ctx(), y))
		y.Release()
	}
	p.until("tail has let everything go", func() bool {
		var rows []struct {
			Holders []struct{ Session string }
		}
		p.json(&rows, "ls", "storages")
		for _, r := range rows {
			for _, h := range r.Holders {
				if h.Session == "baton tail" {
					return false
				}
			}
		}
		return true
	})
}

func TestTailRefusesWhatItWouldDisturb(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	lossless, err := c.Topic(p.ctx(), "ranks", client.Overwrite(false))
	require.NoError(t, err)
	_, err = c.Queue(p.ctx(), "work")
	require.NoError(t, err)
	p.baton("tail", "ranks").fails(t, 2, "ranks is lossless: its senders would wait", "add --join")
	p.baton("tail", "work").fails(t, 2, "work is a queue", "baton show work")
	p.baton("tail", "nothing").fails(t, 3, "nothing", "")

	tail, next := p.follow(p.command("tail", "ranks", "--join", "-n", "1"))
	p.until("tail reads", func() bool {
		var rows []struct{ Readers int }
		p.json(&rows, "ls", "topics", "ranks")
		return rows[0].Readers == 1
	})
	require.NoError(t, lossless.Send(p.ctx(), map[string]any{"a": 1}))
	assert.Contains(t, next(), `value {"a":1}`)
	assert.Zero(t, tail.wait().code)
}

func TestTailWaitsForItsTopicAndGivesUpInTime(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.baton("tail", "later", "--timeout", "1ms").fails(t, 3, "later", "")
	_, next := p.follow(p.command("tail", "later", "--timeout", "1m", "-n", "1"))
	p.until("tail is connected", func() bool { return p.hasSession("baton tail") })
	topic, err := p.client().Topic(p.ctx(), "later")
	require.NoError(t, err)
	p.until("tail reads", func() bool {
		var rows []struct{ Readers int }
		p.json(&rows, "ls", "topics", "later")
		return rows[0].Readers == 1
	})
	require.NoError(t, topic.Send(p.ctx(), map[string]any{"a": 1}))
	next()
	p.baton("tail", "later", "--timeout", "1ms").fails(t, 5, "no message in topic later", "")
}

func TestTailEndsWithItsTopic(t *testing.T) {
	p := newPlace(t)
	p.serve()
	topic, err := p.client().Topic(p.ctx(), "t")
	require.NoError(t, err)
	require.NoError(t, topic.Send(p.ctx(), map[string]any{"a": 1}))
	tail, next := p.follow(p.command("tail", "t", "--from", "all"))
	next()
	require.NoError(t, topic.End(p.ctx()))
	r := tail.wait()
	assert.Zero(t, r.code, r.err)
	assert.Empty(t, r.err)
}

// What a program does about a session that is over is of no use at a shell.
func TestTailThatABrokerEndsSaysWhatToDoAtAShell(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	_, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	reader := p.start(p.command("tail", "batches"))
	p.until("it reads", func() bool { return p.hasSession("baton tail") })
	p.must("stop")
	r := reader.wait()
	r.fails(t, 4, "is over", "run the command again when a broker serves: baton status")
	assert.NotContains(t, r.err, "Reopen")
}
