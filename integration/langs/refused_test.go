package langs

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// A client that has much asks for larger segments, and takes smaller ones where the quota has
// no room for those. The program gets what it asks for, so no refusal is reported to the operator.
func TestProgramThatGetsItsMemoryIsNotAmongTheRefused(t *testing.T) {
	for _, l := range everyLanguage(t) {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory = 60 << 20 })
			refused := func() string {
				out, err := exec.Command(testkit.Binary(t), "events", "--kind", "refused", "--address", b.Socket).CombinedOutput()
				require.NoError(t, err, "%s", out)
				return string(out)
			}
			d := start(t, b, l)
			d.do(command{"do": "hoard", "seed": 60, "count": 13, "words": 4 << 20 / 8})
			require.NotContains(t, refused(), "refused")
			full := d.try(command{"do": "hoard", "seed": 61, "words": 48 << 20 / 8})
			require.Equal(t, "QuotaExceeded", full.Code)
			require.Contains(t, refused(), "code=QuotaExceeded  op=grant")
			d.do(command{"do": "release"})
			leave(t, b, d)
		})
	}
}
