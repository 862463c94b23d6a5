package protocol_test

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

const aDescription = `{"parameters":[{"name":"x","type":"tensor"},{"name":"mean","type":"float","default":0.5}],"returns":"tensor"}`

func exampleCalls() map[string]*protocol.Call {
	request := protocol.Call{Kind: protocol.CallRequest, Number: 7, Deadline: 123456789012345, Topic: 5, TopicID: 33, Token: instance()}
	full := request
	full.Flags, full.Window, full.Object = protocol.CallTakesParts, 16, 3
	full.Args = []protocol.CallArg{{Code: protocol.ArgTensor}, {Code: protocol.ArgNone}, protocol.Int(-3), protocol.Bool(true),
		{Name: "mean", Code: protocol.ArgFloat, Value: protocol.Float(0.5).Value}, {Name: "größe", Code: protocol.ArgStr, Text: "ä"},
		{Code: protocol.ArgBytes, Text: "\x00\xff"}, {Name: "nested", Code: protocol.ArgTree}, {Code: protocol.ArgDType, Value: 2 | 32<<8 | 1<<16},
		{Code: protocol.ArgDevice, Value: 2 | 1<<32}}
	full.Chain = []protocol.CallLink{{TopicID: 30, Slot: 3}, {TopicID: 31, Slot: 4095}}
	return map[string]*protocol.Call{
		"no arguments":  &request,
		"of each kind":  &full,
		"a result":      {Kind: protocol.CallReply, Number: 7, Deadline: 123456789000000, Args: []protocol.CallArg{protocol.Int(1 << 62)}},
		"an error":      {Kind: protocol.CallReply, Flags: protocol.CallFailed, Number: 7, Args: []protocol.CallArg{{Name: "kind", Code: protocol.ArgStr, Text: "ValueError"}, {Name: "message", Code: protocol.ArgStr, Text: "bad value 3"}, {Name: "trace", Code: protocol.ArgStr}}},
		"a second part": {Kind: protocol.CallReply, Flags: protocol.CallPart, Number: 7, Topic: 1, Args: []protocol.CallArg{{Code: protocol.ArgTensor}}},
	}
}

func callCases(t *testing.T) (cases []structCase) {
	for _, name := range []string{"no arguments", "of each kind", "a result", "an error", "a second part"} {
		b, err := exampleCalls()[name].Append(nil)
		require.NoError(t, err)
		cases = append(cases, exampleBytes(name, "Call", b, callTail(t, b)))
	}
	return cases
}

func parseCall(b []byte) (*protocol.Call, error) {
	c := &protocol.Call{}
	return c, c.Parse(b)
}

func le64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

func callTail(t *testing.T, b []byte) any {
	c, err := parseCall(b)
	require.NoError(t, err)
	args, chain := []any{}, []any{}
	for _, a := range c.Args {
		args = append(args, fieldValues{"name": a.Name, "code": a.Code, "n": a.N, "value": number("u64", le64(a.Value)), "text": hex.EncodeToString([]byte(a.Text))})
	}
	for _, l := range c.Chain {
		chain = append(chain, fieldValues{"topic_id": number("u64", le64(l.TopicID)), "slot": l.Slot})
	}
	return map[string]any{"args": args, "chain": chain}
}

func TestCallReadsAsItWasWritten(t *testing.T) {
	for name, c := range exampleCalls() {
		b, err := c.Append([]byte("before"))
		require.NoError(t, err)
		got, err := parseCall(b[6:])
		require.NoError(t, err, name)
		if c.Args == nil {
			c.Args = []protocol.CallArg{}
		}
		assert.Equal(t, c, got, name)
	}
}

func TestEachBitOfACallThatIsNotOfThisVersionIsRefused(t *testing.T) {
	b, err := exampleCalls()["of each kind"].Append(nil)
	require.NoError(t, err)
	for n := range len(b) {
		_, err := parseCall(b[:n])
		assert.Equal(t, protocol.CodeProtocol, protocol.CodeOf(err), "%d bytes", n)
	}
	// A record has one form: what another one reads as is written so.
	for i := range len(b) * 8 {
		other := append([]byte(nil), b...)
		other[i/8] ^= 1 << (i % 8)
		c, err := parseCall(other)
		if err != nil {
			assert.Equal(t, protocol.CodeProtocol, protocol.CodeOf(err))
			continue
		}
		again, err := c.Append(nil)
		require.NoError(t, err)
		assert.Equal(t, other, again, "bit %d", i)
	}
}

func TestCallsThatHaveNoWireFormAreRefused(t *testing.T) {
	for name, c := range map[string]*protocol.Call{
		"arguments": {Args: make([]protocol.CallArg, 1<<16)},
		"chain":     {Chain: make([]protocol.CallLink, protocol.MaxCallChain+1)},
		"name":      {Args: []protocol.CallArg{{Name: strings.Repeat("n", 1<<16)}}},
	} {
		_, err := c.Append(nil)
		assert.Equal(t, protocol.CodeInvalid, protocol.CodeOf(err), name)
	}
}
