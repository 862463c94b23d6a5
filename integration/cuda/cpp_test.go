package cuda

import (
	"os"
	"os/exec"
	"testing"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

func TestTwoProcessesInCppHaveTensorsOnAGPU(t *testing.T) {
	m := start(t, 1)
	watch := clib.Sanitize
	if onGPU { // whose driver leaves memory behind, and needs the addresses that the sanitizer takes
		watch = []string{"-O2"}
	}
	program := clib.Compiled(t, "g++", "integration/cuda/c/gpu.cpp", append(watch, "-ldl")...)
	begun := func(role string) *exec.Cmd {
		cmd := exec.CommandContext(testkit.Context(t), program, role)
		cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+m.Socket)
		if m.gpus != nil {
			cmd.Env = append(cmd.Env, m.gpus.Env()...)
		}
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // where the other one has failed
		return cmd
	}
	receiver, sender := begun("receive"), begun("send")
	require.NoError(t, sender.Wait())
	require.NoError(t, receiver.Wait())
}
