package protocol_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func checkMessageVectors(t *testing.T) {
	ops, events := map[string]bool{}, map[string]bool{}
	for base := range readVectors[json.RawMessage](t, "messages") {
		if _, text := textCheckers[base]; text {
			continue
		}
		f := readVectors[messageFile](t, "messages", base)[base]
		require.NotEmpty(t, f.Cases, base)
		ops[f.Op], events[f.Event] = true, true
		for _, c := range f.Cases {
			name := base + ": " + c.Name
			if f.Event != "" {
				types, ok := eventTypes[f.Event]
				require.True(t, ok, "unknown event %s", f.Event)
				checkRoundTrip(t, name, c.Event, types, "event")
				continue
			}
			types, ok := opTypes[f.Op]
			require.True(t, ok, "unknown op %s", f.Op)
			checkRoundTrip(t, name, c.Request, types[0], "id", "op")
			checkReply(t, name, c, types[1])
		}
	}
	for op := range opTypes {
		assert.True(t, ops[op], "no example of op %s", op)
	}
	for event := range eventTypes {
		assert.True(t, events[event], "no example of event %s", event)
	}
	for name, value := range stringConstants(t, "messages.go") {
		switch {
		case len(name) > 2 && name[:2] == "Op":
			assert.Contains(t, opTypes, value)
		case len(name) > 5 && name[:5] == "Event":
			assert.Contains(t, eventTypes, value)
		}
	}
}

// checkRoundTrip reads an object into the Go type of it, which must know every
// key but those of the envelope, and writes it again.
func checkRoundTrip(t *testing.T, name string, text json.RawMessage, of any, envelope ...string) {
	t.Helper()
	var members map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &members), name)
	for _, key := range envelope {
		require.Contains(t, members, key, name)
		delete(members, key)
	}
	inner, err := json.Marshal(members)
	require.NoError(t, err)
	value := newOf(of)
	d := json.NewDecoder(bytes.NewReader(inner))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(value.Interface()), name)
	again, err := json.Marshal(value.Interface())
	require.NoError(t, err)
	assert.JSONEq(t, string(inner), string(again), name)
}

func checkReply(t *testing.T, name string, c messageCase, of any) {
	t.Helper()
	var request, reply protocol.Envelope
	require.NoError(t, json.Unmarshal(c.Request, &request))
	require.NoError(t, json.Unmarshal(c.Reply, &reply))
	assert.Equal(t, request.ID, reply.ID, name)
	if reply.Error == nil {
		checkRoundTrip(t, name, reply.OK, of)
		return
	}
	assert.Contains(t, knownCodes(t), string(reply.Error.Code), name)
	assert.NotEmpty(t, reply.Error.Message, name)
	assert.NotEmpty(t, reply.Error.Remedy, name)
	again, err := json.Marshal(reply)
	require.NoError(t, err)
	assert.JSONEq(t, string(c.Reply), string(again), name)
}

// textCheckers read one text of each kind and write it again.
var textCheckers = map[string]func(t *testing.T, c textCase, text string) string{
	"handle": func(t *testing.T, c textCase, text string) string {
		h, err := protocol.ParseHandle([]byte(text))
		require.NoError(t, err, text)
		again, err := json.Marshal(h)
		require.NoError(t, err)
		return string(again)
	},
	"tuple": func(t *testing.T, c textCase, text string) string {
		x, err := protocol.ParseTuple([]byte(text))
		require.NoError(t, err, text)
		again, err := json.Marshal(x)
		require.NoError(t, err)
		return string(again)
	},
	"reference": func(t *testing.T, c textCase, text string) string {
		x, err := protocol.ParseTupleReference([]byte(text))
		require.NoError(t, err, text)
		again, err := json.Marshal(x)
		require.NoError(t, err)
		return string(again)
	},
	"tree": func(t *testing.T, c textCase, text string) string {
		v, err := protocol.DecodeValue([]byte(text), c.Names, func(i int) (any, error) { return leaf{i}, nil })
		require.NoError(t, err, text)
		again, tensors, err := protocol.EncodeTree(v, isLeaf)
		require.NoError(t, err)
		assert.ElementsMatch(t, c.Names, names(tensors), text)
		return string(again)
	},
	"frame": func(t *testing.T, c textCase, text string) string {
		b := unhex(t, c.Hex, 0)
		n, fds, err := protocol.ParseFrameHead(b)
		require.NoError(t, err)
		assert.Equal(t, c.FDs, fds)
		require.Len(t, b, protocol.FrameHead+n)
		return string(b[protocol.FrameHead:])
	},
}

func checkTextVectors(t *testing.T) {
	for kind, check := range textCheckers {
		f := readVectors[textFile](t, "messages", kind)[kind]
		assert.Equal(t, kind, f.Kind)
		require.NotEmpty(t, f.Cases)
		for _, c := range f.Cases {
			for _, text := range append(c.Same, c.Text) {
				assert.Equal(t, c.Text, check(t, c, text), "%s: %s: %s", kind, c.Name, text)
			}
		}
	}
}

func checkRejectVectors(t *testing.T) {
	for base, f := range readVectors[rejectFile](t, "reject") {
		assert.Equal(t, base, f.Kind)
		require.NotEmpty(t, f.Cases, base)
		for _, c := range f.Cases {
			err := parseKind(t, f.Kind, c.bytes(t), c)
			var e *protocol.Error
			if assert.ErrorAs(t, err, &e, "%s: %s", base, c.Name) {
				assert.Equal(t, c.Error, string(e.Code), "%s: %s", base, c.Name)
				assert.NotEmpty(t, e.Message, "%s: %s", base, c.Name)
				assert.NotEmpty(t, e.Remedy, "%s: %s", base, c.Name)
			}
		}
	}
}

func (c *rejectCase) bytes(t *testing.T) []byte {
	t.Helper()
	require.True(t, (c.Text == nil) != (c.Hex == nil), "%s has text or hex, not both", c.Name)
	if c.Text != nil {
		return []byte(*c.Text)
	}
	return unhex(t, *c.Hex, c.Bytes)
}

// parseKind reads bytes as one kind of what other processes write.
func parseKind(t *testing.T, kind string, b []byte, c rejectCase) (err error) {
	t.Helper()
	switch kind {
	case "body":
		_, err = protocol.ParseBody(b)
	case "refs":
		require.NotNil(t, c.Count)
		_, err = protocol.ParseRefs(nil, b, *c.Count)
	case "spill":
		_, _, err = protocol.ParseSpill(b)
	case "frame":
		_, _, err = protocol.ParseFrameHead(b)
	case "tree":
		_, err = protocol.DecodeValue(b, c.Names, func(i int) (any, error) { return leaf{i}, nil })
	case "handle":
		_, err = protocol.ParseHandle(b)
	case "tuple":
		_, err = protocol.ParseTuple(b)
	case "reference":
		_, err = protocol.ParseTupleReference(b)
	case "name":
		err = protocol.CheckName(string(b))
	case "namespace":
		err = protocol.CheckNamespace(string(b))
	default:
		t.Fatalf("unknown kind %s", kind)
	}
	return err
}
