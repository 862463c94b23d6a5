package main_test

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A command waits for a broker that is suspended as long as --timeout says, and without that not long.
func TestSuspendedBrokerIsWaitedForAsLongAsTimeoutSays(t *testing.T) {
	t.Parallel() // it has to wait until a broker is given up
	p := newPlace(t)
	broker := p.serve()
	p.must("set", "x", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	broker.freeze()
	looks := [][]string{{"status"}, {"ping"}, {"ls"}, {"limit"}, {"events"}, {"top", "-n", "1", "--json"}, {"show", "x"}}
	var patient, bounded, asking []*running
	began := time.Now()
	for _, args := range looks {
		patient = append(patient, p.start(p.command(append(args, "--timeout", "1m")...)))
		bounded = append(bounded, p.start(p.command(append(args, "--timeout", "5s")...)))
		asking = append(asking, p.start(p.command(args...)))
	}
	for _, c := range asking {
		c.wait().fails(t, 5, "does not answer: it is suspended", "kill -CONT")
	}
	for _, c := range bounded {
		c.wait().fails(t, 5, "does not answer: it is suspended", "kill -CONT")
	}
	assert.GreaterOrEqual(t, time.Since(began), 5*time.Second)
	broker.signal(syscall.SIGCONT)
	for i, c := range patient {
		r := c.wait()
		assert.Zero(t, r.code, "%v\n%s", looks[i], r.err)
		assert.NotEmpty(t, r.out)
	}
}

// A command that goes on with what happens says that the broker is suspended, goes on when that does, and when it was
// killed with the next one.
func TestFollowersGoOnWithASuspendedBroker(t *testing.T) {
	t.Parallel() // as above
	p := newPlace(t)
	first := p.serve()
	follower := p.start(p.command("events", "-f", "--kind", "steered"))
	bounded := p.start(p.command("events", "-f", "--kind", "steered", "--timeout", "1m"))
	top := p.start(p.command("top", "--json", "-i", "100ms"))
	all := []*running{follower, bounded, top}
	told := func(size int) {
		t.Helper()
		p.must("limit", "--memory", strconv.Itoa(size), "--timeout", "1m")
		for _, f := range all[:2] {
			p.until("an event is told", func() bool { return strings.Contains(f.out.String(), "  memory="+strconv.Itoa(size)+" ") })
		}
	}
	looks := func() int { return strings.Count(top.out.String(), "\n") }
	told(1 << 30)
	p.until("top looks", func() bool { return looks() > 1 })
	say := func(text string) {
		t.Helper()
		for _, f := range all {
			p.until("it says "+text, func() bool { return strings.Contains(f.err.String(), text) })
		}
	}

	first.freeze()
	say("does not answer: it is suspended: waiting for it; what to do: let it go on (kill -CONT ")
	before := looks()
	first.signal(syscall.SIGCONT)
	told(2 << 30)
	p.until("top looks again", func() bool { return looks() > before })

	first.freeze()
	for _, f := range all {
		p.until("it says so again", func() bool { return strings.Count(f.err.String(), "it is suspended") == 2 })
	}
	first.signal(syscall.SIGKILL)
	first.wait()
	say("the broker has ended, or cannot be reached: waiting for the next one")
	p.serve()
	told(3 << 30)
	for _, f := range all {
		assert.Len(t, lines(f.err.String()), 3, "each thing is said once")
		f.signal(syscall.SIGINT)
		assert.Equal(t, 128+int(syscall.SIGINT), f.wait().code)
	}
}
