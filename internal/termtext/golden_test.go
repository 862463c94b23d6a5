package termtext_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/termtext"
)

var update = flag.Bool("update", false, "write what the tests draw to testdata")

var (
	plain  = termtext.Style{}
	narrow = termtext.Style{Width: 40}
	utf8   = termtext.Style{UTF8: true}
	full   = termtext.Style{Color: true, UTF8: true}
)

// golden compares a drawing with the file of that name, escapes made visible.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = strings.NewReplacer("\x1b", "␛", "\r", "␍").Replace(got) + "\n"
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// fits checks what every drawing promises: no line wider than the Style, no
// escapes without colour, ASCII without UTF8, no newline at the end.
func fits(t *testing.T, s termtext.Style, drawing string) {
	t.Helper()
	width := s.Width
	if width == 0 {
		width = termtext.DefaultWidth
	}
	assert.False(t, strings.HasSuffix(drawing, "\n"))
	for line := range strings.Lines(drawing) {
		line = strings.TrimSuffix(line, "\n")
		assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(line), width, "%q", line)
	}
	for _, r := range drawing {
		if !s.Color {
			require.NotEqual(t, '\x1b', r)
		}
		if !s.UTF8 {
			require.Less(t, r, rune(128), "%q", drawing)
		}
	}
}
