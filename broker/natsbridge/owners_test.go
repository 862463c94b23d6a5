package natsbridge_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
)

// brief is a silence that a test can wait for.
const brief = 60 * time.Millisecond

// joined starts a bridge of a broker on an operator's server.
func joined(t *testing.T, o *operator, owner string, change ...func(*natsbridge.Config)) *natsbridge.Bridge {
	t.Helper()
	cfg := natsbridge.Config{Owner: owner, HostName: "node of " + owner, Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}},
		Names: natsbridge.NamesConfig{Silence: brief}}
	for _, f := range change {
		f(&cfg)
	}
	return start(t, cfg)
}

func foreign(s natsbridge.Status) bool { return s.Names.Foreign == 1 && s.Names.Pending == 0 }

// holds waits until the key a has a value, and goes on with what it has then.
func holds(t *testing.T, nc *nats.Conn, value string) {
	t.Helper()
	kv, err := jetStream(t, nc).KeyValue(deadline(t), "baton-default")
	require.NoError(t, err)
	w, err := kv.Watch(deadline(t), "a")
	require.NoError(t, err)
	defer w.Stop()
	for e := range w.Updates() {
		if e != nil && e.Operation() == jetstream.KeyValuePut && string(e.Value()) == value {
			return
		}
	}
	t.Fatalf("the key never was %q", value)
}

func TestKeyOfAnotherBrokerIsLeftAloneAndSaidOnce(t *testing.T) {
	o := startOperator(t, nil)
	a := joined(t, o, "host-1")
	require.NoError(t, setName(a, "default", "a", 1, []byte("first")))
	wait(t, a, mirrored)
	var log lockedBuffer
	b := joined(t, o, "host-2", func(c *natsbridge.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	require.NoError(t, setName(b, "default", "own", 1, []byte("own")))
	for revision := range uint64(3) {
		require.NoError(t, setName(b, "default", "a", revision+1, []byte("second")))
		wait(t, b, foreign)
	}
	is := true
	s := wait(t, b, func(s natsbridge.Status) bool { return foreign(s) && s.Names.Owners[0].Asked >= 3*6 }) // three times the silence
	require.Equal(t, natsbridge.NamesPartly, s.Names.State)
	require.Equal(t, 2, s.Names.Names)
	require.Equal(t, 1, s.Names.Mirrored)
	theirs := s.Names.Owners[0]
	theirs.Asked, theirs.Machine = 0, ""
	require.Equal(t, natsbridge.ForeignOwner{Namespace: "default", Instance: "host-1", HostName: "node of host-1", PID: os.Getpid(),
		Keys: 1, Names: []string{"a"}, Connected: &is}, theirs)
	require.Equal(t, fmt.Sprintf("key of broker host-1 on node of host-1 (pid %d)", os.Getpid()), b.NameState("default", "a"))
	require.Equal(t, "mirrored", b.NameState("default", "own"))
	nc := o.client()
	require.Equal(t, map[string]string{"a": "first", "own": "own"}, bucket(t, nc, "default"))
	require.Equal(t, 1, strings.Count(log.String(), "another broker's"), log.String())
	require.NotContains(t, log.String(), "may be taken")

	require.NoError(t, b.DeleteName("default", "a"))
	wait(t, b, mirrored)
	require.NoError(t, setName(b, "default", "a", 1, []byte("third")))
	wait(t, b, foreign)
	require.NoError(t, b.Close(deadline(t)))
	require.Equal(t, map[string]string{"a": "first"}, bucket(t, nc, "default"), "and its end removes its own keys alone")
}

// A server's restart cuts all brokers off, and one of them is back first. The usual silence is longer than
// the others need; in a brief one they would be gone.
func TestKeyOfAnotherBrokerIsLeftAloneWhenTheServerRestarts(t *testing.T) {
	o := startOperator(t, nil)
	usual := func(c *natsbridge.Config) { c.Names.Silence = natsbridge.DefaultSilence }
	a, b := joined(t, o, "host-1", usual), joined(t, o, "host-2", usual)
	require.NoError(t, setName(a, "default", "a", 1, []byte("first")))
	wait(t, a, mirrored)
	require.NoError(t, setName(b, "default", "a", 1, []byte("second")))
	wait(t, b, foreign)
	o.stop()
	wait(t, a, disconnected)
	wait(t, b, disconnected)
	require.NoError(t, setName(b, "default", "own", 1, []byte("own"))) // is written when the bucket was compared
	o.start()
	wait(t, b, foreign)
	wait(t, a, mirrored)
	require.Equal(t, map[string]string{"a": "first", "own": "own"}, bucket(t, o.client(), "default"))
}

func TestKeyIsTakenWhenItsBrokerDeletesTheName(t *testing.T) {
	o := startOperator(t, nil)
	a, b := joined(t, o, "host-1"), joined(t, o, "host-2")
	require.NoError(t, setName(a, "default", "a", 1, []byte("first")))
	wait(t, a, mirrored)
	require.NoError(t, setName(b, "default", "a", 1, []byte("second")))
	wait(t, b, foreign)
	require.NoError(t, a.DeleteName("default", "a"))
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "second"}, bucket(t, o.client(), "default"))

	require.NoError(t, setName(a, "default", "a", 1, []byte("first again")))
	wait(t, a, foreign)
	require.NoError(t, b.Close(deadline(t)))
	wait(t, a, mirrored)
	require.Equal(t, map[string]string{"a": "first again"}, bucket(t, o.client(), "default"))
}

