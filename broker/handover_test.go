package broker_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/protocol"
)

const replaceVariable = "BATON_TEST_REPLACE"

func init() {
	// serving serves until it ends by itself. With the variable it takes over from the
	// one that runs. It tells its instance, or that it could not begin.
	parts["serving"] = func(c *played) {
		b, err := broker.New(context.Background(), broker.Config{Dir: filepath.Dir(c.socket), Memory: 1 << 30, Version: "serving",
			MemoryDir: os.Getenv(memoryVariable), Supervised: true, Replace: os.Getenv(replaceVariable) != ""})
		if err != nil {
			c.tell(err.Error())
			os.Exit(1)
		}
		c.tell(b.ID())
		b.Serve(context.Background())
		os.Exit(0)
	}
}

func replacing(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, replaceVariable+"=1") }

// Either of two brokers may die at any step of a replacement. Before the mark the old one
// serves, after it the new one, and nothing that the survivor had is lost.
func TestHandOverSurvivesTheDeathOfEitherBroker(t *testing.T) {
	program := crashProgram(t)
	for _, point := range crashpoint.HandOverPoints {
		for _, kind := range kindsOfMemory {
			t.Run(point.Name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				handOverAt(t, program, point.Name, memoryOf(t, kind))
			})
		}
	}
}

func handOverAt(t *testing.T, program, point, memory string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	socket := filepath.Join(shortdir.New(t), "run", "broker.sock")
	arm := func(prefix string) func(*exec.Cmd) {
		if strings.HasPrefix(point, prefix) {
			return armed(program, point, memory)
		}
		return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, memoryVariable+"="+memory) }
	}
	old := start(t, socket, "serving", arm("handover-"))
	var id string
	old.hear(&id)
	oldEnded := exited(old)
	connect := func(name string) *client.Client {
		c, err := client.Connect(ctx, client.WithAddress(socket), client.WithName(name))
		require.NoError(t, err)
		return c
	}
	c, passing := connect("stays"), connect("passes")
	defer c.Close()
	x, err := filled(ctx, passing, 7)
	require.NoError(t, err)
	_, err = passing.Set(ctx, "kept", x)
	require.NoError(t, err)
	x.Release()
	require.NoError(t, passing.Close()) // now only the broker has it
	q, err := c.Queue(ctx, "work")
	require.NoError(t, err)
	x, err = filled(ctx, c, 9)
	require.NoError(t, err)
	require.NoError(t, q.Put(ctx, x))
	x.Release()

	second := start(t, socket, "serving", arm("replace-"), replacing)
	secondEnded := exited(second)
	switch point {
	case "replace-received", "replace-checked": // the old one serves
		<-secondEnded
		third := start(t, socket, "serving", arm("none"), replacing)
		var again string
		third.hear(&again)
		require.Equal(t, id, again)
		<-oldEnded
		defer third.kill()
	case "replace-committed", "replace-applied":
		<-secondEnded
		<-oldEnded
		third := start(t, socket, "serving", arm("none"))
		var again string
		third.hear(&again)
		require.Equal(t, id, again)
		defer third.kill()
	default:
		<-oldEnded
		var again string
		second.hear(&again)
		require.Equal(t, id, again)
	}
	m, err := q.Get(ctx)
	require.NoError(t, err)
	words, err := client.Slice[uint64](m.Tensor())
	require.NoError(t, err)
	require.EqualValues(t, 9, words[0])
	m.Release()
	_, err = c.Queue(ctx, "new")
	require.NoError(t, err)
	if memory != "" || point == "handover-marked" || point == "replace-received" || point == "replace-checked" {
		w, err := c.Get(ctx, "kept")
		require.NoError(t, err)
		w.Release()
	}
}

// What cannot be taken over stays with the broker that has it.
func TestBrokerRefusesToHandOver(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Supervised = true })
	p := connect(t, b.socket, "stays")
	good := protocol.Replace{Protocol: protocol.Version, Layout: protocol.Layout, Version: "test", Files: 1 << 20, Force: true}
	for name, c := range map[string]struct {
		change func(*protocol.Replace)
		want   *protocol.Error
	}{
		"another layout":             {func(r *protocol.Replace) { r.Layout++ }, protocol.ErrVersion},
		"another place":              {func(r *protocol.Replace) { r.MemoryDir = "/tmp" }, protocol.ErrConflict},
		"too few files":              {func(r *protocol.Replace) { r.Files = 5 }, protocol.ErrTooMany},
		"an operator's, unasked for": {func(r *protocol.Replace) { r.Force = false }, protocol.ErrConflict},
	} {
		r := good
		c.change(&r)
		q := &peer{t: t, w: dial(t, b.socket)}
		_, err := q.call(protocol.OpReplace, r, nil)
		require.ErrorIs(t, err, c.want, name)
	}
	q := &peer{t: t, w: dial(t, b.socket)}
	var ok protocol.ReplaceReply
	fds, err := q.call(protocol.OpReplace, good, &ok) // and then it goes away
	require.NoError(t, err)
	require.Len(t, fds, 2)
	for _, fd := range fds {
		fd.Close()
	}
	q.w.Close()
	p.must(protocol.OpStatus, struct{}{}, nil)
	connect(t, b.socket, "later")
}

// The new broker gives up when the old one is suspended, and the old one goes on then.
func TestHandOverIsGivenUpOnce(t *testing.T) {
	b := serve(t, nil)
	q := &peer{t: t, w: dial(t, b.socket)}
	var ok protocol.ReplaceReply
	_, err := q.call(protocol.OpReplace, protocol.Replace{Protocol: protocol.Version, Layout: protocol.Layout, Files: 1 << 20}, &ok)
	require.NoError(t, err)
	var first protocol.ReplaceFilesReply
	fds, err := q.call(protocol.OpReplaceFiles, protocol.ReplaceFiles{}, &first)
	require.NoError(t, err)
	require.Equal(t, protocol.RestoreBroker, first.Items[0].Role)
	require.True(t, record.Of(q.mapRegion(fds[0], protocol.BrokerBytes, true)).GiveUp())
	_, err = q.call(protocol.OpReplaceReady, struct{}{}, nil)
	require.Error(t, err)
	connect(t, b.socket, "later")
}
