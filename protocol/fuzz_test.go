package protocol_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
)

// seeds adds the golden vectors of a kind: good ones, and those to be refused.
// The long ones are left to TestVectors: making variants of them shorter would
// take the fuzzer's time.
func seeds(f *testing.F, kind string, good ...string) {
	f.Helper()
	read := func(path string, to any) {
		text, err := os.ReadFile(filepath.Join(vectorsDir, path))
		if err == nil {
			err = json.Unmarshal(text, to)
		}
		if err != nil {
			f.Fatal(err)
		}
	}
	add := func(text string, bytes int) {
		b, err := hex.DecodeString(text)
		if err != nil {
			f.Fatal(err)
		}
		addShort(f, append(b, make([]byte, max(0, bytes-len(b)))...))
	}
	for _, name := range good {
		if strings.HasPrefix(name, "structs/") {
			var file structFile
			read(name, &file)
			for _, c := range file.Cases {
				add(c.Hex, c.Bytes)
			}
			continue
		}
		var file textFile
		read(name, &file)
		for _, c := range file.Cases {
			for _, text := range append(c.Same, c.Text) {
				addShort(f, []byte(text))
			}
		}
	}
	if kind == "" { // what is to be refused is made of good ones
		return
	}
	var file rejectFile
	read("reject/"+kind+".json", &file)
	for _, c := range file.Cases {
		if c.Text != nil {
			addShort(f, []byte(*c.Text))
		} else {
			add(*c.Hex, c.Bytes)
		}
	}
}

func addShort(f *testing.F, b []byte) {
	if len(b) <= 2048 {
		f.Add(b)
	}
}

// refused fails unless err is a refusal of this code.
func refused(t *testing.T, err error, code protocol.Code) {
	t.Helper()
	e, ok := err.(*protocol.Error)
	if !ok || e.Code != code || e.Message == "" || e.Remedy == "" {
		t.Fatalf("refused with %#v, not %s", err, code)
	}
}

func FuzzParseBody(f *testing.F) {
	seeds(f, "body", "structs/body.json")
	f.Fuzz(func(t *testing.T, src []byte) {
		body, err := protocol.ParseBody(src)
		var lone protocol.Tensor
		var dims [4]int64
		isLone := protocol.ParseLone(src, &lone, dims[:])
		if err != nil {
			refused(t, err, protocol.CodeProtocol)
			if isLone {
				t.Fatalf("parsed as %+v in spite of %v", lone, err)
			}
			return
		}
		if isLone && !reflect.DeepEqual(body, &protocol.Body{Tensors: []protocol.Tensor{lone}}) {
			t.Fatalf("parsed in two ways: %+v, %+v", body, lone)
		}
		if err := body.CheckRefs(3); err != nil {
			refused(t, err, protocol.CodeProtocol)
		}
		wire, err := protocol.AppendBody(nil, body)
		if err != nil || !bytes.Equal(wire, src) {
			t.Fatalf("written as %x, %v", wire, err)
		}
	})
}

func FuzzParseSpill(f *testing.F) {
	seeds(f, "spill", "structs/spill.json")
	f.Fuzz(func(t *testing.T, src []byte) {
		refs, body, err := protocol.ParseSpill(src)
		if err != nil {
			refused(t, err, protocol.CodeProtocol)
			return
		}
		wire, err := protocol.AppendSpill(nil, refs, body)
		if err != nil || !bytes.HasPrefix(src, wire) {
			t.Fatalf("written as %x, %v", wire, err)
		}
	})
}

func FuzzParseRefs(f *testing.F) {
	seeds(f, "refs", "structs/ref.json")
	f.Fuzz(func(t *testing.T, src []byte) {
		n := len(src) / protocol.RefSize
		refs, err := protocol.ParseRefs(nil, src, n)
		if err != nil {
			refused(t, err, protocol.CodeProtocol)
			return
		}
		if wire := protocol.AppendRefs(nil, refs); !bytes.Equal(wire, src[:n*protocol.RefSize]) {
			t.Fatalf("written as %x", wire)
		}
	})
}

func FuzzParseCall(f *testing.F) {
	seeds(f, "", "structs/call.json")
	for _, c := range exampleCalls() {
		b, err := c.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		for _, at := range []int{protocol.CallKind, protocol.CallFlags, protocol.CallNumber, protocol.CallArgs, protocol.CallChain, protocol.CallTexts,
			min(protocol.CallSize, len(b)-1), len(b) - 1} {
			other := bytes.Clone(b)
			other[at] ^= 0x80
			f.Add(other)
		}
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := parseCall(src)
		if err != nil {
			refused(t, err, protocol.CodeProtocol)
			return
		}
		wire, err := c.Append(nil)
		if err != nil || !bytes.Equal(wire, src) {
			t.Fatalf("written as %x, %v", wire, err)
		}
		// A record that is read where another one was has nothing of that one.
		used := protocol.Call{Args: []protocol.CallArg{{Name: "old", Code: protocol.ArgStr, Text: "old", N: 1, Value: 1}}, Chain: []protocol.CallLink{{TopicID: 1, Slot: 1}}}
		if err := used.Parse(src); err != nil || !reflect.DeepEqual(&used, c) {
			t.Fatalf("read as %+v, in place of another one as %+v, %v", c, used, err)
		}
	})
}

