package broker_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

// otherHosts stands for the part of a broker that fetches.
type otherHosts struct {
	near   protocol.Handle
	begun  chan context.Context
	answer chan error
}

func (o *otherHosts) Fetch(ctx context.Context, _ string, _ protocol.Handle) (protocol.Handle, error) {
	o.begun <- ctx
	select {
	case err := <-o.answer:
		return o.near, err
	case <-ctx.Done():
		return o.near, protocol.Errorf(protocol.CodeUnreachable, "", "late")
	}
}

func (o *otherHosts) Hosts(context.Context) ([]broker.HostRow, error) {
	return []broker.HostRow{{Host: "aa", HostName: "first", Own: true}, {Host: "bb", HostName: "second\n"}}, nil
}

func farHandle() protocol.Handle {
	return protocol.Handle{Host: "far", Segment: 1, Serial: 1, Index: 1, Generation: 1, Bytes: 8, DType: "uint8", Shape: []int64{8}, Device: "cpu"}
}

func TestFetchIsAnsweredWhileOtherRequestsAreCarriedOut(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	p.refused(protocol.CodeHandle, protocol.OpHandleFetch, protocol.HandleFetch{Handle: farHandle()})
	near := farHandle()
	near.Host = b.ID()
	hosts := &otherHosts{near: near, begun: make(chan context.Context, 300), answer: make(chan error)}
	b.SetHosts(hosts)
	own := farHandle()
	own.Host = b.ID()
	p.refused(protocol.CodeHandle, protocol.OpHandleFetch, protocol.HandleFetch{Handle: own})
	p.refused(protocol.CodeInvalid, protocol.OpHandleFetch, map[string]any{"handle": map[string]any{"v": 1}})

	q := connect(t, b.socket, "b")
	fetch := func() uint64 {
		return q.send(protocol.OpHandleFetch, protocol.HandleFetch{Handle: farHandle()})
	}
	first := fetch()
	<-hosts.begun
	q.must(protocol.OpPing, nil, nil) // it does not wait for the fetch
	hosts.answer <- nil
	reply, _ := q.read()
	require.Equal(t, first, reply.ID)
	var ok protocol.HandleFetched
	require.NoError(t, json.Unmarshal(reply.OK, &ok))
	require.Equal(t, near, ok.Handle)

	for range 256 {
		fetch()
		<-hosts.begun
	}
	tooMany := fetch()
	reply, _ = q.read()
	require.Equal(t, tooMany, reply.ID)
	require.Equal(t, protocol.CodeTooMany, reply.Error.Code)
	hosts.answer <- protocol.Errorf(protocol.CodeHostLost, "r", "gone")
	reply, _ = q.read()
	require.Equal(t, protocol.CodeHostLost, reply.Error.Code)
	r := connect(t, b.socket, "c")
	r.send(protocol.OpHandleFetch, protocol.HandleFetch{Handle: farHandle()})
	last := <-hosts.begun
	r.w.Close()
	<-last.Done() // fetches of a client that has gone are given up

	var rows protocol.ListReply
	p.must(protocol.OpList, protocol.List{What: protocol.ListHosts}, &rows)
	require.Len(t, rows.Rows, 2)
	p.must(protocol.OpList, protocol.List{What: protocol.ListHosts, Pattern: "sec*"}, &rows)
	require.Len(t, rows.Rows, 1)
	require.NotContains(t, string(rows.Rows[0]), `\n`)
}

func TestFetchWaitsForABrokerThatBegins(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Hosts = true })
	p := connect(t, b.socket, "a")
	e := p.refused(protocol.CodeUnreachable, protocol.OpHandleFetch, protocol.HandleFetch{Handle: farHandle(), Seconds: 0.001})
	require.Contains(t, e.Message, "not reach other hosts yet")
	p.send(protocol.OpHandleFetch, protocol.HandleFetch{Handle: farHandle()})
	near := farHandle()
	near.Host = b.ID()
	hosts := &otherHosts{near: near, begun: make(chan context.Context, 1), answer: make(chan error, 1)}
	hosts.answer <- nil
	b.SetHosts(hosts)
	reply, _ := p.read()
	require.Nil(t, reply.Error)
}
