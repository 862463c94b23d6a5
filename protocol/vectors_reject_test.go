package protocol_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// rejectCase is what every language refuses with the same error code: bytes as
// hex, or text. Hex is the start of Bytes bytes where that is given; the rest
// is zero.
type rejectCase struct {
	Name  string   `json:"name"`
	Text  *string  `json:"text,omitempty"`
	Hex   *string  `json:"hex,omitempty"`
	Bytes int      `json:"bytes,omitempty"`
	Count *int     `json:"count,omitempty"` // of refs
	Names []string `json:"names,omitempty"` // of tensors, for trees
	Error string   `json:"error"`
}

type rejectFile struct {
	Kind  string       `json:"kind"`
	Cases []rejectCase `json:"cases"`
}

func (f *rejectFile) text(name, text string) {
	f.Cases = append(f.Cases, rejectCase{Name: name, Text: &text})
}

func (f *rejectFile) hex(name string, b []byte) {
	c := rejectCase{Name: name, Hex: pointer(hex.EncodeToString(b))}
	if short := trimmed(b); len(short) < len(b) {
		c.Hex, c.Bytes = pointer(hex.EncodeToString(short)), len(b)
	}
	f.Cases = append(f.Cases, c)
}

func rejectFiles(t *testing.T) map[string]*rejectFile {
	out := map[string]*rejectFile{}
	for kind, x := range map[string]struct {
		code protocol.Code
		fill func(*testing.T, *rejectFile)
	}{
		"body":      {protocol.CodeProtocol, rejectBodies},
		"refs":      {protocol.CodeProtocol, rejectRefs},
		"spill":     {protocol.CodeProtocol, rejectSpills},
		"frame":     {protocol.CodeProtocol, rejectFrames},
		"tree":      {protocol.CodeProtocol, rejectTrees},
		"handle":    {protocol.CodeHandle, rejectHandles},
		"tuple":     {protocol.CodeHandle, rejectTuples},
		"reference": {protocol.CodeHandle, rejectReferences},
		"name":      {protocol.CodeInvalid, rejectNames},
		"namespace": {protocol.CodeInvalid, rejectNamespaces},
	} {
		f := &rejectFile{Kind: kind}
		x.fill(t, f)
		for i := range f.Cases {
			f.Cases[i].Error = string(x.code)
		}
		out["reject/"+kind+".json"] = f
	}
	return out
}

func put16(at int, n uint16) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint16(b[at:], n) }
}
func put32(at int, n uint32) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], n) }
}
func put64(at int, n uint64) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], n) }
}