func TestKeyOfABrokerThatWasKilledIsTaken(t *testing.T) {
	o := startOperator(t, nil)
	kill := startChild(t, runtimeDir(t), childJoin+"="+o.ClientURL())
	b := joined(t, o, "host-2")
	require.NoError(t, setName(b, "default", "a", 1, []byte("ours")))
	s := wait(t, b, func(s natsbridge.Status) bool { return foreign(s) && s.Names.Owners[0].Asked >= 2*6 })
	require.True(t, *s.Names.Owners[0].Connected)
	nc := o.client()
	require.Equal(t, map[string]string{"a": "theirs"}, bucket(t, nc, "default"))
	kill()
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "ours"}, bucket(t, nc, "default"))

	// When it is back it finds its key to be another's.
	back := joined(t, o, "host-1")
	require.NoError(t, setName(back, "default", "a", 2, []byte("theirs")))
	wait(t, back, foreign)
	require.Equal(t, map[string]string{"a": "ours"}, bucket(t, nc, "default"))
}

// Whether a broker is there cannot be known where the server does not let it answer.
func TestKeyOfABrokerThatCannotAnswerIsLeftToTheOperator(t *testing.T) {
	o := startOperator(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "p"}, {Username: "mute", Password: "p",
			Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"baton.>"}}}}}
	})
	as := func(user string) func(*natsbridge.Config) {
		return func(c *natsbridge.Config) { c.Join.User, c.Join.Password, c.Names.Keep = user, "p", true }
	}
	a := joined(t, o, "host-1", as("mute"))
	wait(t, a, refuses("subscribe to baton.*.host.host-1.>"))
	require.NoError(t, setName(a, "default", "a", 1, []byte("theirs")))
	wait(t, a, mirrored)
	require.Empty(t, a.Status().LastError)
	nc := o.client(nats.UserInfo("admin", "p"))
	stream, err := jetStream(t, nc).Stream(deadline(t), "KV_baton-default")
	require.NoError(t, err)
	wait(t, a, func(natsbridge.Status) bool { // what was written before the refusal is written again
		m, err := stream.GetLastMsgForSubject(deadline(t), "$KV.baton-default.a")
		require.NoError(t, err)
		return m.Header.Get("Baton-Answers") == ""
	})
	require.NoError(t, a.Close(deadline(t)))

	b := joined(t, o, "host-2", as("admin"))
	require.NoError(t, setName(b, "default", "a", 1, []byte("ours")))
	s := wait(t, b, func(s natsbridge.Status) bool { return foreign(s) && s.Names.Owners[0].Asked >= 3*6 })
	require.False(t, *s.Names.Owners[0].Connected)
	require.Contains(t, b.NameState("default", "a"), "which is not connected")
	require.Equal(t, map[string]string{"a": "theirs"}, bucket(t, nc, "default"))

	kv, err := jetStream(t, nc).KeyValue(deadline(t), "baton-default")
	require.NoError(t, err)
	require.NoError(t, kv.Delete(deadline(t), "a"))
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "ours"}, bucket(t, nc, "default"))
}

