package lasting_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/lasting"
)

func TestTroubleIsLoggedOnceAsLongAsItIsTheSame(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	var trouble lasting.Trouble
	full, gone := errors.New("full"), errors.New("gone")
	for _, err := range []error{nil, full, full, gone, full, nil, nil, full} {
		trouble.Note(log, "cannot write", err, "dir", "d")
	}
	require.Equal(t, 4, strings.Count(out.String(), `level=ERROR msg="cannot write" dir=d`), out.String())
	require.Equal(t, 3, strings.Count(out.String(), "error=full"))
}
