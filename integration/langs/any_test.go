package langs

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

// A program in C waits for a reader, a queue and a watch at once, and each ends its wait.
func TestProgramInCWaitsForSeveral(t *testing.T) {
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			program := clib.Compiled(t, with.c, "integration/langs/c/any.c", clib.Sanitize...)
			b := testkit.StartBroker(t)
			ctx := testkit.Context(t)
			c := b.Connect()
			back, err := c.Topic(ctx, "any/back")
			require.NoError(t, err)
			answers, err := back.Reader(ctx)
			require.NoError(t, err)
			topic, err := c.Topic(ctx, "any/t")
			require.NoError(t, err)
			queue, err := c.Queue(ctx, "any/q")
			require.NoError(t, err)
			var said strings.Builder
			cmd := exec.CommandContext(ctx, program)
			cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+b.Socket, "BATON_NAMESPACE="+c.Namespace())
			cmd.Stderr = &said
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // where something has failed
			require.True(t, bufio.NewScanner(out).Scan(), said.String())
			for i := range 300 {
				switch i % 3 {
				case 0:
					err = topic.Send(ctx, nil)
				case 1:
					err = queue.Put(ctx, nil)
				case 2:
					_, err = c.Set(ctx, "any/w", nil)
				}
				require.NoError(t, err)
				m, err := answers.Receive(ctx)
				require.NoError(t, err, said.String())
				require.Equal(t, string("012"[i%3]), string(m.RawMeta()))
				m.Release()
			}
			require.NoError(t, topic.End(ctx))
			require.NoError(t, cmd.Wait(), said.String())
			require.NoError(t, c.Delete(ctx, "any/w"))
		})
	}
}
