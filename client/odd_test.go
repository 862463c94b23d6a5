package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// oddProvider in the environment has the test's program provide de/work and de/parts, after it has said what there is, until its
// standard input ends: for callers in other languages, in integration/langs.
const oddProvider = "BATON_TEST_ODD_PROVIDER"

func TestMain(m *testing.M) {
	if os.Getenv(oddProvider) == "" {
		os.Exit(m.Run())
	}
	if err := serveOdd(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveOdd() error {
	p, err := Connect(context.Background(), WithName("odd"))
	if err != nil {
		return err
	}
	if err := errors.Join(provideOdd(p, "de/work"), provideOddParts(p, "de/parts")); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(oddWays{oddReplies, oddParts}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return p.Close()
}

// oddWays is what the program says.
type oddWays struct {
	Calls map[string]protocol.Code
	Parts map[string]oddEnd
}

// oddReplies are the ways of a provider that replies what it should not, and how a call ends then.
var oddReplies = map[string]protocol.Code{
	"none":            "", // it replies as it should
	"of-another-call": "",
	"twice":           "",
	"a-part":          "",
	"no-record":       protocol.CodeProtocol,
	"no-result":       protocol.CodeProtocol,
	"two-results":     protocol.CodeProtocol,
	"no-argument":     protocol.CodeProtocol, // the table names an argument that the message does not have
	"no-tree":         protocol.CodeProtocol,
	"many-causes":     protocol.CodeRemote,   // as many as a tree may have levels
	"too-many-causes": protocol.CodeProtocol, // 10,000
}

// provideOdd provides a function of one argument, the way, that gives 1 beside what is odd.
func provideOdd(p *Client, name string) error {
	_, err := Handle(p, name, func(ctx context.Context, in struct{ How string }) (int, error) {
		k := running(ctx)
		place, err := p.replyPlace(ctx, k.record)
		if err != nil {
			return 0, err
		}
		reply := func(change func(*protocol.Call), args ...any) {
			m := &callMessage{}
			m.record.Kind, m.record.Number = protocol.CallReply, k.record.Number
			if err == nil {
				err = m.addAll(args)
			}
			if change != nil {
				change(&m.record)
			}
			if err == nil {
				_, err = p.sendReply(ctx, k.record, m)
			}
		}
		switch in.How {
		case "of-another-call":
			reply(func(r *protocol.Call) { r.Number++ }, 8)
			reply(func(r *protocol.Call) { r.Number += 1 << 40 }, 8)
		case "twice":
			reply(nil, 1)
			reply(nil, 8)
		case "a-part":
			reply(func(r *protocol.Call) { r.Flags = protocol.CallPart }, 8)
		case "no-record":
			x, e := p.Alloc(ctx, dlpack.Uint8, []int64{64})
			if e != nil {
				return 0, e
			}
			defer x.Release()
			return 1, p.send(ctx, place.t, &place.out, x, 0, nil)
		case "no-result":
			reply(nil)
		case "two-results":
			reply(nil, 1, 2)
		case "no-argument":
			reply(func(r *protocol.Call) { r.Args[0] = protocol.CallArg{Code: protocol.ArgTensor, N: 9} }, 8)
		case "no-tree":
			reply(func(r *protocol.Call) { r.Args[0] = protocol.CallArg{Code: protocol.ArgTree, N: 9} }, 8)
		case "many-causes", "too-many-causes":
			n := map[string]int{"many-causes": protocol.MaxTreeDepth - 1, "too-many-causes": 10_000}[in.How]
			m := &callMessage{}
			m.record.Kind, m.record.Number, m.record.Flags = protocol.CallReply, k.record.Number, protocol.CallFailed
			m.record.Args = []protocol.CallArg{protocol.Str(string(protocol.CodeRemote)), protocol.Str("it is odd"), {Code: protocol.ArgTree}}
			for i, name := range []string{"kind", "message", "cause"} {
				m.record.Args[i].Name = name
			}
			m.tree = []byte("[" + strings.Repeat(`{"kind":"odd","cause":`, n) + "null" + strings.Repeat("}", n) + "]")
			_, err = p.sendReply(ctx, k.record, m)
		case "more-than-there-is-room":
			for range 3 * replyDepth {
				m := &callMessage{}
				m.record.Kind, m.record.Number = protocol.CallReply, k.record.Number+1
				p.sendReply(ctx, k.record, m)
			}
		}
		return 1, err
	})
	return err
}

// oddEnd is how a stream ends: after so many parts, the numbers from 0 on.
type oddEnd struct {
	Parts int
	Code  protocol.Code
}

// oddParts are the ways of a provider that gives parts as it should not.
var oddParts = map[string]oddEnd{
	"none":                    {},
	"twice":                   {2, ""},
	"one-left-out":            {1, protocol.CodeProtocol},
	"a-large-number":          {0, protocol.CodeProtocol},
	"of-another-call":         {},
	"behind-the-end":          {1, ""},
	"no-record":               {0, protocol.CodeProtocol},
	"a-part-that-is-an-error": {0, protocol.CodeProtocol},
}

// provideOddParts provides a function of one argument, the way, that gives no part but those that are odd.
func provideOddParts(p *Client, name string) error {
	_, err := HandleStream(p, name, func(ctx context.Context, in struct{ How string }, _ func(int) error) (err error) {
		k := running(ctx)
		place, err := p.replyPlace(ctx, k.record)
		if err != nil {
			return err
		}
		n := k.record.Number
		raw := func(number uint64, flags, part uint32, v any) {
			m := &callMessage{}
			if err == nil {
				err = m.addAll([]any{v})
			}
			m.record = protocol.Call{Kind: protocol.CallReply, Number: number, Flags: flags, Topic: part, Args: m.record.Args}
			if err == nil {
				_, err = p.sendReply(ctx, k.record, m)
			}
		}
		switch in.How {
		case "twice":
			raw(n, protocol.CallPart, 0, 0)
			raw(n, protocol.CallPart, 0, 8)
			raw(n, protocol.CallPart, 1, 1)
			raw(n, protocol.CallPart, 0, 8)
			raw(n, 0, 0, nil)
		case "one-left-out":
			raw(n, protocol.CallPart, 0, 0)
			raw(n, protocol.CallPart, 2, 8)
		case "a-large-number":
			raw(n, protocol.CallPart, math.MaxUint32, 8)
		case "of-another-call":
			raw(n+1, protocol.CallPart, 0, 8)
			raw(n+1<<40, 0, 0, 8)
		case "behind-the-end":
			raw(n, protocol.CallPart, 0, 0)
			raw(n, 0, 0, nil)
			raw(n, protocol.CallPart, 1, 8)
		case "no-record":
			x, err := p.Alloc(ctx, dlpack.Uint8, []int64{64})
			if err != nil {
				return err
			}
			defer x.Release()
			return p.send(ctx, place.t, &place.out, x, 0, nil)
		case "a-part-that-is-an-error":
			raw(n, protocol.CallPart|protocol.CallFailed, 0, "what")
		case "of-another-type":
			raw(n, protocol.CallPart, 0, "text")
		case "more-than-there-is-room":
			for i := range uint32(3 * defaultAhead) {
				raw(n, protocol.CallPart, i, int(i))
			}
		}
		return err
	})
	return err
}
