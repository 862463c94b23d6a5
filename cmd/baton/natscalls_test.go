package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit/natstest"
	"github.com/baton-ipc/baton/protocol"
)

// connectNATS is a client of the NATS of the place's broker.
func (p *place) connectNATS() *nats.Conn {
	p.t.Helper()
	var n natsAnswer
	p.json(&n, "nats")
	opt, err := nats.NkeyOptionFromSeed(n.Seed)
	require.NoError(p.t, err)
	nc, err := nats.Connect(n.URL, opt, nats.Timeout(patience))
	require.NoError(p.t, err)
	p.t.Cleanup(nc.Close)
	return nc
}

// overNATS calls a function, once it is listed.
func (p *place) overNATS(nc *nats.Conn, name, data string, header nats.Header) *nats.Msg {
	p.t.Helper()
	ask := &nats.Msg{Subject: protocol.FunctionSubject("default", name), Data: []byte(data), Header: header}
	var m *nats.Msg
	p.until(name+" is called over NATS", func() bool {
		var err error
		m, err = nc.RequestMsgWithContext(p.ctx(), ask)
		return err == nil
	})
	return m
}

type scaledImage struct {
	Image *client.Tensor
	By    float64 `baton:"by,default=2"`
}

func TestFunctionsAreCalledOverNATS(t *testing.T) {
	p := newPlace(t)
	p.serveNATS("--nats-functions")
	c := p.client()
	provides(p, c, "vision/scale@1.2", func(_ context.Context, in scaledImage) (*client.Tensor, error) {
		b, err := in.Image.Bytes()
		for i := range b {
			b[i] *= byte(in.By)
		}
		return in.Image.Retain(), err
	}, client.OverNATS())
	provides(p, c, "echo", func(_ context.Context, x any) (any, error) { return x, nil }, client.OverNATS())
	provides(p, c, "fails", func(context.Context, struct{}) (int, error) {
		return 0, &client.RemoteError{Kind: "ValueError", Message: "bad\nvalue", Trace: "where"}
	}, client.OverNATS())
	provides(p, c, "long", func(_ context.Context, in struct{ N int }) (string, error) { return strings.Repeat("x", in.N), nil }, client.OverNATS())
	provides(p, c, "hidden", func(context.Context, struct{}) (int, error) { return 1, nil })
	nc := p.connectNATS()

	for given, want := range map[string]string{
		`[[1, 2.5, true, null, "text", {"a": 12345678901234567890}]]`: `[1,2.5,true,null,"text",{"a":12345678901234567890}]`,
		`{"x": {"$bytes": "AP8="}}`:                                   `{"$bytes":"AP8="}`,
	} {
		m := p.overNATS(nc, "echo", given, nil)
		assert.Equal(t, want, string(m.Data))
		assert.Empty(t, m.Header.Get(micro.ErrorCodeHeader))
	}

	m := p.overNATS(nc, "long", fmt.Sprint("[", 1<<20-2, "]"), nil)
	assert.Len(t, m.Data, 1<<20, "as much as the server takes")

	x := p.tensor(c, 4)
	b, err := x.Bytes()
	require.NoError(t, err)
	b[0] = 7
	h, err := x.Handle(p.ctx(), client.LeaseFor(time.Minute))
	require.NoError(t, err)
	ask, err := json.Marshal(map[string]any{"image": map[string]any{"$handle": h}, "by": 3})
	require.NoError(t, err)
	m = p.overNATS(nc, "vision/scale@1.2", string(ask), nil)
	var answer struct {
		Handle protocol.Handle `json:"$handle"`
	}
	require.NoError(t, json.Unmarshal(m.Data, &answer), string(m.Data))
	y, err := c.Open(p.ctx(), answer.Handle)
	require.NoError(t, err)
	assert.Equal(t, byte(21), b[0], "the function writes the memory of the handle")
	other, err := y.Bytes()
	require.NoError(t, err)
	assert.Equal(t, byte(21), other[0])
	y.Release()

	for _, k := range []struct{ name, data, header, status, code, text string }{
		{"fails", "", "", "500", "Remote", "bad\nvalue"},
		{"fails", "[1]", "", "400", "InvalidArgument", "1 arguments by position are too many"},
		{"long", fmt.Sprint("[", 1<<20-1, "]"), "", "413", "Unsupported", "has 1048577 bytes as JSON: the NATS server takes 1048576"},
		{"echo", "3", "", "400", "InvalidArgument", "neither an array nor an object"},
		{"echo", "{", "", "400", "InvalidArgument", "no JSON"},
		{"echo", `[{"$handle": {"v": 1}}]`, "", "400", "InvalidHandle", ""},
		{"echo", `[1]`, "tomorrow", "400", "InvalidArgument", "Baton-Timeout"},
	} {
		header := nats.Header{}
		if k.header != "" {
			header.Set("Baton-Timeout", k.header)
		}
		m := p.overNATS(nc, k.name, k.data, header)
		assert.Equal(t, k.status, m.Header.Get(micro.ErrorCodeHeader), "%+v", k)
		var f struct{ Code, Message, Kind, Trace string }
		require.NoError(t, json.Unmarshal(m.Data, &f), string(m.Data))
		assert.Equal(t, k.code, f.Code)
		assert.Contains(t, f.Message, k.text)
		if k.code == "Remote" {
			assert.Equal(t, []string{"ValueError", "where"}, []string{f.Kind, f.Trace})
		}
	}

	var info micro.Info
	p.until("the functions are listed", func() bool {
		m, err := nc.RequestWithContext(p.ctx(), "$SRV.INFO.baton", nil)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(m.Data, &info))
		listed := map[string]bool{}
		for _, e := range info.Endpoints {
			listed[e.Metadata["function"]] = true
		}
		assert.False(t, listed["hidden"])
		return listed["vision/scale@1.2"] && listed["echo"] && listed["fails"]
	})
	_, err = nc.RequestWithContext(p.ctx(), protocol.FunctionSubject("default", "hidden"), nil)
	assert.ErrorIs(t, err, nats.ErrNoResponders)
}

