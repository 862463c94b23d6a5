package integration

import (
	"testing"

	"github.com/baton-ipc/baton/internal/testkit"
)

// roles are what children of the tests can be; the files of this package add
// theirs.
var roles = map[string]testkit.Role{}

func TestMain(m *testing.M) { testkit.Main(m, roles) }
