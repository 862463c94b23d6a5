package langs

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// soakTime is how long sessions come and go: BATON_SOAK, a duration, or no longer than
// the fewest samples take.
func soakTime(t *testing.T) time.Duration {
	s := os.Getenv("BATON_SOAK")
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err, "BATON_SOAK")
	return d
}

const (
	// soakRounds are between two samples: one for each way in which a guest ends.
	soakRounds = 6
	// fewestSamples are taken however short the soak is.
	fewestSamples = 8
)

// One broker serves while sessions come and go, die, are closed while they hold and are
// replaced by exec. At rest the broker and the clients that stay have as much as before.
func TestSoakOfOneBroker(t *testing.T) { testSoak(t, nil) }

// As above, and brokers are killed, ended in order and replaced meanwhile.
func TestSoakThroughManyBrokers(t *testing.T) {
	testSoak(t, []func(*soak){
		func(s *soak) { s.b.Kill(); s.b.Restart() },
		func(s *soak) { s.b.Term(); s.b.Restart() },
		func(s *soak) { s.b.Replace() },
	})
}

// soak is the sessions that come and those that stay.
type soak struct {
	t      *testing.T
	b      *testkit.Broker
	guests []language
	stay   []*driver
	crowd  int // sessions of one process
	n      int // rounds
}

func testSoak(t *testing.T, seams []func(*soak)) {
	s := &soak{t: t, b: testkit.StartBroker(t), crowd: 8}
	if soakTime(t) > 0 {
		s.crowd = 200
	}
	// The C driver is built without sanitizers, which keep what was freed.
	s.guests = []language{languages[0], languages[1], {"c", func(t *testing.T) []testkit.StartOption {
		return []testkit.StartOption{testkit.Program(clib.Compiled(t, "gcc", "integration/langs/c/driver.c", "-O2"))}
	}}}
	if _, err := os.Stat(interpreter(t)); err == nil {
		s.guests = append(s.guests, python)
	} else {
		t.Logf("without a driver in Python: %v (make test builds it)", err)
	}
	for _, l := range s.guests {
		s.stay = append(s.stay, start(t, s.b, l))
	}
	var found series
	for until := time.Now().Add(soakTime(t)); len(found) < fewestSamples || time.Now().Before(until); {
		for range soakRounds {
			s.round()
			if len(seams) > 0 {
				seams[s.n%len(seams)](s)
			}
			s.tidy()
			s.n++
		}
		found = append(found, s.sample())
		t.Logf("after %d rounds: %v", s.n, found[len(found)-1])
	}
	found.flat(t)
	leave(t, s.b, s.stay...)
}

// round has a driver come, take part in all there is, and end in one of several ways.
func (s *soak) round() {
	topic, queue, words := fmt.Sprintf("t%d", s.n%5), fmt.Sprintf("q%d", s.n%5), 64<<(s.n%8)
	guest := start(s.t, s.b, s.guests[s.n%len(s.guests)])
	all := append(slices.Clone(s.stay), guest)
	for _, d := range all {
		d.do(command{"do": "read", "topic": topic})
	}
	for i, d := range all {
		d.do(command{"do": "send", "topic": topic, "seed": i, "count": 3, "words": words})
	}
	for i := range 2 { // drivers in Python do not put
		all[i].do(command{"do": "put", "queue": queue, "redeliver": true, "seed": i, "count": len(all), "words": words})
	}
	for _, d := range all {
		d.do(command{"do": "receive", "topic": topic, "hold": true})
		d.do(command{"do": "take", "queue": queue, "redeliver": true, "hold": s.n%2 == 0})
	}
	guest.do(command{"do": "set", "name": "n", "seed": nameSeed, "words": words})
	s.stay[0].do(command{"do": "get", "name": "n", "seed": nameSeed, "hold": true})
	s.part(guest)
}

// part ends a guest that holds something.
func (s *soak) part(guest *driver) {
	switch s.n % soakRounds {
	case 0, 1:
		guest.Kill()
	case 2: // another session of the process keeps what it holds
		guest.do(command{"do": "close"})
		guest.do(command{"do": "check"})
		guest.Kill()
	case 3:
		guest.do(command{"do": "exec"})
		guest.Done()
	case 4:
		guest.do(command{"do": "close"})
		guest.do(command{"do": "release"})
		guest.Done()
		s.stay[s.n/soakRounds%len(s.stay)].do(command{"do": "close"})
	case 5:
		guest.Done()
		crowd := s.b.Start("crowd", s.crowd)
		crowd.Next(new(string))
		if s.n/soakRounds%2 == 0 {
			crowd.Kill()
		} else {
			crowd.Done()
		}
	}
}

