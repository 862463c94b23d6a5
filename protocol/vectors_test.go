package protocol_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden vectors anew")

const vectorsDir = "testdata/v1"

// TestVectors compares the golden vectors with what this code makes, and then
// reads them as any other language would. With -update it writes them first.
func TestVectors(t *testing.T) {
	want := map[string][]byte{"layout.json": indented(t, currentLayout(t))}
	for name, f := range structFiles(t) {
		want[name] = indented(t, f)
	}
	want["structs/refcount_word.json"] = indented(t, refcountCases())
	for name, f := range messageFiles(t) {
		want[name] = indented(t, f)
	}
	for name, f := range textFiles(t) {
		want[name] = indented(t, f)
	}
	for name, f := range rejectFiles(t) {
		want[name] = indented(t, f)
	}
	if *update {
		checkMoved(t, want)
		writeVectors(t, want)
	}
	t.Run("are what this code makes", func(t *testing.T) {
		assert.ElementsMatch(t, slices.Collect(maps.Keys(want)), vectorNames(t), "make vectors writes them anew")
		for _, name := range slices.Sorted(maps.Keys(want)) {
			have, err := os.ReadFile(filepath.Join(vectorsDir, name))
			require.NoError(t, err)
			assert.True(t, bytes.Equal(want[name], have), "%s differs from what this code makes: the protocol has changed, or make vectors was forgotten", name)
		}
	})
	t.Run("structs", checkStructVectors)
	t.Run("messages", checkMessageVectors)
	t.Run("texts", checkTextVectors)
	t.Run("reject", checkRejectVectors)
}

func indented(t *testing.T, v any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	require.NoError(t, e.Encode(v))
	return out.Bytes()
}

func writeVectors(t *testing.T, files map[string][]byte) {
	for _, name := range vectorNames(t) {
		if _, keep := files[name]; !keep {
			require.NoError(t, os.Remove(filepath.Join(vectorsDir, name)))
		}
	}
	for name, text := range files {
		path := filepath.Join(vectorsDir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, text, 0o644))
	}
}

// vectorNames lists the vectors that there are.
func vectorNames(t *testing.T) []string {
	var out []string
	err := fs.WalkDir(os.DirFS("."), vectorsDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".json" {
			out = append(out, strings.TrimPrefix(path, vectorsDir+"/"))
		}
		return err
	})
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return out
}

// readVectors reads every file of a folder as T; there must be some.
func readVectors[T any](t *testing.T, folder string, only ...string) map[string]T {
	t.Helper()
	out := map[string]T{}
	for _, name := range vectorNames(t) {
		base := strings.TrimSuffix(filepath.Base(name), ".json")
		if filepath.Dir(name) != folder || len(only) > 0 && !slices.Contains(only, base) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(vectorsDir, name))
		require.NoError(t, err)
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		d.DisallowUnknownFields()
		var f T
		require.NoError(t, d.Decode(&f), name)
		out[base] = f
	}
	require.NotEmpty(t, out, "no vectors in %s", folder)
	return out
}

func unhex(t *testing.T, text string, size int) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	require.NoError(t, err)
	if n := size - len(b); n > 0 {
		b = append(b, make([]byte, n)...)
	}
	return b
}

// sameJSON compares values by what they are as JSON.
func sameJSON(t *testing.T, want, have any, msg ...any) {
	t.Helper()
	a, err := json.Marshal(want)
	require.NoError(t, err)
	b, err := json.Marshal(have)
	require.NoError(t, err)
	assert.JSONEq(t, string(a), string(b), msg...)
}

