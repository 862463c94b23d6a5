package langs

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// With BATON_TRACE a listing tells the line of the program that asked for each storage.
func TestStoragesTellTheLineThatAskedForThem(t *testing.T) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			d := &driver{b.Start("driver", nil, append(l.options(t), testkit.Env(address.EnvTrace, "1"))...), t}
			d.do(command{"do": "hoard", "seed": 1, "count": 2})
			var page protocol.ListReply
			_, err := b.Raw().Call(protocol.OpList, protocol.List{What: protocol.ListStorages}, &page)
			require.NoError(t, err)
			for _, row := range page.Rows {
				var r broker.StorageRow
				assert.NoError(t, json.Unmarshal(row, &r))
				file, line, _ := strings.Cut(r.Trace, ":")
				assert.Contains(t, map[string]string{"go": "godriver_test.go govalue_test.go", "rust": "driver.rs", "c": "kit.h"}[l.name], filepath.Base(file), r.Trace)
				assert.Regexp(t, `^\d+$`, line, r.Trace)
			}
			assert.NotEmpty(t, page.Rows)
			leave(t, b, d)
		})
	}
}
