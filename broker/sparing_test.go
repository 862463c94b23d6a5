package broker

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
