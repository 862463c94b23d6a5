package main_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
)

// offered is what completion offers for the last word of a command line, and the directive behind it.
func (p *place) offered(args ...string) (words []string, directive string) {
	p.t.Helper()
	all := lines(p.must(append([]string{"__completeNoDesc"}, args...)...))
	return all[:len(all)-1], all[len(all)-1]
}

// What completion offers for a flag of a fixed set is what the command takes, and its help lists the same.
func TestFlagsOfAFixedSetHaveTheirValuesInOnePlace(t *testing.T) {
	p := newPlace(t)
	for _, of := range []struct {
		command []string
		flag    string
		values  []string
	}{
		{[]string{"serve"}, "log-level", []string{"debug", "info", "warn", "error"}},
		{[]string{"serve"}, "log-format", []string{"text", "json"}},
		{[]string{"run"}, "log-level", []string{"debug", "info", "warn", "error"}},
		{[]string{"tail", "t"}, "from", []string{"new", "last", "all"}},
		{[]string{"delete", "n"}, "kind", []string{"name", "topic", "queue", "function"}},
	} {
		words, directive := p.offered(append(of.command, "--"+of.flag, "")...)
		assert.Equal(t, of.values, words, "%v --%s", of.command, of.flag)
		assert.Equal(t, ":4", directive, "no files")
		p.baton(append(of.command, "--"+of.flag, "other")...).fails(t, 2, "none of "+strings.Join(of.values, ", "), "")
		last := len(of.values) - 1
		assert.Contains(t, p.must(of.command[0], "--help"), strings.Join(of.values[:last], ", ")+" or "+of.values[last])
		for _, value := range words {
			taken := append(of.command, "--"+of.flag, value)
			switch of.command[0] {
			case "serve":
				p.must(append(taken, "--check-config")...)
			case "run":
				p.must(append(taken, "--no-nats", "--", "true")...)
			default:
				p.baton(taken...).fails(t, 4, "no broker answers", "")
			}
		}
	}
	for _, view := range []string{"topics", "sessions", "names", "functions"} {
		columns, directive := p.offered("top", view, "--sort", "")
		assert.Equal(t, ":4", directive)
		require.NotEmpty(t, columns)
		p.baton("top", view, "--sort", "colour").fails(t, 2, strings.Join(columns, ", "), "")
		for _, column := range columns {
			p.baton("top", view, "--sort", column).fails(t, 4, "no broker answers", "")
		}
	}
	topics, _ := p.offered("top", "--sort", "")
	assert.Contains(t, topics, "sent/s", "without a view it is that of topics")
}

// Files are offered where a flag's value is one, and not for numbers and times.
func TestFilesAreOfferedForFlagsThatTakeOne(t *testing.T) {
	p := newPlace(t)
	const files, none, folders = ":0", ":4", ":16"
	for flag, want := range map[string]string{"--config": files, "--address": files, "--http-token-file": files, "--memory-dir": folders, "--runtime-dir": folders,
		"--memory": none, "--drain-timeout": none, "--metrics-topics": none, "--socket-mode": none} {
		words, directive := p.offered("serve", flag, "")
		assert.Equal(t, want, directive, flag)
		assert.Empty(t, words)
	}
	_, directive := p.offered("ls", "--timeout", "")
	assert.Equal(t, none, directive)
	_, directive = p.offered("get", "n", "-o", "")
	assert.Equal(t, files, directive)
}

func TestNamespacesAndTensorsAreOfferedWhereABrokerIsThere(t *testing.T) {
	p := newPlace(t)
	words, directive := p.offered("ls", "--namespace", "")
	assert.Empty(t, words)
	assert.Equal(t, ":4", directive, "no broker: nothing, and no error")
	p.serve()
	c := p.client(client.WithNamespace("training"))
	bundle := client.NewBundle(map[string]*client.Tensor{"first": p.tensor(c, 1), "second": p.tensor(c, 1)})
	_, err := c.Set(p.ctx(), "weights", bundle)
	require.NoError(t, err)
	words, _ = p.offered("ls", "--namespace", "")
	assert.Contains(t, words, "training")
	words, _ = p.offered("ls", "--namespace", "tr")
	assert.Equal(t, []string{"training"}, words)
	words, _ = p.offered("ls", "--namespace", "other")
	assert.Empty(t, words)
	p.until("the tensors are offered", func() bool { // it waits for a broker no longer than a shell may
		words, _ := p.offered("get", "weights", "--namespace", "training", "--tensor", "")
		return strings.Join(words, " ") == "first second"
	})
}

// What stands without a flag is completed by the kinds that the command takes.
func TestDeleteTailAndSetAreOfferedWhatTheyTake(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	_, err := c.Set(p.ctx(), "a-name", p.tensor(c, 1))
	require.NoError(t, err)
	_, err = c.Topic(p.ctx(), "a-topic")
	require.NoError(t, err)
	_, err = c.Queue(p.ctx(), "a-queue")
	require.NoError(t, err)
	p.until("all are offered", func() bool {
		words, _ := p.offered("delete", "a-")
		slices.Sort(words)
		return slices.Equal(words, []string{"a-name", "a-queue", "a-topic"})
	})
	for _, of := range [][]string{{"delete", "--kind", "queue", "a-", "a-queue"}, {"tail", "a-", "a-topic"}, {"set", "a-", "a-name"}} {
		last := len(of) - 1
		p.until("what fits is offered", func() bool {
			words, _ := p.offered(of[:last]...)
			return slices.Equal(words, of[last:])
		})
	}
	words, directive := p.offered("set", "a-name", "")
	assert.Equal(t, []string{"npy"}, words)
	assert.Equal(t, ":8", directive, "files of that kind")
}