func rejectBodies(t *testing.T, f *rejectFile) {
	const desc = protocol.BodySize
	whole := &protocol.Body{Tensors: []protocol.Tensor{exampleTensors()["strided"]}, Tree: []byte(`[1]`), Meta: []byte(`{}`)}
	whole.Tensors[0].Name = "abc"
	wire := appendBody(t, whole)
	f.hex("empty", nil)
	f.hex("shorter than its head", wire[:15])
	f.hex("last byte missing", wire[:len(wire)-1])
	f.hex("one byte too many", append(append([]byte(nil), wire...), '1'))
	for _, c := range []struct {
		name   string
		change func([]byte)
	}{
		{"table length overflows", put32(protocol.BodyTable, math.MaxUint32)},
		{"tree length overflows", put32(protocol.BodyTree, math.MaxUint32)},
		{"meta length overflows", put32(protocol.BodyMeta, math.MaxUint32)},
		{"table one byte longer, tree one shorter", func(b []byte) {
			b[protocol.BodyTable]++
			b[protocol.BodyTree]--
		}},
		{"more tensors than the table holds", put32(protocol.BodyTensors, 2)},
		{"number of tensors overflows", put32(protocol.BodyTensors, math.MaxUint32)},
		{"fewer tensors than the table holds", put32(protocol.BodyTensors, 0)},
		{"description of size 0", put16(desc+protocol.DescSize, 0)},
		{"description past the table", put16(desc+protocol.DescSize, 0xfff8)},
		{"description size not a multiple of 8", func(b []byte) { b[desc+protocol.DescSize]-- }},
		{"65 dimensions", put16(desc+protocol.DescNdim, 65)},
		{"dimensions beyond size", put16(desc+protocol.DescNdim, 64)},
		{"name beyond size", put16(desc+protocol.DescName, 0xffff)},
		{"name into the padding and past it", put16(desc+protocol.DescName, 9)},
		{"unknown flag", put16(desc+protocol.DescFlags, 4|protocol.DescStrides)},
		{"strides flag away", put16(desc+protocol.DescFlags, 0)},
		{"reserved field", put16(desc+protocol.DescFlags+2, 1)},
		{"padding", func(b []byte) { b[desc+protocol.DescShape+32+3] = 1 }},
		{"negative dimension", put64(desc+protocol.DescShape, 1<<63)},
		{"elements without storage", put16(desc+protocol.DescRef, protocol.NoRef)},
		{"name not UTF-8", func(b []byte) { b[desc+protocol.DescShape+32] = 0xff }},
	} {
		damaged := append([]byte(nil), wire...)
		c.change(damaged)
		f.hex(c.name, damaged)
	}
	// A name past the table, and a size to match.
	past := appendBody(t, &protocol.Body{Tensors: []protocol.Tensor{{Shape: []int64{1}}}})
	put16(desc+protocol.DescName, 64)(past)
	put16(desc+protocol.DescSize, protocol.DescShape+8+64)(past)
	f.hex("name past the table, size to match", past)
	// 65 dimensions where all sizes agree with one another.
	shape := make([]int64, protocol.MaxNdim)
	grown := append(appendBody(t, &protocol.Body{Tensors: []protocol.Tensor{{Shape: shape}}}), make([]byte, 8)...)
	put32(protocol.BodyTable, uint32(len(grown)-protocol.BodySize))(grown)
	put16(desc+protocol.DescSize, uint16(len(grown)-protocol.BodySize))(grown)
	put16(desc+protocol.DescNdim, protocol.MaxNdim+1)(grown)
	f.hex("65 dimensions, sizes to match", grown)
}

func rejectRefs(t *testing.T, f *rejectFile) {
	add := func(name string, count int, b []byte) {
		f.hex(name, b)
		f.Cases[len(f.Cases)-1].Count = &count
	}
	wire := protocol.AppendRefs(nil, exampleRefs)
	add("one missing", 3, wire)
	add("cut", 2, wire[:47])
	for _, c := range []struct {
		name   string
		change func([]byte)
	}{
		{"index of no storage", put32(protocol.RefIndex, protocol.MaxStorages)},
		{"reserved field", put32(protocol.RefIndex+4, 1)},
		{"generation of 53 bits", put64(protocol.RefGeneration, protocol.GenerationMask+1)},
		{"generation with the mark of retiring", put64(protocol.RefGeneration, protocol.Retiring|1)},
		{"no serial", put64(protocol.RefSerial, 0)},
	} {
		damaged := append([]byte(nil), wire...)
		c.change(damaged[protocol.RefSize:])
		add(c.name, 2, damaged)
	}
}

