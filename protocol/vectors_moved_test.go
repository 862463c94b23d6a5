package protocol_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stale program beside a new one must be refused and not misread, so a layout
// number stands for one shape of shared memory. The vectors are the record of it:
// while the number is that of the vectors, none of them is written differently.

// checkMoved fails if vectors of shared memory are to change and the number is the
// same.
func checkMoved(t *testing.T, want map[string][]byte) {
	t.Helper()
	have := map[string][]byte{}
	for _, name := range vectorNames(t) {
		text, err := os.ReadFile(filepath.Join(vectorsDir, name))
		require.NoError(t, err)
		have[name] = text
	}
	if changed := layoutChanges(t, have, want); len(changed) > 0 {
		t.Fatalf("the layout of shared memory has changed, and %d is the number of the one before: raise protocol.Layout, and LAYOUT in rust/src/layout.rs, then write the vectors. Changed: %s",
			protocol.Layout, strings.Join(changed, ", "))
	}
}

// layoutChanges lists what differs between two sets of vectors of one number;
// nothing if the second has a higher one. Examples may be added.
func layoutChanges(t *testing.T, have, want map[string][]byte) (changed []string) {
	t.Helper()
	if have["layout.json"] == nil {
		return nil
	}
	before, after := layoutIn(t, have), layoutIn(t, want)
	if after.Layout > before.Layout {
		return nil
	}
	note := func(what string, differs bool) {
		if differs && !slices.Contains(changed, what) {
			changed = append(changed, what)
		}
	}
	note("the number itself", after.Layout < before.Layout)
	shared := constants(t, "layout.go")
	for name, value := range after.Constants {
		note(name, shared[name] != "" && isShape(name) && before.Constants[name] != value)
	}
	for name := range before.Constants {
		note(name, after.Constants[name] == "" && isShape(name))
	}
	for name, at := range before.BrokerAlone {
		note(name+", the broker's alone", after.BrokerAlone[name] != at)
	}
	note("a file", !reflect.DeepEqual(before.Files, after.Files))
	note("a word", !reflect.DeepEqual(before.Words, after.Words))
	named := map[string]*structSpec{}
	for _, s := range after.Structs {
		named[s.Name] = s
	}
	for _, s := range before.Structs {
		note(s.Name, !reflect.DeepEqual(s, named[s.Name]))
		delete(named, s.Name)
	}
	for name := range named {
		note(name, true)
	}
	for name, text := range have {
		if filepath.Dir(name) != "structs" {
			continue
		}
		now := examplesIn(t, want[name])
		for example, hex := range examplesIn(t, text) {
			note("the example "+example+" in "+name, now[example] != hex)
		}
	}
	slices.Sort(changed)
	return changed
}

// isShape leaves out what says nothing of shared memory: the numbers of versions,
// and what the broker fills in where a client asks for nothing.
func isShape(constant string) bool {
	return constant != "Version" && constant != "Layout" && !strings.HasPrefix(constant, "Default")
}

func layoutIn(t *testing.T, files map[string][]byte) (f layoutFile) {
	t.Helper()
	require.NoError(t, json.Unmarshal(files["layout.json"], &f))
	return f
}

func examplesIn(t *testing.T, text []byte) map[string]string {
	t.Helper()
	var f struct {
		Cases []struct{ Name, Hex string }
	}
	if text != nil {
		require.NoError(t, json.Unmarshal(text, &f))
	}
	out := map[string]string{}
	for _, c := range f.Cases {
		out[c.Name] = c.Hex
	}
	return out
}

// brokerAlone lists where the parts of the broker file are that only brokers read: a
// successor from another build would misread them as a client would the rest. More
// may be added, since they are zero in the file of a broker without them.
func brokerAlone(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "broker", "record", "*.go"))
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	require.NotEmpty(t, files)
	all := numbers(t, func(string) bool { return true }, files...)
	require.NotEmpty(t, all)
	return all
}

func TestLayoutOfOneNumberStaysAsItIs(t *testing.T) {
	have := map[string][]byte{"layout.json": indented(t, currentLayout(t))}
	for name, f := range structFiles(t) {
		have[name] = indented(t, f)
	}
	changed := func(change func(f *layoutFile)) []string {
		f := layoutIn(t, have)
		change(&f)
		want := map[string][]byte{}
		for name, text := range have {
			want[name] = text
		}
		want["layout.json"] = indented(t, f)
		return layoutChanges(t, have, want)
	}
	assert.Empty(t, changed(func(f *layoutFile) {}))
	assert.Empty(t, changed(func(f *layoutFile) { f.Constants["DefaultLinger"] = "61" }))
	assert.Empty(t, changed(func(f *layoutFile) { f.BrokerAlone["more"] = "0" }))
	for what, change := range map[string]func(f *layoutFile){
		"SlotSize":                     func(f *layoutFile) { f.Constants["SlotSize"] = "48" },
		"SlotOrdered":                  func(f *layoutFile) { delete(f.Constants, "SlotOrdered") },
		"Slot":                         func(f *layoutFile) { specIn(f, "Slot").Fields[1].Offset++ },
		"Lane":                         func(f *layoutFile) { specIn(f, "Lane").Size += 64 },
		"a word":                       func(f *layoutFile) { f.Words[0].Parts[0].Bits-- },
		"a file":                       func(f *layoutFile) { f.Files = f.Files[1:] },
		"joinSize, the broker's alone": func(f *layoutFile) { f.BrokerAlone["joinSize"] = "48" },
		"the number itself":            func(f *layoutFile) { f.Layout-- },
	} {
		assert.Equal(t, []string{what}, changed(change))
		assert.Empty(t, changed(func(f *layoutFile) { change(f); f.Layout = protocol.Layout + 1 }), "with a new number")
	}
	other := map[string][]byte{"layout.json": have["layout.json"]}
	assert.Len(t, layoutChanges(t, other, have), 0, "examples may be added")
	assert.NotEmpty(t, layoutChanges(t, have, other), "but not taken away")
}

func specIn(f *layoutFile, name string) *structSpec {
	return f.Structs[slices.IndexFunc(f.Structs, func(s *structSpec) bool { return s.Name == name })]
}
