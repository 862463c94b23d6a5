package integration

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// kills is how many processes a campaign kills: n unless it was told.
func kills(t *testing.T, n int) int {
	if s := os.Getenv("BATON_CRASH_KILLS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err, "BATON_CRASH_KILLS")
	}
	return n
}

// campaign is a load with its children.
type campaign struct {
	t       *testing.T
	b       *testkit.Broker
	c       *client.Client
	jobs    *client.Queue
	results *client.Queue
	random  *rand.Rand
	ctx     context.Context
	cancel  context.CancelFunc
	ended   chan error

	harvest harvest
	members []*member
	born    int
	put     map[string]int // jobs that a loader said it had put
	killed  map[string]int // by role
	mayLose int            // jobs whose memory may have gone with its last holder
}

type member struct {
	*testkit.Process
	role string
	name string
	said int // how often it has said how far it is
}

func newCampaign(t *testing.T, b *testkit.Broker) *campaign {
	seed := rand.Int63()
	t.Logf("random seed %d", seed)
	k := &campaign{t: t, b: b, c: b.Connect(client.WithName("harvest")), random: rand.New(rand.NewSource(seed)),
		put: map[string]int{}, killed: map[string]int{}, harvest: harvest{got: map[string]map[int]int{}}, ended: make(chan error, 1)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	t.Cleanup(k.cancel)
	var err error
	k.results, err = results.openQueue(testkit.Context(t), k.c)
	require.NoError(t, err)
	// Open here too, or the jobs go with their queue when all have died.
	k.jobs, err = jobs.openQueue(testkit.Context(t), k.c)
	require.NoError(t, err)
	go func() { k.ended <- k.harvest.run(k.ctx, k.results) }()
	for _, role := range []string{"follower", "follower", "worker", "worker", "loader", "loader"} {
		k.add(role)
	}
	return k
}

func (k *campaign) add(role string) *member {
	k.born++
	m := &member{role: role, name: fmt.Sprintf("%s-%d", role, k.born)}
	m.Process = k.b.Start(role, m.name)
	m.Process.Name = m.name
	k.members = append(k.members, m)
	return m
}

// listen takes what a member has said, without waiting.
func (k *campaign) listen(m *member) {
	var p progress
	for m.Poll(&p) {
		k.heard(m, p)
	}
}

func (k *campaign) heard(m *member, p progress) {
	m.said++
	if m.role == "loader" && !p.Resting {
		k.put[m.name] = p.N
	}
}

// moves waits until a member has said something n times more.
func (k *campaign) moves(m *member, n int) {
	k.t.Helper()
	select {
	case err := <-k.ended:
		k.t.Fatalf("the harvest ended: %v", err)
	default:
	}
	for k.listen(m); n > 0; n-- {
		var p progress
		m.Next(&p)
		k.heard(m, p)
		k.listenAll()
	}
}

func (k *campaign) listenAll() {
	for _, m := range k.members {
		k.listen(m)
	}
}

// kill kills a member at some instruction while it is at work.
func (k *campaign) kill(i int) {
	k.moves(k.members[i], k.random.Intn(3))
	k.killNow(i)
}

func (k *campaign) killNow(i int) {
	victim := k.members[i]
	for range k.random.Intn(2000) {
		runtime.Gosched()
	}
	victim.Kill()
	k.listen(victim) // what it had said
	k.killed[victim.role]++
	k.members = append(k.members[:i], k.members[i+1:]...)
}

// everybodyMoves fails the test unless every member goes on with its work.
func (k *campaign) everybodyMoves() {
	k.t.Helper()
	for _, m := range k.members {
		k.moves(m, 2) // the first may have been said before
	}
}

// rest brings all to rest, compares every count with what is named, and
// lets them go on.
func (k *campaign) rest() {
	for _, m := range k.members {
		m.Tell(order("rest"))
	}
	for _, m := range k.members {
		for {
			var p progress
			m.Next(&p)
			k.heard(m, p)
			if p.Resting {
				break
			}
		}
	}
	k.c.Collect()
	testkit.AuditKept(k.t, k.b)
	for _, m := range k.members {
		m.Tell(order("go"))
	}
}

// finish ends the load in order and checks that nothing was lost.
func (k *campaign) finish() {
	t := k.t
	end := func(role string) {
		var rest []*member
		for _, m := range k.members {
			if m.role != role {
				rest = append(rest, m)
				continue
			}
			m.Tell(order("stop"))
			m.Ended()
			k.listen(m)
		}
		k.members = rest
	}
	end("loader")
	testkit.Until(t, "all jobs are taken and all results are there", func() (bool, string) {
		n, err := k.jobs.Len(testkit.Context(t))
		require.NoError(t, err)
		if n > 0 {
			return false, fmt.Sprint(n, " jobs wait")
		}
		n, some := k.missing()
		return n <= k.mayLose, fmt.Sprintf("%d jobs have no result, such as %v", n, some)
	})
	end("worker")
	end("follower")
	require.NoError(t, k.jobs.Close())
	require.NoError(t, k.results.End(testkit.Context(t)))
	require.NoError(t, <-k.ended)
	require.NoError(t, k.results.Close())
	require.LessOrEqual(t, k.harvest.more, k.killed["worker"], "a job is done twice only where its worker died over it")
	if err := k.c.Delete(testkit.Context(t), loadName); err != nil {
		t.Logf("no name was set: %v", err)
	}
	testkit.AuditEmpty(t, k.b, k.c)
	t.Logf("killed %v; %d jobs put, %d results came twice", k.killed, k.allPut(), k.harvest.more)
}

func (k *campaign) allPut() (n int) {
	for _, put := range k.put {
		n += put
	}
	return n
}

// missing counts jobs that were put and have no result, and names some.
func (k *campaign) missing() (n int, some []string) {
	k.harvest.mu.Lock()
	defer k.harvest.mu.Unlock()
	for from, put := range k.put {
		for id := range put {
			if k.harvest.got[from][id] > 0 {
				continue
			}
			if n++; n <= 10 {
				some = append(some, fmt.Sprintf("%s/%d", from, id))
			}
		}
	}
	return n, some
}

// TestRandomKillsUnderLoad kills one process after another at random instructions
// while all of them work, and looks after each death at every storage: nothing of
// the dead one is counted anywhere, all others go on, and what each
// reads is right (the children verify every word). Now and then all rest, and
// every count must be what is named. In the end no job is lost and nothing held.
func TestRandomKillsUnderLoad(t *testing.T) {
	b := testkit.StartBroker(t)
	k := newCampaign(t, b)
	k.everybodyMoves()
	n := kills(t, 1000)
	for i := range n {
		at := k.random.Intn(len(k.members))
		role, pid := k.members[at].role, k.members[at].PID()
		k.kill(at)
		testkit.Gone(t, b, pid)
		testkit.Audit(t, b)
		k.everybodyMoves()
		k.add(role)
		if i%20 == 19 {
			k.everybodyMoves()
			k.rest()
		}
	}
	k.everybodyMoves()
	k.finish()
}

// TestKillsOfAllAtOnce kills every process at the same time, several times over:
// nothing of any of them may be left.
func TestKillsOfAllAtOnce(t *testing.T) {
	b := testkit.StartBroker(t)
	k := newCampaign(t, b)
	for range max(2, kills(t, 100)/10) {
		k.everybodyMoves()
		var pids []int
		var again []string
		for _, m := range k.members {
			again = append(again, m.role)
			pids = append(pids, m.PID())
		}
		for len(k.members) > 0 {
			k.members[0].Kill()
			k.listen(k.members[0])
			k.killed[k.members[0].role]++
			k.members = k.members[1:]
		}
		testkit.Gone(t, b, pids...)
		testkit.AuditKept(t, b)
		for _, role := range again {
			k.add(role)
		}
	}
	k.everybodyMoves()
	k.finish()
}