func checkStructVectors(t *testing.T) {
	var onDisk layoutFile
	text, err := os.ReadFile(filepath.Join(vectorsDir, "layout.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &onDisk))
	known := map[string]*structSpec{}
	for _, s := range onDisk.Structs {
		known[s.Name] = s
	}
	seen := map[string]bool{}
	all := readVectors[json.RawMessage](t, "structs")
	for base := range all {
		if base == "refcount_word" {
			checkRefcountVectors(t)
			continue
		}
		f := readVectors[structFile](t, "structs", base)[base]
		s := known[f.Struct]
		require.NotNil(t, s, "%s is of the unknown structure %s", base, f.Struct)
		require.NotEmpty(t, f.Cases, base)
		seen[f.Struct] = true
		for _, c := range f.Cases {
			b := unhex(t, c.Hex, c.Bytes)
			name := base + ": " + c.Name
			require.Len(t, b, c.Bytes, name)
			sameJSON(t, c.Fields, s.read(b), name)
			if s.Varies {
				sameJSON(t, c.Tail, readTail(t, s.Name, b), name)
			} else {
				assert.Equal(t, s.Size, c.Bytes, name)
			}
		}
	}
	for name := range known {
		if name != "GroupRecord" && name != "LaneRecord" { // in TopicRecord
			assert.True(t, seen[name], "no example of %s", name)
		}
	}
}

// readTail reads what follows a structure's fixed part with the code that reads
// it in earnest.
func readTail(t *testing.T, name string, b []byte) any {
	t.Helper()
	switch name {
	case "GroupArea":
		return groupTail(b, groupSlots(len(b)))
	case "TensorDesc":
		head := make([]byte, protocol.BodySize)
		put32(protocol.BodyTensors, 1)(head)
		put32(protocol.BodyTable, uint32(len(b)))(head)
		body := parseBody(t, append(head, b...))
		return tensorTail(&body.Tensors[0])
	case "Call":
		return callTail(t, b)
	case "Body":
		return bodyValue(parseBody(t, b))
	case "Spill":
		refs, body, err := protocol.ParseSpill(b)
		require.NoError(t, err)
		return messageTail(refs, parseBody(t, body))
	case "Slot":
		return slotTail(t, b)
	case "Lane":
		stride := int(word(b, protocol.LaneStride) & 0xffffffff)
		slots := int(word(b, protocol.LaneSlots) & 0xffffffff)
		require.Equal(t, int(protocol.LaneBytes(uint32(slots), uint32(stride))), len(b))
		out := []any{}
		for i := range slots {
			slot := b[protocol.LaneSlotsAt+i*stride:][:stride]
			out = append(out, map[string]any{"fields": structNamed("Slot").read(slot), "tail": slotTail(t, slot)})
		}
		return map[string]any{"slots": out}
	}
	t.Fatalf("no reader of the tail of %s", name)
	return nil
}

// groupSlots is the number of claims that fill an area of n bytes.
func groupSlots(n int) int { return (n - protocol.GroupClaims) / 8 }

func slotTail(t *testing.T, b []byte) any {
	t.Helper()
	refs, err := protocol.ParseRefs(nil, b[protocol.SlotSize:], int(word(b, protocol.SlotNref)&0xffff))
	require.NoError(t, err)
	at := protocol.SlotSize + len(refs)*protocol.RefSize
	n := int(word(b, protocol.SlotBody) & 0xffffffff)
	if n == 0 {
		return messageTail(refs, nil)
	}
	body := parseBody(t, b[at:at+n])
	require.NoError(t, body.CheckRefs(len(refs)))
	require.Len(t, body.Tensors, int(word(b, protocol.SlotTensors)&0xffff))
	return messageTail(refs, body)
}

// parseBody reads a body and writes it again, which must give the same bytes.
func parseBody(t *testing.T, b []byte) *protocol.Body {
	t.Helper()
	body, err := protocol.ParseBody(b)
	require.NoError(t, err)
	require.Equal(t, b, appendBody(t, body))
	return body
}

func checkRefcountVectors(t *testing.T) {
	f := readVectors[refcountFile](t, "structs", "refcount_word")["refcount_word"]
	require.NotEmpty(t, f.Cases)
	sameJSON(t, refcountCases(), f)
	for _, c := range f.Cases {
		after := word(unhex(t, c.Hex, 8), 0)
		sameJSON(t, []any{c.After, c.Sequence}, []any{number("u64", unhex(t, c.Hex, 8)), number("u64", le(after>>protocol.CountBits))}, c.Name)
		assert.Equal(t, c.Count, int(after&protocol.CountMask), c.Name)
	}
}

func le(n uint64) []byte {
	b := make([]byte, 8)
	putNumber(b, n)
	return b
}
