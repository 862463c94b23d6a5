package broker

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/events"
)

// What one program causes, be it thousands of lines, hides no line of another one.
func TestLinesOfOneProgramLeaveThoseOfOthersAlone(t *testing.T) {
	var text strings.Builder
	s := newSparing(slog.New(slog.NewTextHandler(&text, nil)))
	for range 1000 {
		s.Warn(causer{0, 7}, "refused", "pid", 7)
	}
	s.Warn(causer{0, 8}, "refused", "pid", 8)
	require.Equal(t, 1, strings.Count(text.String(), "pid=8"))
	require.Less(t, strings.Count(text.String(), "pid=7"), 100)
}

// What was left out is counted also where the program writes no line any more.
func TestTheLastLineOfAProgramComesWithTheNumberLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		ring := events.New()
		s := newSparing(slog.New(ring.Handler(slog.NewTextHandler(&text, nil))))
		refuse := func(n int) {
			for range n {
				s.Warn(causer{0, 7}, "refused", events.Of(events.Refused), "pid", 7)
			}
		}
		refuse(200)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, linesPerSecond+1, strings.Count(text.String(), "pid=7"))
		require.Contains(t, text.String(), fmt.Sprintf("left_out=%d\n", 200-linesPerSecond-1))
		all := ring.Since(0, 0).Events
		require.Len(t, all, 1)
		require.Equal(t, 200, all[0].Times)
		refuse(linesPerSecond + 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, 2*linesPerSecond+2, strings.Count(text.String(), "pid=7"))
		require.Equal(t, 1, strings.Count(text.String(), "left_out"), "one line is written, and none is left out before it")
	})
}

// A user who starts thousands of programs fills neither the memory of the broker nor its log.
func TestLinesOfAnyNumberOfProgramsAreBounded(t *testing.T) {
	var text strings.Builder
	s := newSparing(slog.New(slog.NewTextHandler(&text, nil)))
	for pid := range 10 * mostSpared {
		s.Warn(causer{0, pid + 1}, "refused", "pid", pid+1)
		require.LessOrEqual(t, len(s.done), mostSpared+1)
	}
	require.Contains(t, text.String(), fmt.Sprintf("pid=%d\n", mostSpared))
	require.Less(t, strings.Count(text.String(), "\n"), 5*mostSpared)
}