func FuzzParseFrameHead(f *testing.F) {
	seeds(f, "frame", "structs/frame_head.json")
	f.Fuzz(func(t *testing.T, src []byte) {
		length, fds, err := protocol.ParseFrameHead(src)
		if err != nil {
			refused(t, err, protocol.CodeProtocol)
			return
		}
		head, err := protocol.AppendFrameHead(nil, length, fds)
		if err != nil || !bytes.HasPrefix(src, head) {
			t.Fatalf("written as %x, %v", head, err)
		}
	})
}

func FuzzParseHandle(f *testing.F) {
	seeds(f, "handle", "messages/handle.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := protocol.ParseHandle(text)
		if err != nil {
			refused(t, err, protocol.CodeHandle)
			return
		}
		written, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		again, err := protocol.ParseHandle(written)
		if err != nil || !reflect.DeepEqual(h, again) {
			t.Fatalf("%s came back as %+v, %v", written, again, err)
		}
		if !json.Valid(text) {
			t.Fatalf("%s is no JSON for others", text)
		}
	})
}

func FuzzParseTuple(f *testing.F) {
	seeds(f, "tuple", "messages/tuple.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		x, err := protocol.ParseTuple(text)
		if err != nil {
			refused(t, err, protocol.CodeHandle)
			return
		}
		written, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		again, err := protocol.ParseTuple(written)
		if err != nil {
			t.Fatal(err)
		}
		// json.Marshal takes the spaces out of Meta and Value.
		if rewritten, err := json.Marshal(again); err != nil || !bytes.Equal(written, rewritten) {
			t.Fatalf("%s came back as %s, %v", written, rewritten, err)
		}
		if !json.Valid(text) {
			t.Fatalf("%s is no JSON for others", text)
		}
	})
}

func FuzzDecodeTree(f *testing.F) {
	seeds(f, "tree", "messages/tree.json")
	f.Fuzz(func(t *testing.T, tree []byte) {
		v, err := protocol.DecodeTree(tree, func(i int) (any, error) { return leaf{i}, nil })
		if err != nil {
			refused(t, err, protocol.CodeProtocol)
			return
		}
		if !json.Valid(tree) {
			t.Fatalf("%s is no JSON for others", tree)
		}
		written, tensors, err := protocol.EncodeTree(v, isLeaf)
		if err != nil {
			t.Fatalf("%s cannot be written: %v", tree, err)
		}
		again, err := protocol.DecodeValue(written, names(tensors), pick(tensors))
		if err != nil {
			t.Fatalf("%s, written as %s: %v", tree, written, err)
		}
		rewritten, others, err := protocol.EncodeTree(again, isLeaf)
		if err != nil || !bytes.Equal(written, rewritten) || !reflect.DeepEqual(tensors, others) {
			t.Fatalf("%s came back as %s, %v", written, rewritten, err)
		}
	})
}

var nameGrammar = regexp.MustCompile(`^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$`)

func FuzzCheckName(f *testing.F) {
	seeds(f, "name")
	f.Add([]byte("weights/actor"))
	f.Add([]byte(strings.Repeat("n", protocol.MaxName)))
	f.Fuzz(func(t *testing.T, name []byte) {
		err := protocol.CheckName(string(name))
		good := nameGrammar.Match(name) && !bytes.HasSuffix(name, []byte("\n")) && len(name) <= protocol.MaxName
		if (err == nil) != good {
			t.Fatalf("%q: %v", name, err)
		}
		if err != nil {
			refused(t, err, protocol.CodeInvalid)
			return
		}
		subject := protocol.TopicSubject("default", string(name))
		if strings.ContainsAny(subject, "*> \t\r\n") || strings.Contains(subject, "..") {
			t.Fatalf("%q gives the subject %q", name, subject)
		}
	})
}

func FuzzParseTupleReference(f *testing.F) {
	seeds(f, "reference", "messages/reference.json")
	f.Fuzz(func(t *testing.T, text []byte) {
		x, err := protocol.ParseTupleReference(text)
		if err != nil {
			refused(t, err, protocol.CodeHandle)
			return
		}
		written, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		again, err := protocol.ParseTupleReference(written)
		if err != nil || again != x {
			t.Fatalf("%+v came back as %+v, %v", x, again, err)
		}
		if _, err := protocol.ParseTuple(text); err == nil {
			t.Fatalf("%s is a tuple as well", text)
		}
	})
}
