package natsbridge_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/protocol"
)

// denying is a server that refuses the broker subjects, until allow.
func denying(t *testing.T, publish, subscribe []string) (o *operator, allow func()) {
	users := func(publish, subscribe []string) []*server.User {
		return []*server.User{{Username: "admin", Password: "p"}, {Username: "baton", Password: "p", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{">"}, Deny: publish},
			Subscribe: &server.SubjectPermission{Allow: []string{">"}, Deny: subscribe}}}}
	}
	o = startOperator(t, func(o *server.Options) { o.Users = users(publish, subscribe) })
	return o, func() {
		granted := o.opts.Clone()
		granted.Users = users([]string{"nothing"}, []string{"nothing"})
		require.NoError(t, o.ReloadOptions(granted))
	}
}

// asBaton is the user whom the server refuses something.
func asBaton(c *natsbridge.Config) { c.Join.User, c.Join.Password = "baton", "p" }

func granted(s natsbridge.Status) bool { return len(s.Refused) == 0 }

// A right that the server grants later is used, and its refusal is not told any more.
func TestRightThatIsGrantedLaterIsUsed(t *testing.T) {
	o, allow := denying(t, nil, []string{"baton.*.host.>", "baton.*.call.>"})
	b := joined(t, o, "host-1", asBaton, func(c *natsbridge.Config) {
		c.Call = func(f natsbridge.Function, r natsbridge.FunctionRequest) {
			require.NoError(t, r.Respond([]byte(f.Name)))
		}
	})
	b.Functions([]natsbridge.Function{{Namespace: "default", Name: "f"}, {Namespace: "default", Name: "g"}})
	s := wait(t, b, func(s natsbridge.Status) bool {
		return len(s.Refused) == 2 && s.Refused[0].Subjects == 2 && s.Refused[1].Subjects == 1
	})
	require.Equal(t, "needs the right to subscribe to baton.*.call.> (baton.default.call.f and 1 more): functions are not called over NATS", s.Refused[0].String())
	require.Equal(t, "subscribe to baton.*.host.host-1.>", s.Refused[1].Right)
	require.Zero(t, s.Refused[0].Messages)
	require.Equal(t, 2, *s.Functions)
	nc := o.client(nats.UserInfo("admin", "p"))
	writes := subscribe(t, nc, "$KV.baton-default.a")
	answers := func(want string) { // what is written says whether the broker answers for it
		for next(t, writes).Header.Get("Baton-Answers") != want {
		}
	}
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	answers("")

	allow()
	// Each request has an answer from the first on that the server does not refuse.
	for _, subject := range []string{"baton.default.call.f", "baton.default.call.g", "baton.default.host.host-1.names.a"} {
		for err := nats.ErrNoResponders; err != nil; {
			_, err = nc.RequestWithContext(deadline(t), subject, []byte(`{"offset":0}`))
			if err != nil {
				require.ErrorIs(t, err, nats.ErrNoResponders)
			}
		}
	}
	wait(t, b, granted)
	answers("1")
	require.Equal(t, "1", string(ask(t, nc, "baton.default.host.host-1.names.a", `{"offset":0}`).Data))
	require.Equal(t, "g", string(ask(t, nc, "baton.default.call.g", "").Data))
	require.Zero(t, b.Status().Reconnects, "the server says nothing: the broker has looked by itself")
}

// The library subscribes once to the answers that it gets.
func TestRightToAnswersThatIsGrantedLaterIsUsed(t *testing.T) {
	o, allow := denying(t, nil, []string{"_INBOX.>"})
	b := joined(t, o, "host-1", asBaton)
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	reason := "needs the right to subscribe to _INBOX.>"
	s := wait(t, b, func(s natsbridge.Status) bool { return s.Names.State == natsbridge.NamesUnavailable })
	require.Contains(t, s.Names.Error, reason)
	require.True(t, refuses("subscribe to _INBOX.>")(s))

	allow()
	s = wait(t, b, mirrored)
	require.Empty(t, s.Refused)
	require.Empty(t, s.Names.Error)
	require.Equal(t, map[string]string{"a": "1"}, bucket(t, o.client(nats.UserInfo("admin", "p")), "default"))
}