func rejectSpills(t *testing.T, f *rejectFile) {
	wire, err := protocol.AppendSpill(nil, exampleRefs, appendBody(t, exampleBodies()["one tensor"]))
	require.NoError(t, err)
	f.hex("empty", nil)
	f.hex("shorter than its head", wire[:15])
	f.hex("last byte missing", wire[:len(wire)-1])
	for _, c := range []struct {
		name   string
		change func([]byte)
	}{
		{"magic", func(b []byte) { b[0]++ }},
		{"more refs than fit", put32(protocol.SpillNref, 5)},
		{"number of refs overflows", put32(protocol.SpillNref, math.MaxUint32)},
		{"number of refs overflows 32 bits of bytes", put32(protocol.SpillNref, 178956971)},
		{"body longer than fits", func(b []byte) { b[protocol.SpillBody]++ }},
		{"more refs than fit, and no body", func(b []byte) { b[protocol.SpillNref], b[protocol.SpillBody] = 6, 0 }},
		{"body length overflows", put32(protocol.SpillBody, math.MaxUint32)},
		{"ref of no storage", put32(protocol.SpillSize+protocol.RefIndex, protocol.MaxStorages)},
	} {
		damaged := append([]byte(nil), wire...)
		c.change(damaged)
		f.hex(c.name, damaged)
	}
}

func rejectFrames(t *testing.T, f *rejectFile) {
	head := func(length uint32, fds, reserved uint16) []byte {
		b := binary.LittleEndian.AppendUint32(nil, length)
		return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, fds), reserved)
	}
	f.hex("half a head", head(2, 0, 0)[:4])
	f.hex("no object fits", head(1, 0, 0))
	f.hex("one byte above the limit", head(protocol.MaxFrame+1, 0, 0))
	f.hex("a gigabyte", head(1<<30, 0, 0))
	f.hex("length overflows", head(math.MaxUint32, 0, 0))
	f.hex("one descriptor above the limit", head(2, protocol.MaxFrameFDs+1, 0))
	f.hex("most descriptors", head(2, math.MaxUint16, 0))
	f.hex("reserved field", head(2, 0, 1))
}

// changed gives text with one part of it replaced.
func changed(t *testing.T, text, from, to string) string {
	t.Helper()
	require.Contains(t, text, from)
	return strings.Replace(text, from, to, 1)
}

