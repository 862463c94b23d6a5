package termtext_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/baton-ipc/baton/internal/termtext"
)

func TestTable(t *testing.T) {
	pairs := [][2]string{
		{"accuracy", termtext.Percent(0.983)},
		{"samples per second", termtext.Count(183_402)},
		{"bytes handed over", termtext.Bytes(48_000_000)},
		{"bytes copied on the way", termtext.Bytes(0)},
		{"wake, p50", termtext.Duration(4_210)},
	}
	for name, s := range map[string]termtext.Style{"plain": plain, "utf8": utf8, "full": full} {
		t.Run("pairs-"+name, func(t *testing.T) {
			got := termtext.Pairs("What happened", pairs, s)
			fits(t, s, got)
			golden(t, "pairs-"+name, got)
		})
	}

	listing := termtext.Table{
		Header: []string{"Name", "Shape", "Bytes", "Holders"},
		Rows: [][]string{
			{"weights/digits", "[64, 64]", "16 KiB", "worker 1 (pid 4711), worker 2 (pid 4712), evaluator (pid 4720)"},
			{"weights/\x1b[2Jevil\x07\u202e", "[]", "4 B", "日本語"},
			{"short"},
		},
		Right: []bool{false, false, true},
	}
	for name, s := range map[string]termtext.Style{"plain": plain, "narrow": narrow, "utf8": utf8} {
		t.Run("listing-"+name, func(t *testing.T) {
			got := listing.Render(s)
			fits(t, s, got)
			golden(t, "listing-"+name, got)
		})
	}
	assert.Equal(t, "T\n(none)", termtext.Table{Title: "T"}.Render(plain))
}
