package protocol

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Call is the record of a call's request or reply, which stands in the place of meta in the body
// (docs/protocol.md, Functions). Of a request Topic, TopicID and Token are those of the topic for
// replies; of a reply Topic is the number of the part, and Deadline when the function began.
type Call struct {
	Kind     uint32
	Flags    uint32
	Number   uint64
	Deadline uint64 // ns, CLOCK_MONOTONIC; 0: none
	Topic    uint32
	TopicID  uint64
	Token    [16]byte
	// Window is, of a request that takes parts, how many of them the provider may have sent that the
	// caller has not taken.
	Window uint32
	// Object is, of a request to a function that was an argument, its number among those of the
	// topic; 0 where the topic is the function.
	Object uint64
	Args   []CallArg
	Chain  []CallLink
}

// CallArg is one argument, or the result. Name is its parameter's, "" where it is given by position.
type CallArg struct {
	Name  string
	Code  uint8
	N     uint32 // of a tensor or an item of the tree
	Value uint64 // of a scalar
	Text  string // of a str or bytes
}

// CallLink is a call within which this one is made.
type CallLink struct {
	TopicID uint64
	Slot    uint32 // of the session that runs it
}

// Int is an argument that is an integer; Float and the others as they say.
func Int(v int64) CallArg { return CallArg{Code: ArgInt, Value: uint64(v)} }

// Float is an argument that is a float.
func Float(v float64) CallArg { return CallArg{Code: ArgFloat, Value: math.Float64bits(v)} }

// Bool is an argument that is a bool.
func Bool(v bool) CallArg {
	if v {
		return CallArg{Code: ArgBool, Value: 1}
	}
	return CallArg{Code: ArgBool}
}

// Str is an argument that is a text.
func Str(v string) CallArg { return CallArg{Code: ArgStr, Text: v} }

// Append writes the record behind b. It refuses what has no wire form. The refusal has CodeInvalid.
func (c *Call) Append(b []byte) ([]byte, error) {
	if len(c.Args) > math.MaxUint16 {
		return nil, Errorf(CodeInvalid, "put them into a list", "a call with %d arguments, at most %d fit", len(c.Args), math.MaxUint16)
	}
	if len(c.Chain) > MaxCallChain {
		return nil, Errorf(CodeInvalid, "look for functions that call one another without an end", "a call within %d others, at most %d fit", len(c.Chain), MaxCallChain)
	}
	texts := 0
	for i := range c.Args {
		if len(c.Args[i].Name) > math.MaxUint16 {
			return nil, Errorf(CodeInvalid, "use a shorter one", "a parameter's name of %d bytes", len(c.Args[i].Name))
		}
		texts += len(c.Args[i].Name) + len(c.Args[i].Text)
	}
	if texts > MaxBody {
		return nil, Errorf(CodeInvalid, "put large values into tensors: they are handed over uncopied", "a call with %d bytes of texts", texts)
	}
	var head [CallSize]byte
	le := binary.LittleEndian
	le.PutUint32(head[CallKind:], c.Kind)
	le.PutUint32(head[CallFlags:], c.Flags)
	le.PutUint64(head[CallNumber:], c.Number)
	le.PutUint64(head[CallDeadline:], c.Deadline)
	le.PutUint32(head[CallTopic:], c.Topic)
	le.PutUint16(head[CallArgs:], uint16(len(c.Args)))
	le.PutUint16(head[CallChain:], uint16(len(c.Chain)))
	le.PutUint64(head[CallTopicID:], c.TopicID)
	copy(head[CallToken:], c.Token[:])
	le.PutUint32(head[CallTexts:], uint32(texts))
	le.PutUint32(head[CallWindow:], c.Window)
	le.PutUint64(head[CallObject:], c.Object)
	b = append(b, head[:]...)
	for i := range c.Args {
		a := &c.Args[i]
		n := a.N
		if a.Code == ArgStr || a.Code == ArgBytes {
			n = uint32(len(a.Text))
		}
		b = append(b, a.Code, 0)
		b = le.AppendUint16(b, uint16(len(a.Name)))
		b = le.AppendUint32(b, n)
		b = le.AppendUint64(b, a.Value)
	}
	for _, l := range c.Chain {
		b = le.AppendUint64(b, l.TopicID)
		b = le.AppendUint32(b, l.Slot)
		b = le.AppendUint32(b, 0)
	}
	for i := range c.Args {
		b = append(append(b, c.Args[i].Name...), c.Args[i].Text...)
	}
	return b, nil
}