func rejectHandles(t *testing.T, f *rejectFile) {
	h := goodHandle()
	h.Host = host
	good, err := json.Marshal(h)
	require.NoError(t, err)
	text := string(good)
	f.text("empty", "")
	f.text("null", "null")
	f.text("a list", "[]")
	f.text("no fields", "{}")
	f.text("end missing", text[:len(text)-1])
	f.text("more after it", text+"{}")
	f.text("comma at the end", text[:len(text)-1]+",}")
	f.text("longer than 16 KiB", text[:len(text)-1]+`,"pad":"`+strings.Repeat("x", protocol.MaxHandle)+`"}`)
	for _, c := range [][3]string{
		{"version 2", `"v":1`, `"v":2`},
		{"version as text", `"v":1`, `"v":"1"`},
		{"no version", `"v":1,`, ``},
		{"host away", `"host":"` + host + `",`, ``},
		{"host with a dot", host, "a.b"},
		{"host null", `"` + host + `"`, `null`},
		{"field in capitals", `"segment"`, `"Segment"`},
		{"field twice", `"serial":41`, `"serial":41,"serial":41`},
		{"segment 0", `"segment":7`, `"segment":0`},
		{"segment of 2^53", `"segment":7`, `"segment":9007199254740992`},
		{"serial 0", `"serial":41`, `"serial":0`},
		{"serial with a point", `"serial":41`, `"serial":41.0`},
		{"serial with an exponent", `"serial":41`, `"serial":41e0`},
		{"serial with a leading zero", `"serial":41`, `"serial":041`},
		{"serial negative", `"serial":41`, `"serial":-41`},
		{"serial minus zero", `"serial":41`, `"serial":-0`},
		{"serial as text", `"serial":41`, `"serial":"41"`},
		{"serial of 2^64", `"serial":41`, `"serial":18446744073709551616`},
		{"index of no storage", `"index":300`, `"index":4194304`},
		{"index of 2^32", `"index":300`, `"index":4294967296`},
		{"generation of 2^52", `"generation":12`, `"generation":4503599627370496`},
		{"offset and bytes beyond 2^53", `"offset":4096`, `"offset":9007199254740970`},
		{"bytes true", `"bytes":24`, `"bytes":true`},
		{"dtype empty", `"float32"`, `""`},
		{"dtype in capitals", `"float32"`, `"Float32"`},
		{"dtype too long", `"float32"`, `"` + strings.Repeat("f", protocol.MaxDType+1) + `"`},
		{"negative dimension", `[2,3]`, `[2,-3]`},
		{"dimension of 2^53", `[2,3]`, `[2,9007199254740992]`},
		{"dimension with a point", `[2,3]`, `[2,3.0]`},
		{"65 dimensions", `[2,3]`, `[1` + strings.Repeat(",1", 64) + `]`},
		{"shape null", `[2,3]`, `null`},
		{"one stride too few", `"strides":null`, `"strides":[1]`},
		{"stride of -2^53", `"strides":null`, `"strides":[1,-9007199254740992]`},
		{"strides away", `"strides":null,`, ``},
		{"byte_offset beyond bytes", `"byte_offset":0`, `"byte_offset":25`},
		{"other device", `"cpu"`, `"tpu:0"`},
		{"device in capitals", `"cpu"`, `"CPU"`},
		{"cuda without number", `"cpu"`, `"cuda"`},
		{"cuda with empty number", `"cpu"`, `"cuda:"`},
		{"cuda with leading zero", `"cpu"`, `"cuda:00"`},
		{"cuda negative", `"cpu"`, `"cuda:-1"`},
		{"cuda of 2^31", `"cpu"`, `"cuda:2147483648"`},
		{"readonly 0", `"readonly":false`, `"readonly":0`},
		{"lease 0", `"lease":null`, `"lease":0`},
		{"lease as text", `"lease":null`, `"lease":"5"`},
		{"lease away", `,"lease":null`, ``},
		{"elements without storage", `"segment":7,"serial":41,"index":300,"generation":12,"offset":4096,"bytes":24`, `"segment":0,"serial":0,"index":0,"generation":0,"offset":0,"bytes":0`},
	} {
		f.text(c[0], changed(t, text, c[1], c[2]))
	}
	f.hex("not UTF-8", []byte(changed(t, text, `"v":1`, "\"v\":1,\"\xff\":1")))
}

func rejectTuples(t *testing.T, f *rejectFile) {
	good, err := json.Marshal(goodTuple())
	require.NoError(t, err)
	text := string(good)
	f.text("empty", "")
	f.text("a list", "[]")
	f.text("end missing", text[:len(text)-1])
	for _, c := range [][3]string{
		{"version 2", `"v":1`, `"v":2`},
		{"topic with an empty token", "batches/train", "batches//train"},
		{"topic with a wildcard", "batches/train", "batches/*"},
		{"no sender", `"sender":"loader",`, ``},
		{"sequence 0", `"sequence":41`, `"sequence":0`},
		{"stamp negative", `"stamp":1234567`, `"stamp":-1`},
		{"lost as text", `"lost":2`, `"lost":"2"`},
		{"field twice", `"lost":2`, `"lost":2,"lost":2`},
		{"meta is no JSON", `{"epoch":3}`, `{epoch:3}`},
		{"value away", `"value":[{"$":"tensor","i":0}],`, ``},
		{"tensor without a name", `"name":"0",`, ``},
		{"handle that is none", `"cpu"`, `"tpu"`},
		{"handle with a lease", `"lease":null`, `"lease":5`},
		{"handle of another host", `"handle":{"v":1,"host":"5f`, `"handle":{"v":1,"host":"60`},
		{"nested too deep", `[{"$":"tensor","i":0}]`, strings.Repeat("[", 150) + strings.Repeat("]", 150)},
		{"pid as text", `"stamp"`, `"pid":"17","stamp"`},
		{"pid beyond 31 bits", `"stamp"`, `"pid":2147483648,"stamp"`},
		{"pid twice", `"stamp"`, `"pid":1,"pid":1,"stamp"`},
		{"machine with a space", `"stamp"`, `"machine":"a b","stamp"`},
		{"host name null", `"stamp"`, `"host_name":null,"stamp"`},
	} {
		f.text(c[0], changed(t, text, c[1], c[2]))
	}
	reference, err := json.Marshal(goodReference())
	require.NoError(t, err)
	f.text("a reference", string(reference))
}