func TestKeyThatSomebodyTookAwayIsWrittenAgain(t *testing.T) {
	o := startOperator(t, nil)
	b := joined(t, o, "host-1")
	require.NoError(t, setName(b, "default", "a", 1, []byte("older")))
	wait(t, b, mirrored)
	nc := o.client()
	js := jetStream(t, nc)
	stream, err := js.Stream(deadline(t), "KV_baton-default")
	require.NoError(t, err)
	older, err := stream.GetLastMsgForSubject(deadline(t), "$KV.baton-default.a")
	require.NoError(t, err)
	for h := range older.Header {
		if !strings.HasPrefix(h, "Baton-") {
			delete(older.Header, h) // what it expected then
		}
	}
	require.NoError(t, setName(b, "default", "a", 2, []byte("newer")))
	wait(t, b, mirrored)
	kv, err := js.KeyValue(deadline(t), "baton-default")
	require.NoError(t, err)
	at, err := kv.Get(deadline(t), "a")
	require.NoError(t, err)
	w, err := kv.Watch(deadline(t), "a", jetstream.UpdatesOnly())
	require.NoError(t, err)
	defer w.Stop()
	last := at.Revision()
	// newer waits until the key has its value again after a change of another. The change itself may not
	// be seen: the bucket keeps one message of a key.
	newer := func() bool {
		for e := range w.Updates() {
			if e != nil && e.Revision() > last+1 && e.Operation() == jetstream.KeyValuePut && string(e.Value()) == "newer" {
				last = e.Revision()
				return true
			}
		}
		return false
	}
	for what, do := range map[string]func() error{
		"deleted":           func() error { return kv.Delete(deadline(t), "a") },
		"purged":            func() error { return kv.Purge(deadline(t), "a") },
		"no broker's value": func() error { _, err := kv.Put(deadline(t), "a", []byte("x")); return err },
		"older of its own": func() error {
			return nc.PublishMsg(&nats.Msg{Subject: older.Subject, Header: older.Header, Data: older.Data})
		},
		"of an earlier life": func() error { return put(nc, "host-1", "earlier") },
	} {
		require.NoError(t, do(), what)
		require.True(t, newer(), what)
	}
	require.Equal(t, 1, wait(t, b, mirrored).Names.Mirrored)
}

// A client that takes a key away again and again is not raced with.
func TestKeyThatIsTakenAwayAgainAndAgainIsLeftForAWhile(t *testing.T) {
	o := startOperator(t, nil)
	b := joined(t, o, "host-1", func(c *natsbridge.Config) { c.Names.Silence = time.Hour })
	require.NoError(t, setName(b, "default", "a", 1, []byte("ours")))
	wait(t, b, mirrored)
	nc := o.client()
	kv, err := jetStream(t, nc).KeyValue(deadline(t), "baton-default")
	require.NoError(t, err)
	w, err := kv.Watch(deadline(t), "a", jetstream.UpdatesOnly())
	require.NoError(t, err)
	defer w.Stop()
	require.NoError(t, kv.Delete(deadline(t), "a"))
	for e := range w.Updates() {
		if e != nil && e.Operation() == jetstream.KeyValuePut {
			break
		}
	}
	require.NoError(t, kv.Delete(deadline(t), "a"))
	s := wait(t, b, func(s natsbridge.Status) bool { return s.Names.Pending == 1 && s.Names.Mirrored == 0 })
	require.Equal(t, natsbridge.NamesBehind, s.Names.State)
	require.Equal(t, "pending", b.NameState("default", "a"))
	require.NoError(t, setName(b, "default", "b", 1, []byte("ours")))
	wait(t, b, func(s natsbridge.Status) bool { return s.Names.Mirrored == 1 })
	require.Equal(t, map[string]string{"b": "ours"}, bucket(t, nc, "default"))
	require.NoError(t, setName(b, "default", "a", 2, []byte("ours")))
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "ours", "b": "ours"}, bucket(t, nc, "default"))
}

// put writes the key a as a broker of before compare-and-set did.
func put(nc *nats.Conn, owner, value string) error {
	return nc.PublishMsg(&nats.Msg{Subject: "$KV.baton-default.a", Header: nats.Header{"Baton-Owner": []string{owner}}, Data: []byte(value)})
}