// Without the right to answers nothing can be written at the end, and nothing is waited for.
func TestBridgeWithoutTheRightToAnswersCloses(t *testing.T) {
	o, _ := denying(t, nil, []string{"_INBOX.>"})
	b := joined(t, o, "host-1", asBaton)
	for _, ns := range []string{"default", "other"} {
		require.NoError(t, setName(b, ns, "a", 1, []byte("1")))
	}
	wait(t, b, func(s natsbridge.Status) bool { return s.Names.Error != "" })
	require.ErrorContains(t, b.Close(deadline(t)), "needs the right to subscribe to _INBOX.>")
}

// What goes wrong with several buckets is told in one line.
func TestReasonsOfSeveralNamespacesStandInOneLine(t *testing.T) {
	o, _ := denying(t, []string{"$KV.>"}, nil)
	b := joined(t, o, "host-1", asBaton)
	for i := range 2 {
		require.NoError(t, setName(b, fmt.Sprint("space-", i), "a", 1, []byte("1")))
	}
	s := wait(t, b, func(s natsbridge.Status) bool {
		return strings.Contains(s.Names.Error, "space-0") && strings.Contains(s.Names.Error, "space-1")
	})
	require.NotContains(t, s.Names.Error, "\n")
	require.True(t, refuses("publish $KV.baton-space-0.>", "publish $KV.baton-space-1.>")(s))
}

// A server that refuses what is published says so for each message. They count as dropped, and the log has one line.
func TestRefusedMessagesAreCounted(t *testing.T) {
	o, allow := denying(t, []string{"baton.*.topic.>"}, nil)
	var log lockedBuffer
	b := joined(t, o, "host-1", asBaton, func(c *natsbridge.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	wait(t, b, connected)
	for range 100 {
		for _, topic := range []string{"a", "b"} {
			require.Equal(t, 1, b.PublishEach(protocol.TopicSubject("default", topic), []byte("{}")))
		}
	}
	s := wait(t, b, func(s natsbridge.Status) bool { return s.Dropped == 200 })
	require.Equal(t, uint64(200), s.Published)
	require.Len(t, s.Refused, 1)
	require.Equal(t, "needs the right to publish baton.default.> (baton.default.topic.a and 1 more, 200 messages refused): messages of topics are not published", s.Refused[0].String())
	require.Equal(t, uint64(200), s.Refused[0].Messages)
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())

	allow()
	sub := subscribe(t, o.client(nats.UserInfo("admin", "p")), "baton.default.topic.>")
	require.Equal(t, 1, b.PublishEach(protocol.TopicSubject("default", "a"), []byte("1")))
	require.Equal(t, "1", string(next(t, sub).Data))
	s = wait(t, b, func(s natsbridge.Status) bool { return s.Refused[0].Subjects == 1 })
	require.Equal(t, "baton.default.topic.b", s.Refused[0].Subject, "of this nothing is known yet")
	require.Equal(t, 1, b.PublishEach(protocol.TopicSubject("default", "b"), []byte("1")))
	wait(t, b, granted)
}

// A function has run, and its result does not arrive.
func TestRefusedAnswersAreTold(t *testing.T) {
	o, allow := denying(t, []string{"_INBOX.>"}, nil)
	b := joined(t, o, "host-1", asBaton, func(c *natsbridge.Config) {
		c.Call = func(_ natsbridge.Function, r natsbridge.FunctionRequest) { require.NoError(t, r.Respond([]byte("7"))) }
	})
	b.Functions([]natsbridge.Function{{Namespace: "default", Name: "f"}})
	wait(t, b, connected)
	nc := o.client(nats.UserInfo("admin", "p"))
	other := subscribe(t, nc, "other.answers")
	for err := error(nats.ErrTimeout); err != nil; _, err = other.NextMsg(10 * time.Millisecond) {
		require.NoError(t, nc.PublishRequest("baton.default.call.f", "other.answers", nil)) // until the server knows the function
	}
	for range 3 {
		require.NoError(t, nc.PublishRequest("baton.default.call.f", nc.NewRespInbox(), nil))
	}
	s := wait(t, b, func(s natsbridge.Status) bool { return len(s.Refused) == 1 && s.Refused[0].Messages == 3 })
	require.Equal(t, "publish _INBOX.>", s.Refused[0].Right)
	require.Contains(t, s.Refused[0].Effect, "answers do not arrive")
	require.Equal(t, 1, s.Refused[0].Subjects, "each answer has a subject of its own")

	allow()
	require.Equal(t, "7", string(ask(t, nc, "baton.default.call.f", "").Data))
	wait(t, b, granted)
}