// Parse reads a record that another process wrote, into one whose Args may have room. It checks lengths,
// codes, reserved bytes and texts, so that a record has one form; numbers of tensors and of the tree's
// items are the caller's to check.
func (c *Call) Parse(b []byte) error {
	bad := func(format string, args ...any) error {
		return Errorf(CodeProtocol, "update or restart its sender", "the record of a call "+format, args...)
	}
	if len(b) < CallSize {
		return bad("has %d bytes", len(b))
	}
	le := binary.LittleEndian
	room := c.Args[:0]
	*c = Call{Kind: le.Uint32(b[CallKind:]), Flags: le.Uint32(b[CallFlags:]), Number: le.Uint64(b[CallNumber:]), Deadline: le.Uint64(b[CallDeadline:]),
		Topic: le.Uint32(b[CallTopic:]), TopicID: le.Uint64(b[CallTopicID:]), Token: [16]byte(b[CallToken:]),
		Window: le.Uint32(b[CallWindow:]), Object: le.Uint64(b[CallObject:])}
	args, chain, texts := int(le.Uint16(b[CallArgs:])), int(le.Uint16(b[CallChain:])), int(le.Uint32(b[CallTexts:]))
	known := uint32(CallTakesParts)
	switch {
	case c.Kind == CallReply:
		known = CallFailed | CallPart
	case c.Kind != CallRequest:
		return bad("is of kind %d", c.Kind)
	}
	switch {
	case c.Flags&^known != 0:
		return bad("has flags %#x, which are not of this version", c.Flags)
	case c.Number == 0:
		return bad("has no number")
	case chain > MaxCallChain:
		return bad("is within %d others", chain)
	case c.Kind == CallReply && (c.TopicID != 0 || c.Token != [16]byte{} || chain != 0 || c.Window != 0 || c.Object != 0):
		return bad("is a reply with what only a request has")
	case c.Kind == CallRequest && (c.Flags&CallTakesParts != 0) != (c.Window != 0):
		return bad("has flags %#x and a window of %d", c.Flags, c.Window)
	case len(b) != CallSize+args*CallArgSize+chain*CallChainSize+texts:
		return bad("has %d bytes for %d arguments, %d calls around it and %d bytes of texts", len(b), args, chain, texts)
	}
	table, rest := b[CallSize:CallSize+args*CallArgSize], b[CallSize+args*CallArgSize:]
	links, rest := rest[:chain*CallChainSize], rest[chain*CallChainSize:]
	for ; len(links) > 0; links = links[CallChainSize:] {
		if le.Uint32(links[12:]) != 0 {
			return bad("has reserved bytes that are not zero")
		}
		c.Chain = append(c.Chain, CallLink{TopicID: le.Uint64(links), Slot: le.Uint32(links[8:])})
	}
	if c.Args = room[:min(args, cap(room))]; args > len(c.Args) || c.Args == nil {
		c.Args = make([]CallArg, args)
	}
	all := string(rest) // each text is a part of it
	for i := range c.Args {
		t := table[i*CallArgSize:]
		a := CallArg{Code: t[0], N: le.Uint32(t[4:]), Value: le.Uint64(t[8:])}
		name, text := int(le.Uint16(t[2:])), 0
		if a.Code == ArgStr || a.Code == ArgBytes {
			text, a.N = int(a.N), 0
		}
		if t[1] != 0 || !a.fits() {
			return bad("has an argument %d that is not of this version", i)
		}
		if name+text > len(all) {
			return bad("has an argument %d whose texts are not there", i)
		}
		a.Name, a.Text, all = all[:name], all[name:name+text], all[name+text:]
		if !utf8.ValidString(a.Name) || a.Code == ArgStr && !utf8.ValidString(a.Text) {
			return bad("has an argument %d with a text that is not UTF-8", i)
		}
		c.Args[i] = a
	}
	if len(all) != 0 {
		return bad("has %d bytes behind its texts", len(all))
	}
	return nil
}

// fits tells whether what the code does not use is zero.
func (a *CallArg) fits() bool {
	switch a.Code {
	case ArgNone, ArgStr, ArgBytes:
		return a.N == 0 && a.Value == 0
	case ArgBool:
		return a.N == 0 && a.Value <= 1
	case ArgInt, ArgFloat, ArgDevice:
		return a.N == 0
	case ArgDType:
		return a.N == 0 && a.Value>>32 == 0
	case ArgTensor, ArgTree:
		return a.Value == 0
	}
	return false
}