func rejectReferences(t *testing.T, f *rejectFile) {
	good, err := json.Marshal(goodReference())
	require.NoError(t, err)
	text := string(good)
	f.text("empty", "")
	tuple, err := json.Marshal(goodTuple())
	require.NoError(t, err)
	f.text("a tuple", string(tuple))
	for _, c := range [][3]string{
		{"version 2", `"v":1`, `"v":2`},
		{"topic with a wildcard", `"weights/actor"`, `"weights/*"`},
		{"revision 0", `"sequence":7`, `"sequence":0`},
		{"subject with a wildcard", `.names.weights`, `.*.weights`},
		{"subject with an empty token", `.names.weights`, `..weights`},
		{"no subject", `"subject":`, `"place":`},
		{"subject twice", `"bytes":3000000`, `"bytes":3000000,"bytes":3000000`},
		{"no bytes", `"bytes":3000000`, `"bytes":0`},
		{"more bytes than a tuple has", `"bytes":3000000`, `"bytes":67108865`},
		{"tensors negative", `"tensors":9000`, `"tensors":-1`},
		{"longer than any", `"stamp"`, `"later":"` + strings.Repeat("x", 16<<10) + `","stamp"`},
	} {
		f.text(c[0], changed(t, text, c[1], c[2]))
	}
}

