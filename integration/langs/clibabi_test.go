package langs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgramsOfOtherVersionsHaveShorterAndLongerStructures(t *testing.T) {
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			program := clib.Compiled(t, with.c, "integration/langs/c/grown.c", clib.Sanitize...)
			b := testkit.StartBroker(t)
			run(t, b, program)
			testkit.AuditKept(t, b)
		})
	}
}

// The headers of older versions are kept in testdata/headers.
func TestProgramsCompiledWithAnOlderHeaderRunWithTheLibraryOfToday(t *testing.T) {
	prefix := clib.Library(t)
	kept, err := filepath.Glob("testdata/headers/*/baton.h")
	require.NoError(t, err)
	require.NotEmpty(t, kept)
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			b := testkit.StartBroker(t)
			// It says how long the options of a function were when it was compiled.
			length := func(include string) int {
				program := filepath.Join(t.TempDir(), "older")
				out, err := exec.Command(clib.NeedCompiler(t, with.c), "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"+include,
					"-o", program, "c/older.c", "-L"+prefix+"/lib", "-lbaton", "-Wl,-rpath,"+prefix+"/lib").CombinedOutput()
				require.NoError(t, err, string(out))
				n, err := strconv.Atoi(strings.TrimSpace(run(t, b, program)))
				require.NoError(t, err)
				testkit.AuditEmpty(t, b)
				return n
			}
			today := length(filepath.Join(prefix, "include"))
			for _, header := range kept {
				then := length(filepath.Dir(header))
				assert.LessOrEqual(t, then, today, header)
				if strings.Contains(header, "0.1.0-dev") {
					assert.Less(t, then, today, "the kept header is to be one that had less")
				}
			}
		})
	}
}

func TestOtherLibrariesTakeAndGiveTensorsOfEveryKind(t *testing.T) {
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			program := clib.Compiled(t, with.c, "integration/langs/c/legacy.c", clib.Sanitize...)
			b := testkit.StartBroker(t)
			run(t, b, program)
			testkit.AuditEmpty(t, b)
		})
	}
}

// What each pair of headers declares together is used, as C and as C++.
const bothHeaders = `
static int looks(const DLManagedTensorVersioned *t, const DLManagedTensor *old) {
	const DLDevice cpu = {kDLCPU, 0};
	const DLDataType word = {kDLUInt, 64, 1};
	const DLPackVersion version = t->version;
	return t->dl_tensor.device.device_type == cpu.device_type && old->dl_tensor.dtype.code == word.code &&
	       version.major == 1 && (t->flags & DLPACK_FLAG_BITMASK_READ_ONLY) == 0 &&
	       (t->flags & DLPACK_FLAG_BITMASK_IS_COPIED) == 0 && (t->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) == 0;
}

int main(void) {
	baton_session *session = NULL;
	DLManagedTensorVersioned *t = NULL;
	DLManagedTensor *old = NULL;
	DLPackExchangeAPI *table = NULL;
	if (baton_to_legacy(t, &old) == BATON_OK && baton_exchange_api(session, table) == BATON_OK)
		return looks(t, old);
	return 0;
}
`

func TestDLPacksOwnHeaderStandsBeforeOrBehindBatons(t *testing.T) {
	include := filepath.Join(clib.Library(t), "include")
	own, err := filepath.Glob("testdata/dlpack/*/dlpack.h")
	require.NoError(t, err)
	require.Len(t, own, 4)
	for _, dlpack := range own {
		dlpack, err := filepath.Abs(dlpack)
		require.NoError(t, err)
		version := filepath.Base(filepath.Dir(dlpack))
		for order, lines := range map[string]string{
			"before":           "#include \"" + dlpack + "\"\n#include <baton.h>\n",
			"behind":           "#include <baton.h>\n#include \"" + dlpack + "\"\n",
			"on both sides":    "#include \"" + dlpack + "\"\n#include <baton.h>\n#include \"" + dlpack + "\"\n",
			"before baton.hpp": "#include \"" + dlpack + "\"\n#include <baton.hpp>\n",
			"behind baton.hpp": "#include <baton.hpp>\n#include \"" + dlpack + "\"\n",
		} {
			for _, with := range compilers {
				ways := [][]string{{with.c, "-std=c99"}, {with.c, "-std=c11"}, {with.cxx, "-std=c++17"}}
				if order == "before baton.hpp" || order == "behind baton.hpp" {
					ways = ways[2:]
				}
				for _, how := range ways {
					t.Run(version+" "+order+" "+how[0]+how[1], func(t *testing.T) {
						t.Parallel()
						compiler := clib.NeedCompiler(t, how[0])
						suffix := ".c"
						if how[0] == with.cxx {
							suffix = ".cpp"
						}
						source := filepath.Join(t.TempDir(), "both"+suffix)
						require.NoError(t, os.WriteFile(source, []byte(lines+bothHeaders), 0o600))
						out, err := exec.Command(compiler, how[1], "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"+include, source).CombinedOutput()
						require.NoError(t, err, string(out))
					})
				}
			}
		}
	}
}