// tidy has those that stay look at what they hold, and let go of everything.
func (s *soak) tidy() {
	for _, d := range s.stay {
		d.do(command{"do": "release"})
		d.do(command{"do": "forget"})
	}
	a := s.stay[0].try(command{"do": "delete", "name": "n"})
	require.Contains(s.t, []string{"", "NotFound"}, a.Code, a.Message)
}

// comeTogether is a process with many sessions, four on each topic, each of which sends,
// leases, receives and holds.
func comeTogether(p *testkit.Child) error {
	var sessions int
	if err := p.Config(&sessions); err != nil {
		return err
	}
	var all []*client.Client
	var topics []*client.Topic
	var readers []*client.Reader
	for i := range sessions {
		c, err := p.Connect()
		if err != nil {
			return err
		}
		t, err := c.Topic(p.Context(), fmt.Sprintf("crowd%d", i/4), client.Linger(0))
		if err != nil {
			return err
		}
		r, err := t.Reader(p.Context())
		if err != nil {
			return err
		}
		all, topics, readers = append(all, c), append(topics, t), append(readers, r)
	}
	var held []*client.Message
	for i, c := range all {
		x, err := c.Alloc(p.Context(), dlpack.Uint64, []int64{1000})
		if err != nil {
			return err
		}
		err = topics[i].Send(p.Context(), x)
		if err == nil {
			_, err = x.Handle(p.Context(), client.LeaseSession())
		}
		x.Release()
		if err != nil {
			return err
		}
		m, err := readers[i].Receive(p.Context())
		if err != nil {
			return err
		}
		held = append(held, m)
	}
	if err := p.Say("ready"); err != nil {
		return err
	}
	<-p.Context().Done()
	for _, c := range all {
		if err := c.Close(); err != nil {
			return err
		}
	}
	for _, m := range held {
		m.Release()
	}
	return nil
}

// sample waits until nothing is held and nothing is named, and looks at everything.
func (s *soak) sample() sample {
	found := sample{}
	probe := fmt.Sprintf("probe%d", s.n)
	for _, d := range s.stay {
		d.do(command{"do": "send", "topic": probe, "count": 1, "words": 8})
	}
	for d, at := range s.lanes(probe) {
		found[s.guests[d].name+" lane"] = int64(at)
	}
	for _, d := range s.stay {
		d.do(command{"do": "forget"})
	}
	testkit.Audit(s.t, s.b)
	testkit.Until(s.t, "nothing is held and nothing named", func() (bool, string) {
		for _, d := range s.stay {
			d.do(command{"do": "collect"})
		}
		h := testkit.Look(s.t, s.b)
		var st broker.Status
		_, err := s.b.Raw().Call(protocol.OpStatus, nil, &st)
		require.NoError(s.t, err)
		c := st.Counts
		found["broker's segments"], found["broker's chunks"] = int64(c.Segments), int64(c.Chunks)
		found["broker's granted"] = int64(st.Memory.Granted)
		return len(h.Storages)+c.Topics+c.Queues+c.Names+c.Leases+c.AdoptedLanes+c.Closed+c.Disconnected == 0 &&
			c.Sessions == len(s.stay)+1 && st.Memory.Orphans+st.Memory.Lanes == 0, fmt.Sprintf("%+v\n%s", c, h)
	})
	found.add(s.t, "broker", s.b.Process().PID())
	found["broker's shared"] = sharedBytes(s.b.Process().PID())
	for i, d := range s.stay {
		found.add(s.t, s.guests[i].name, d.PID())
	}
	return found
}

// lanes tells where in their sessions' files the lanes of those that stay lie in a topic.
func (s *soak) lanes(topic string) map[int]uint64 {
	out := map[int]uint64{}
	sessions := testkit.Look(s.t, s.b).Sessions
	page := record.Of(s.b.Raw().Broker)
	for i := range page.UsedTopics() {
		v := page.Topic(i)
		if v.ID() == 0 || v.Load().Name != topic {
			continue
		}
		for n := range uint32(len(s.stay)) {
			lane := v.Lane(n).Load()
			of := slices.IndexFunc(sessions, func(r broker.SessionRow) bool { return r.Serial == lane.Serial })
			require.GreaterOrEqual(s.t, of, 0, "lane %d of %s is of no session", n, topic)
			member := slices.IndexFunc(s.stay, func(d *driver) bool { return d.PID() == sessions[of].PID })
			out[member] = lane.Offset
		}
	}
	require.Len(s.t, out, len(s.stay))
	return out
}
