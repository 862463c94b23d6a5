package statefile_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
)

func TestChangesAreAppliedAndAHalfLineIsNot(t *testing.T) {
	st, err := statefile.Parse([]byte(`{"supervised":true,"settings":["--memory=1GiB"],"sessions":[{"serial":2},{"serial":4}]}
{"opened":{"serial":9,"pid":7}}
{"ended":4}
{"files":40}
{"ended":2}`))
	require.NoError(t, err)
	require.True(t, st.Supervised)
	require.Equal(t, []string{"--memory=1GiB"}, st.Settings)
	require.Equal(t, 40, st.Files)
	require.Equal(t, []statefile.Session{{Serial: 2}, {Serial: 9, PID: 7}}, st.Sessions)
	_, err = statefile.Parse([]byte("{\"sessions\":[]}\nnonsense\n"))
	require.Error(t, err)
}

func TestOperatorIsAwaitedWhileASessionMayLive(t *testing.T) {
	began, err := sys.StartTime(os.Getpid())
	require.NoError(t, err)
	gone := exec.Command("true")
	require.NoError(t, gone.Run())
	self := statefile.Session{PID: os.Getpid(), StartTime: began}
	dead := statefile.Session{PID: gone.Process.Pid, StartTime: began}
	of := func(change func(*statefile.State), s ...statefile.Session) bool {
		st := &statefile.State{BootID: sys.BootID(), PIDNS: sys.PIDNamespace(os.Getpid()), Supervised: true, Sessions: s}
		if change != nil {
			change(st)
		}
		return st.Awaits()
	}
	require.True(t, of(nil, dead, self))
	require.False(t, of(nil, dead))
	require.False(t, of(nil))
	require.False(t, of(nil, statefile.Session{PID: os.Getpid(), StartTime: began + 1}), "the number is another process's now")
	require.False(t, of(func(st *statefile.State) { st.Supervised = false }, self))
	require.False(t, of(func(st *statefile.State) { st.BootID = "another" }, self))
	require.True(t, of(func(st *statefile.State) { st.PIDNS++ }, dead), "what cannot be looked at may live")
	require.True(t, of(nil, statefile.Session{PID: gone.Process.Pid}), "nothing is known of its process")
}