// What a broker publishes of a message is passed on as it is: as the arguments, or as one of them.
func TestFunctionsTakeTuplesOverNATS(t *testing.T) {
	p := newPlace(t)
	p.serveNATS("--nats-functions")
	c := p.client()
	type sum struct {
		X  *client.Tensor
		By int64 `baton:"by,default=1"`
	}
	provides(p, c, "sum", func(_ context.Context, in sum) (int64, error) {
		b, err := in.X.Bytes()
		n := int64(0)
		for i := range b {
			n += int64(b[i]) * in.By
		}
		return n, err
	}, client.OverNATS())
	provides(p, c, "echo", func(_ context.Context, x any) (any, error) { return x, nil }, client.OverNATS())
	nc := p.connectNATS()
	seen, err := nc.SubscribeSync("baton.default.topic.batches")
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	topic, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	x := p.tensor(c, 4)
	b, err := x.Bytes()
	require.NoError(t, err)
	copy(b, []byte{1, 2, 3, 4})
	published := func(v any) string {
		var m *nats.Msg
		p.until("the message is published", func() bool { // the broker learns of the subscription a moment after it was made
			err := topic.Send(p.ctx(), v)
			require.NoError(t, err)
			m, err = seen.NextMsg(10 * time.Millisecond)
			return err == nil
		})
		for m != nil { // the last one, whose tensor the topic keeps
			next, err := seen.NextMsg(10 * time.Millisecond)
			if err != nil {
				break
			}
			m = next
		}
		return string(m.Data)
	}
	for _, k := range []struct {
		value any
		want  string
	}{
		{x, "10"},
		{[]any{x, int64(2)}, "20"},
		{protocol.ValueTuple{x, int64(3)}, "30"},
		{map[string]any{"x": x, "by": int64(4)}, "40"},
	} {
		assert.Equal(t, k.want, string(p.overNATS(nc, "sum", published(k.value), nil).Data), "%v", k.value)
	}
	assert.Equal(t, "50", string(p.overNATS(nc, "sum", `{"x": {"$tuple": `+published(x)+`}, "by": 5}`, nil).Data))
	assert.Equal(t, `{"a":[1,2.5]}`, string(p.overNATS(nc, "echo", `[{"$tuple": `+published(map[string]any{"a": []any{int64(1), 2.5}})+`}]`, nil).Data))
	for _, data := range []string{`[{"$tuple": 3}]`, `[{"$tuple": {"v": 1}}]`} {
		assert.Equal(t, "400", p.overNATS(nc, "echo", data, nil).Header.Get(micro.ErrorCodeHeader), data)
	}

	// The broker's service answers for its functions, too.
	var ping micro.Ping
	var stats micro.Stats
	for what, into := range map[string]any{"PING": &ping, "STATS": &stats} {
		m, err := nc.RequestWithContext(p.ctx(), "$SRV."+what+".baton", nil)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(m.Data, into), string(m.Data))
	}
	assert.Equal(t, []string{"baton", ping.ID}, []string{ping.Name, stats.ID})
	requests := map[string]int{}
	var echo struct {
		Answered, Failed int
		Last             string `json:"last_error"`
	}
	for _, e := range stats.Endpoints {
		requests[e.Subject] = e.NumRequests
		if e.Subject == "baton.default.call.echo" {
			require.NoError(t, json.Unmarshal(e.Data, &echo), string(e.Data))
		}
	}
	assert.Equal(t, []int{1, 2}, []int{echo.Answered, echo.Failed})
	assert.Contains(t, echo.Last, "400:")
	assert.Equal(t, []int{5, 3}, []int{requests["baton.default.call.sum"], requests["baton.default.call.echo"]})
}