func rejectTrees(t *testing.T, f *rejectFile) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range [][2]string{
		{"white space only", " "},
		{"end missing", `[1`},
		{"comma at the end", `[1,]`},
		{"more after it", `[] []`},
		{"word cut", `tru`},
		{"key without quotes", `{a:1}`},
		{"key twice", `{"a":1,"a":2}`},
		{"nested 101 deep", deep(protocol.MaxTreeDepth + 1)},
		{"nested 100,000 deep", strings.Repeat("[", 100000)},
		{"integer beyond 2^53", `9007199254740992`},
		{"integer minus zero", `-0`},
		{"leading zero", `01`},
		{"plus", `+1`},
		{"point without digits", `1.`},
		{"exponent without digits", `1e`},
		{"float beyond 64 bits", `1e999`},
		{"NaN", `NaN`},
		{"Infinity", `-Infinity`},
		{"control character in text", "\"a\nb\""},
		{"unknown escape", `"\x41"`},
		{"half a surrogate pair", `"\ud800"`},
		{"pair in the wrong order", `"\ude00\ud83d"`},
		{"escape cut", `"\u12`},
		{"escape of no hex", `"\u12g4"`},
		{"unknown tag", `{"$":"set","v":[]}`},
		{"tag in capitals", `{"$":"Tuple","v":[]}`},
		{"tag that is no text", `{"$":1,"v":[]}`},
		{"tag with more members", `{"$":"tuple","v":[],"w":1}`},
		{"tag without its value", `{"$":"tuple"}`},
		{"tensor without number", `{"$":"tensor","v":0}`},
		{"tensor with negative number", `{"$":"tensor","i":-1}`},
		{"tensor with a float", `{"$":"tensor","i":0.0}`},
		{"tensor beyond 65535", `{"$":"tensor","i":65535}`},
		{"tuple that is no list", `{"$":"tuple","v":{}}`},
		{"bytes that are no text", `{"$":"bytes","v":1}`},
		{"bytes without padding", `{"$":"bytes","v":"AA"}`},
		{"bytes with loose bits", `{"$":"bytes","v":"AB=="}`},
		{"bytes with a line end", `{"$":"bytes","v":"AA\n=="}`},
		{"bytes in the alphabet for URLs", `{"$":"bytes","v":"AAH_"}`},
		{"tagged integer that needs no tag", `{"$":"int","v":"9007199254740991"}`},
		{"tagged integer with a leading zero", `{"$":"int","v":"09007199254740992"}`},
		{"tagged integer with a plus", `{"$":"int","v":"+9007199254740992"}`},
		{"tagged integer in hex", `{"$":"int","v":"0x9007199254740992"}`},
		{"tagged integer empty", `{"$":"int","v":"-"}`},
		{"tagged integer as a number", `{"$":"int","v":9007199254740992}`},
		{"tagged integer of 4097 digits", `{"$":"int","v":"` + strings.Repeat("9", protocol.MaxIntDigits+1) + `"}`},
		{"tagged float that is finite", `{"$":"float","v":"1.5"}`},
		{"tagged float in capitals", `{"$":"float","v":"NaN"}`},
		{"dict of a map", `{"$":"dict","v":{"a":1}}`},
		{"dict of three", `{"$":"dict","v":[[1,2,3]]}`},
		{"dict with a list as key", `{"$":"dict","v":[[[1],2]]}`},
		{"dict with a tensor as key", `{"$":"dict","v":[[{"$":"tensor","i":0},2]]}`},
		{"dict with a text key twice", `{"$":"dict","v":[["$",1],["$",2]]}`},
		{"dict with another key twice", `{"$":"dict","v":[[null,1],[null,2]]}`},
		{"tuple of a type without module", `{"$":"tuple","type":"Pair","fields":[],"v":[]}`},
		{"tuple of a type that is no text", `{"$":"tuple","type":null,"fields":[],"v":[]}`},
		{"tuple of a type without fields", `{"$":"tuple","type":"m:Pair","v":[1]}`},
		{"tuple of a type of fewer fields", `{"$":"tuple","type":"m:Pair","fields":["a"],"v":[1,2]}`},
		{"tuple of a type with a field that is no text", `{"$":"tuple","type":"m:Pair","fields":[1],"v":[1]}`},
		{"dataclass without type", `{"$":"dataclass","v":{}}`},
		{"dataclass without module", `{"$":"dataclass","type":"State","v":{}}`},
		{"dataclass of a list", `{"$":"dataclass","type":"m:State","v":[]}`},
	} {
		f.text(c[0], c[1])
	}
	f.hex("text that is not UTF-8", []byte("\"\xff\""))
	f.hex("control character after an escape", []byte("\"\\n\x01\""))
	f.hex("escaped text that is not UTF-8", []byte("\"\\n\xff\""))
	for _, names := range [][]string{{"", ""}, {"a", ""}, {"a", "a"}, {"a/b", "a~1b"}, {"a~"}, {"a~2"}} {
		f.text(fmt.Sprintf("no tree, tensors named %q", names), "")
		f.Cases[len(f.Cases)-1].Names = names
	}
}

func rejectNames(_ *testing.T, f *rejectFile) {
	f.text("empty", "")
	f.text("201 bytes", strings.Repeat("n", protocol.MaxName+1))
	for _, bad := range []string{"/", "/a", "a/", "a//b", "a.b", "*", "a/*", ">", "a b", "a\n", "a\x00", "ä", "a\\b", "$JS", "a:b", "\u200b"} {
		f.text(fmt.Sprintf("%+q", bad), bad)
	}
	f.hex("not UTF-8", []byte{'a', 0xff})
}

func rejectNamespaces(_ *testing.T, f *rejectFile) {
	f.text("empty", "")
	f.text("33 bytes", strings.Repeat("n", protocol.MaxNamespace+1))
	for _, bad := range []string{"a/b", "a.b", "*", ">", "a b", "ä"} {
		f.text(fmt.Sprintf("%+q", bad), bad)
	}
}
