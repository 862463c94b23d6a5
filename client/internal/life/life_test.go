package life

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

func TestSessionIsLostOnceAndClosedOverThat(t *testing.T) {
	var l Life
	require.NoError(t, l.Ended())
	first := protocol.Errorf(protocol.CodeSessionLost, "", "first")
	require.True(t, l.Lose(first))
	require.False(t, l.Lose(protocol.Errorf(protocol.CodeSessionLost, "", "second")))
	require.Equal(t, first, l.Ended())
	require.Equal(t, first, l.Refused(protocol.ErrOutOfMemory), "why it is refused is that")
	l.Close()
	require.ErrorIs(t, l.Ended(), protocol.ErrClosed)
	require.Equal(t, first, l.WhyLost())
}

func TestUndecidedEndsWhenItIsDecidedAndBeginsOnce(t *testing.T) {
	var l Life
	l.GoOn(func() { t.Error("there is none") })
	told, resumed := 0, 0
	l.Acknowledge(func() { told++ })
	l.Acknowledge(func() { told++ })
	in := l.Undecided()
	require.NotNil(t, in)
	waited := make(chan error)
	go func() { waited <- in.Wait() }()
	l.GoOn(func() { resumed++ })
	require.NoError(t, <-waited)
	require.Nil(t, l.Undecided())
	require.Equal(t, 1, told)
	require.Equal(t, 1, resumed)
}

// A session that goes on while it begins to be undecided resumes only what was paused.
func TestWhatIsPausedIsResumedAfterwards(t *testing.T) {
	for range 500 {
		var l Life
		var paused, resumed atomic.Bool
		var both sync.WaitGroup
		both.Go(func() { l.Acknowledge(func() { paused.Store(true) }) })
		both.Go(func() {
			for !resumed.Load() {
				l.GoOn(func() {
					assert.True(t, paused.Load())
					resumed.Store(true)
				})
			}
		})
		both.Wait()
	}
}