// A provider that ends is answered for, as at any caller.
func TestACallOverNATSEndsWithItsProvider(t *testing.T) {
	p := newPlace(t)
	p.serveNATS("--nats-functions")
	nc := p.connectNATS()
	provider := exec.Command(os.Args[0])
	provider.Env = append(slices.Clone(p.env), roleProvider+"=1")
	out, err := provider.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, provider.Start())
	defer provider.Wait()
	defer provider.Process.Kill()
	asked := make(chan *nats.Msg, 1)
	go func() { asked <- p.overNATS(nc, "slow", "", nil) }()
	begun := make([]byte, 1)
	_, err = out.Read(begun) // it runs
	require.NoError(t, err)
	require.NoError(t, provider.Process.Kill())
	m := <-asked
	assert.Equal(t, "502", m.Header.Get(micro.ErrorCodeHeader), string(m.Data))
	assert.Contains(t, string(m.Data), `"code":"ProviderDied"`)

	// Whose time is over is answered, too, and the function is told.
	c := p.client()
	cancelled := make(chan struct{})
	provides(p, c, "sleeps", func(ctx context.Context, _ struct{}) (int, error) {
		<-ctx.Done()
		close(cancelled)
		return 0, ctx.Err()
	}, client.OverNATS())
	m = p.overNATS(nc, "sleeps", "", nats.Header{"Baton-Timeout": {"0.1"}})
	assert.Equal(t, "408", m.Header.Get(micro.ErrorCodeHeader), string(m.Data))
	<-cancelled
}

// roleProvider has this program be the process of a provider.
const roleProvider = "BATON_TEST_PROVIDER"

// provideUntilKilled is the process of a provider.
func provideUntilKilled() {
	ctx := context.Background()
	c, err := client.Connect(ctx)
	if err != nil {
		panic(err)
	}
	_, err = client.Handle(c, "slow", func(ctx context.Context, _ struct{}) (int, error) {
		os.Stdout.Write([]byte{1})
		select {}
	}, client.OverNATS())
	if err != nil {
		panic(err)
	}
	select {}
}

// A broker that ends answers what is under way: its caller has cancelled nothing.
func TestCallsOverNATSThatAreUnderWayAreToldThatTheBrokerEnds(t *testing.T) {
	for _, by := range []string{"TERM", "replace"} {
		t.Run(by, func(t *testing.T) {
			p := newPlace(t)
			s := p.serveNATS("--nats-functions")
			c := p.client()
			begun := make(chan struct{}, 8)
			provides(p, c, "waits", func(ctx context.Context, _ struct{}) (int, error) {
				begun <- struct{}{}
				<-ctx.Done()
				return 0, ctx.Err()
			}, client.OverNATS())
			nc := p.connectNATS()
			asked := make(chan *nats.Msg, 1)
			go func() { asked <- p.overNATS(nc, "waits", "", nil) }()
			<-begun
			if by == "replace" {
				p.serveNATS("--nats-functions", "--replace")
			} else {
				s.signal(syscall.SIGTERM)
			}
			m := <-asked
			assert.Equal(t, "503", m.Header.Get(micro.ErrorCodeHeader), string(m.Data))
			var f struct{ Code, Message, Remedy string }
			require.NoError(t, json.Unmarshal(m.Data, &f), string(m.Data))
			assert.Equal(t, "BrokerLost", f.Code)
			assert.Equal(t, "the broker ends, and with it the call of waits", f.Message)
			assert.Contains(t, f.Remedy, "ask again")
		})
	}
}