// A broker that overwrites without looking is not raced with: what it wrote is its own.
func TestKeyThatAnotherBrokerOverwroteIsItsOwn(t *testing.T) {
	o := startOperator(t, nil)
	b := joined(t, o, "host-1")
	require.NoError(t, setName(b, "default", "a", 1, []byte("ours")))
	wait(t, b, mirrored)
	nc := o.client()
	require.NoError(t, put(nc, "host-9", "theirs"))
	s := wait(t, b, foreign)
	require.Equal(t, "host-9", s.Names.Owners[0].Instance)
	require.NoError(t, setName(b, "default", "a", 2, []byte("ours")))
	wait(t, b, foreign)
	require.Equal(t, map[string]string{"a": "theirs"}, bucket(t, nc, "default"))
	kv, err := jetStream(t, nc).KeyValue(deadline(t), "baton-default")
	require.NoError(t, err)
	require.NoError(t, kv.Purge(deadline(t), "a"))
	holds(t, nc, "ours")
}

func TestTwoBrokersThatSetTheSameNamesShareThem(t *testing.T) {
	o := startOperator(t, nil)
	a, b := joined(t, o, "host-1"), joined(t, o, "host-2")
	const count = 400
	for i := range count {
		for _, x := range []struct {
			b     *natsbridge.Bridge
			value string
		}{{a, "1"}, {b, "2"}} {
			require.NoError(t, setName(x.b, "default", fmt.Sprintf("n%d", i), 1, []byte(x.value)))
		}
	}
	inOrder := func(s natsbridge.Status) bool {
		return s.Names.Pending == 0 && s.Names.Mirrored+s.Names.Foreign == count
	}
	sa, sb := wait(t, a, inOrder), wait(t, b, inOrder)
	require.Equal(t, count, sa.Names.Mirrored+sb.Names.Mirrored)
	nc := o.client()
	values := map[string]int{}
	for name, v := range bucket(t, nc, "default") {
		values[v]++
		is, not := a, b
		if v == "2" {
			is, not = b, a
		}
		require.Equal(t, "mirrored", is.NameState("default", name))
		require.Contains(t, not.NameState("default", name), "key of broker host-")
	}
	require.Equal(t, sa.Names.Mirrored, values["1"])
	require.Equal(t, sb.Names.Mirrored, values["2"])
	require.NoError(t, a.Close(deadline(t)))
	wait(t, b, mirrored)
	require.Len(t, bucket(t, nc, "default"), count)
}

func TestSecondBrokerOnAnEmbeddedServer(t *testing.T) {
	dir := runtimeDir(t)
	a := start(t, natsbridge.Config{RuntimeDir: dir, Owner: "host-1"})
	require.NoError(t, setName(a, "default", "a", 1, []byte("first")))
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	b := start(t, natsbridge.Config{Owner: "host-2", Join: &natsbridge.JoinConfig{URLs: []string{info.URL}, Seed: info.Seed}})
	require.NoError(t, setName(b, "default", "a", 1, []byte("second")))
	require.NoError(t, setName(b, "default", "b", 1, []byte("second")))
	wait(t, b, foreign)
	nc := client(t, dir)
	require.Equal(t, map[string]string{"a": "first", "b": "second"}, bucket(t, nc, "default"))
	require.NoError(t, setName(a, "default", "b", 1, []byte("first")))
	wait(t, a, foreign)
	require.Equal(t, map[string]string{"a": "first", "b": "second"}, bucket(t, nc, "default"))
	require.NoError(t, b.Close(deadline(t)))
	wait(t, a, mirrored)
	require.Equal(t, map[string]string{"a": "first", "b": "first"}, bucket(t, nc, "default"))
}

// What others wrote into the bucket is shown to people and stands in metrics.
func TestOwnerThatIsNoBrokersIsShownAsPrintableText(t *testing.T) {
	o := startOperator(t, nil)
	b := joined(t, o, "host-1")
	require.NoError(t, setName(b, "default", "other", 1, []byte("ours")))
	wait(t, b, mirrored)
	nc := o.client()
	require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: "$KV.baton-default.a", Header: nats.Header{"Baton-Owner": []string{"*.> \x1b[31m" + strings.Repeat("é", 500)},
		"Baton-Pid": []string{"-7"}, "Baton-Answers": []string{"1"}}}))
	require.NoError(t, nc.Flush())
	require.NoError(t, setName(b, "default", "a", 1, []byte("ours")))
	s := wait(t, b, func(s natsbridge.Status) bool { return foreign(s) && s.Names.Owners[0].Asked >= 2 })
	require.Nil(t, s.Names.Owners[0].Connected, "there is no subject to ask on")
	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.NotContains(t, string(text), `\u001b`)
	require.LessOrEqual(t, len(s.Names.Owners[0].Instance), 128)
}
