package main

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/termtext"
)

// The pages of the manual are written by a test, into the folder $BATON_WRITE_MANUAL names:
// what writes them is then no part of the program.
const manualVariable = "BATON_WRITE_MANUAL"

// tree is the tree of commands, which writes to out.
func tree(out io.Writer) *cobra.Command {
	root := newRoot(&app{in: strings.NewReader(""), out: out, err: out, style: termtext.Style{}})
	root.DisableAutoGenTag = true
	return root
}

// eachCommand calls f for the command and all below it that users are shown.
func eachCommand(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			eachCommand(sub, f)
		}
	}
}

// shownFlags calls f for each flag of a command that users are shown.
func shownFlags(c *cobra.Command, f func(*pflag.Flag)) {
	c.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			f(flag)
		}
	})
}

func TestManualNamesEveryCommandAndFlag(t *testing.T) {
	dir := cmp.Or(os.Getenv(manualVariable), t.TempDir())
	number, err := os.ReadFile("../../VERSION")
	require.NoError(t, err)
	root := tree(io.Discard)
	header := &doc.GenManHeader{Section: "1", Source: "Baton " + strings.TrimSpace(string(number)), Manual: "Baton"}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, doc.GenManTree(root, header, dir))
	commands := 0
	eachCommand(root, func(c *cobra.Command) {
		commands++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		data, err := os.ReadFile(filepath.Join(dir, name+".1"))
		require.NoError(t, err)
		page := strings.ReplaceAll(string(data), `\-`, "-")
		assert.Contains(t, page, c.Short, name)
		shownFlags(c, func(f *pflag.Flag) { assert.Contains(t, page, "--"+f.Name, name) })
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				assert.Contains(t, page, name+"-"+sub.Name()+"(1)", name)
			}
		}
	})
	assert.Greater(t, commands, 15)
}

func TestCompletionOffersEveryCommandAndFlag(t *testing.T) {
	complete := func(args ...string) string {
		var out bytes.Buffer
		root := tree(&out)
		root.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, args...))
		require.NoError(t, root.Execute())
		return "\n" + out.String()
	}
	root := tree(io.Discard)
	eachCommand(root, func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				assert.Contains(t, complete(append(path, sub.Name()[:1])...), "\n"+sub.Name()+"\n", c.CommandPath())
			}
		}
		flags := complete(append(path, "--")...)
		shownFlags(c, func(f *pflag.Flag) { assert.Regexp(t, `\n--`+f.Name+`=?\n`, flags, c.CommandPath()) })
	})
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var out bytes.Buffer
		root := tree(&out)
		root.SetArgs([]string{"completion", shell})
		require.NoError(t, root.Execute())
		assert.Contains(t, out.String(), "__complete", shell)
	}
}