// What to do stands beside the message, and not in it as well.
func TestErrorsOverNATSHaveTheRemedyOnce(t *testing.T) {
	p := newPlace(t)
	p.serveNATS("--nats-functions")
	provides(p, p.client(), "one", func(context.Context, struct{ X int }) (int, error) { return 1, nil }, client.OverNATS())
	nc := p.connectNATS()
	for _, data := range []string{`3`, `["text"]`, `[1, 2, 3]`} {
		m := p.overNATS(nc, "one", data, nil)
		var f struct{ Message, Remedy string }
		require.NoError(t, json.Unmarshal(m.Data, &f), string(m.Data))
		require.NotEmpty(t, f.Remedy)
		assert.NotContains(t, f.Message, f.Remedy)
		assert.NotContains(t, f.Message, "baton: ")
		assert.NotContains(t, m.Header.Get(micro.ErrorHeader), f.Remedy)
	}
}

// nilError is an error of which no text can be made: there is nothing that it points to.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestAnErrorWhoseTextPanicsIsAnErrorOverNATS(t *testing.T) {
	p := newPlace(t)
	p.serveNATS("--nats-functions")
	c := p.client()
	provides(p, c, "nil", func(context.Context, struct{}) (int, error) { return 0, (*nilError)(nil) }, client.OverNATS())
	nc := p.connectNATS()
	for range 2 { // the provider lives on
		m := p.overNATS(nc, "nil", "", nil)
		assert.Equal(t, "500", m.Header.Get(micro.ErrorCodeHeader))
		assert.Contains(t, string(m.Data)+m.Header.Get(micro.ErrorHeader), "nil pointer")
	}
}

func TestNATSTellsOnWhichSubjectFunctionsAreCalled(t *testing.T) {
	p := newPlace(t)
	s := p.serveNATS()
	assert.NotContains(t, p.must("nats"), ".call.")
	s.signal(syscall.SIGTERM)
	s.wait()
	p.serveNATS("--nats-functions")
	var n struct{ Calls string }
	p.json(&n, "nats", "--namespace", "team")
	assert.Equal(t, "baton.team.call.>", n.Calls)
	text := p.must("nats")
	assert.Contains(t, text, "baton.default.call.>")
	assert.Contains(t, text, "request baton.default.call.FUNCTION '[]'")
}

// A right that a server of others refuses is told where an operator looks, and no longer once it is granted.
func TestRefusedCallsOverNATSAreToldUntilTheyArePermitted(t *testing.T) {
	users := func(may bool) []*natsserver.User {
		baton := &natsserver.User{Username: "baton", Password: "p", Permissions: &natsserver.Permissions{
			Publish: &natsserver.SubjectPermission{Allow: []string{">"}}, Subscribe: &natsserver.SubjectPermission{Allow: []string{">"}}}}
		if !may {
			baton.Permissions.Subscribe.Deny = []string{"baton.*.call.>"}
		}
		return []*natsserver.User{{Username: "admin", Password: "p"}, baton}
	}
	options := &natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, Users: users(false), NoSigs: true}
	server := natstest.Start(t, options.Clone())

	p := newPlace(t)
	p.serveNATS("--nats", server.ClientURL(), "--nats-user", "baton", "--nats-password", "p", "--nats-functions")
	provides(p, p.client(), "echo", func(_ context.Context, x any) (any, error) { return x, nil }, client.OverNATS())
	p.until("doctor shows the right", func() bool {
		f := p.findings()["NATS"]
		return f.State == "warn" && strings.Contains(f.Text, "baton.default.call.echo") && strings.Contains(f.Text, "the right to subscribe to baton.*.call.>")
	})
	assert.Contains(t, p.must("status"), "the right to subscribe to baton.*.call.>")

	granted := options.Clone()
	granted.Port = server.Addr().(*net.TCPAddr).Port
	granted.Users = users(true)
	require.NoError(t, server.ReloadOptions(granted))
	nc, err := nats.Connect(server.ClientURL(), nats.UserInfo("admin", "p"))
	require.NoError(t, err)
	defer nc.Close()
	assert.Equal(t, `7`, string(p.overNATS(nc, "echo", "[7]", nil).Data))
	p.until("no refusal is told any more", func() bool { return p.findings()["NATS"].State == "ok" })
	assert.NotContains(t, p.must("status"), "refused")
}
