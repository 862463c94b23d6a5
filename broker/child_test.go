package broker_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

// child is this test binary run again as another process, playing a part.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ended bool
}

const (
	partVariable   = "BATON_TEST_PART"
	socketVariable = "BATON_TEST_SOCKET"
)

// parts are what a child can play. It says something with tell, and waits for
// its parent with hear.
var parts = map[string]func(c *played){}

type played struct {
	*testing.T
	socket string
	in     *bufio.Reader
	out    *os.File
}

func (c *played) tell(v any) {
	require.NoError(c, json.NewEncoder(c.out).Encode(v))
}

// hear returns the parent's next line, "" when it has gone.
func (c *played) hear() string {
	s, _ := c.in.ReadString('\n')
	return s
}

// TestPart is the main function of a child; run otherwise it does nothing.
func TestPart(t *testing.T) {
	part := parts[os.Getenv(partVariable)]
	if part == nil {
		return
	}
	part(&played{t, os.Getenv(socketVariable), bufio.NewReader(os.Stdin), os.NewFile(3, "out")})
}

func start(t testing.TB, socket, part string, adjust ...func(*exec.Cmd)) *child {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestPart$", "-test.v=false")
	cmd.Env = append(os.Environ(), partVariable+"="+part, socketVariable+"="+socket)
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	for _, f := range adjust {
		f(cmd)
	}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	w.Close()
	c := &child{t: t, cmd: cmd, in: in, out: bufio.NewReader(r)}
	t.Cleanup(func() {
		c.kill()
		r.Close()
	})
	return c
}

// holding starts a part that says first which storage it holds.
func holding(t testing.TB, socket, part string, adjust ...func(*exec.Cmd)) (c *child, held protocol.StorageRef) {
	t.Helper()
	c = start(t, socket, part, adjust...)
	c.hear(&held)
	return c, held
}

// hear decodes what the child tells next.
func (c *child) hear(v any) {
	c.t.Helper()
	line, err := c.out.ReadBytes('\n')
	require.NoError(c.t, err, "the child ended early")
	require.NoError(c.t, json.Unmarshal(line, v))
}

func (c *child) tell(line string) {
	c.t.Helper()
	_, err := io.WriteString(c.in, line+"\n")
	require.NoError(c.t, err)
}

// ask tells the child a line and waits for its answer.
func (c *child) ask(line string) {
	c.t.Helper()
	c.tell(line)
	c.hear(new(string))
}

// kill ends the child with SIGKILL and waits for it.
func (c *child) kill() {
	if !c.ended {
		c.ended = true
		c.cmd.Process.Kill()
		c.cmd.Wait()
	}
}

// wait lets the child end by itself.
func (c *child) wait() {
	c.t.Helper()
	c.ended = true
	c.in.Close()
	require.NoError(c.t, c.cmd.Wait())
}
