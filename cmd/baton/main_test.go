package main_test

import (
	"debug/elf"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

func TestBinaryIsStatic(t *testing.T) {
	f, err := elf.Open(binary)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		assert.NotEqual(t, elf.PT_INTERP, p.Type, "the binary asks for a dynamic loader")
	}
	libraries, err := f.ImportedLibraries()
	require.NoError(t, err)
	assert.Empty(t, libraries)
}

func TestHelpNamesEveryCommandAndExitStatus(t *testing.T) {
	p := newPlace(t)
	out := p.must("--help")
	for _, c := range []string{"serve", "run", "status", "ls", "show", "tail", "set", "get", "delete", "doctor", "nats", "completion", "version",
		"evict", "purge", "revoke", "collect", "limit", "compact", "ping"} {
		assert.Regexp(t, `(?m)^  `+c+` +\S`, out)
		help := p.must(c, "--help")
		assert.Contains(t, help, "Usage:\n  baton "+c)
	}
	for _, s := range []string{"0 done", "1 failed", "2 wrong command line", "3 not found", "4 no broker", "5 time ran out"} {
		assert.Contains(t, strings.ReplaceAll(out, "\n", " "), s)
	}
}

func TestWrongCommandLinesAreUsageErrors(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		args    []string
		message string
	}{
		{[]string{"stats"}, `unknown command "stats"`},
		{[]string{"--nonsense"}, "unknown flag: --nonsense"},
		{[]string{"status", "extra"}, `superfluous argument "extra"`},
		{[]string{"ls", "names", "a*", "extra"}, `superfluous argument "extra"`},
		{[]string{"get", "a", "extra"}, `superfluous argument "extra"`},
		{[]string{"help", "status", "extra"}, `superfluous argument "extra"`},
		{[]string{"completion", "bash", "extra"}, `superfluous argument "extra"`},
		{[]string{"status", "--timeout", "soon"}, `invalid argument "soon"`},
		{[]string{"status", "--timeout", "-1s"}, "negative"},
		{[]string{"status", "--namespace", "a.b"}, `namespace "a.b" is not one token`},
		{[]string{"status", "--address", "relative.sock"}, "not an absolute path"},
		{[]string{"status", "--address", "/" + strings.Repeat("x", 107)}, "socket path of 108 bytes is longer than 107"},
		{[]string{"ls", "everything"}, `"everything" is no kind`},
		{[]string{"show"}, "an argument is missing: baton show "},
		{[]string{"show", "thing", "x"}, `"thing" is no kind`},
		{[]string{"get", "a"}, "say where to write it"},
		{[]string{"get", "a//b", "-o", "x.npy"}, `name "a//b" has the token ""`},
		{[]string{"get", "a", "-o", "x.safetensors"}, "only .npy files"},
		{[]string{"get", "a", "-o", "-", "--json"}, "both want standard output"},
		{[]string{"set", "a*", "x.npy"}, `name "a*" has the token "a*"`},
		{[]string{"delete"}, "an argument is missing: baton delete "},
		{[]string{"tail", "t", "--from", "yesterday"}, "none of new, last, all"},
		{[]string{"tail", "t", "-n", "-1"}, "negative"},
		{[]string{"run"}, "an argument is missing: baton run "},
		{[]string{"help", "nosuch"}, `no command "nosuch"`},
		{[]string{"completion", "nosuch"}, `no completion for "nosuch"`},
		{[]string{"version", "--xml"}, "unknown flag: --xml"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			p.in(t).baton(c.args...).fails(t, 2, c.message, "")
		})
	}
}

func TestUnknownCommandSuggestsTheRightOne(t *testing.T) {
	newPlace(t).baton("statu").fails(t, 2, `unknown command "statu"`, "did you mean status? See baton --help")
}

func TestCommandsThatOnlyLookStartNoBroker(t *testing.T) {
	p := newPlace(t)
	for _, args := range [][]string{
		{"status"}, {"status", "--json"}, {"ls"}, {"ls", "storages"}, {"show", "x"}, {"delete", "x"}, {"tail", "x"},
		{"get", "x", "-o", "x.npy"}, {"nats"},
	} {
		p.baton(args...).fails(t, 4, "no broker answers at "+p.socket(), "baton serve")
	}
	gone(t, p.socket())
	assert.NoDirExists(t, p.file("baton"))
}

func TestVersionIsTheBuilds(t *testing.T) {
	p := newPlace(t)
	numbers := fmt.Sprintf("protocol %d, layout %d", protocol.Version, protocol.Layout)
	assert.Regexp(t, `^baton 1\.2\.3-test \(linux/\w+, go1\.\S+; `+numbers+`\)\n$`, p.must("version"))
	assert.Equal(t, "baton version 1.2.3-test\n", p.must("--version"))
	var v struct {
		Version          string
		Protocol, Layout int
	}
	p.json(&v, "version")
	assert.Equal(t, "1.2.3-test", v.Version)
	assert.Equal(t, protocol.Version, v.Protocol)
	assert.Equal(t, protocol.Layout, v.Layout)
}

func TestCompletionKnowsShellsAndNames(t *testing.T) {
	p := newPlace(t)
	assert.Contains(t, p.must("completion", "bash"), "bash completion V2 for baton")
	assert.Equal(t, ":4", lines(p.must("__complete", "get", "w"))[0], "no broker: nothing, and no error")

	p.serve()
	file := p.array("a.npy", "float32", []int64{2}, make([]byte, 8))
	p.must("set", "weights/a", file)
	p.must("set", "other", file)
	// It waits for a broker no longer than a shell may.
	p.until("the name is offered", func() bool {
		return strings.HasPrefix(p.must("__complete", "get", "w"), "weights/a\n:4\n")
	})
	assert.Equal(t, []string{"names", "topics", "functions"}, lines(p.must("__complete", "ls", ""))[:3])
	p.tensor(p.client(), 8)
	assert.Equal(t, "tester\n:4\n", p.must("__complete", "show", "session", "")[:10])
	assert.Regexp(t, `^\d+\n`, p.must("__complete", "show", "storage", ""))
	assert.Subset(t, lines(p.must("__complete", "show", "")), []string{"session", "queue", "storage", "weights/a"})
}
