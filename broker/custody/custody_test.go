package custody_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/custody"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// client is a session's client: it keeps what it is told to keep.
type client struct {
	files *custody.Files
	*custody.Session
	told bool
	kept map[sessionfiles.Key]bool
}

func (c *client) Custody() { c.told = true }

// hear does what it was told to do.
func (c *client) hear() {
	if !c.told {
		return
	}
	c.told = false
	for {
		given, ended := c.Take()
		if len(given)+len(ended) == 0 {
			return
		}
		for _, k := range given {
			c.kept[k] = true
		}
		for _, k := range ended {
			delete(c.kept, k)
		}
		c.files.Done(c.Session, given, ended)
	}
}

func (c *client) maps(k sessionfiles.Key, owner int) {
	if c.files.Lend(c.Session, k, owner) {
		c.kept[k] = true
	}
}

func open(f *custody.Files, process int) *client {
	c := &client{files: f, kept: map[sessionfiles.Key]bool{}}
	c.Session = f.Open(process, uint32(process), c)
	f.Resume(c.Session)
	return c
}

func segment(serial int) sessionfiles.Key {
	return sessionfiles.Key{Role: protocol.RestoreSegment, Serial: uint64(serial)}
}

// custodians counts the processes that have a file besides its owner's.
func custodians(all []*client, k sessionfiles.Key) (n int) {
	processes := map[int]bool{}
	for _, c := range all {
		if c.kept[k] {
			processes[c.Process] = true
		}
	}
	return len(processes)
}

func TestFewThatMapAFileAllKeepIt(t *testing.T) {
	f := custody.New()
	var all []*client
	for n := range 3 {
		all = append(all, open(f, 10+n))
		all[n].maps(segment(1), 1)
	}
	require.Equal(t, 3, custodians(all, segment(1)))
	require.False(t, f.Lacking())
	for _, c := range all {
		require.False(t, c.told, "no session is asked for anything")
	}
}

func TestSessionsOfOneProcessCountAsOne(t *testing.T) {
	f := custody.New()
	first, second, owner := open(f, 10), open(f, 10), open(f, 1)
	first.maps(segment(1), 1)
	second.maps(segment(1), 1)
	owner.maps(segment(1), 1)
	require.True(t, first.kept[segment(1)])
	require.False(t, second.kept[segment(1)])
	require.False(t, owner.kept[segment(1)], "the owner's process has it")
}

// Sessions come and go, and map the files of all others. When they have heard what they are
// told, each file has as many custodians as there are processes, up to enough, and none has
// many more than others.
func TestEveryFileHasCustodiansWhateverEnds(t *testing.T) {
	seed := rand.Int63()
	t.Logf("random seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	f := custody.New()
	var all []*client
	files := map[sessionfiles.Key]int{} // with the owner's process
	exchange := func() {
		for range 3 {
			assign(f, time.Now())
			for _, c := range all {
				c.hear()
			}
		}
	}
	next := 1
	for range 300 {
		switch {
		case len(all) < 8 || random.Intn(3) > 0:
			c := open(f, next)
			for k, owner := range files {
				c.maps(k, owner)
			}
			files[segment(next)] = next
			for _, other := range all {
				other.maps(segment(next), next)
			}
			all = append(all, c)
			next++
		case random.Intn(2) > 0:
			i := random.Intn(len(all))
			f.End(all[i].Session)
			all = append(all[:i], all[i+1:]...)
		default:
			for k := range files {
				f.Gone(k)
				delete(files, k)
				break
			}
		}
		exchange()
		kept := 0
		for k, owner := range files {
			others := 0
			for _, c := range all {
				if c.Process != owner {
					others++
				}
			}
			require.GreaterOrEqual(t, custodians(all, k), min(others, custody.Enough), "%v", k)
		}
		for _, c := range all {
			for k := range c.kept {
				require.Contains(t, files, k, "a file that is over is closed")
			}
			kept += len(c.kept)
		}
		for _, c := range all {
			require.LessOrEqual(t, len(c.kept), max(64, 5*kept/len(all)/2), fmt.Sprintf("of %d", kept))
		}
	}
}

func TestWhatWasHandedOverIsInCustody(t *testing.T) {
	f := custody.New()
	var all []*client
	for n := range 6 {
		all = append(all, open(f, 10+n))
	}
	f.Handed(all[0].Session, segment(1), 1)
	all[0].kept[segment(1)] = true
	for _, c := range all[1:] {
		f.Mapped(c.Session, segment(1), 1)
	}
	require.True(t, f.Lacking())
	assign(f, time.Now())
	for _, c := range all {
		c.hear()
	}
	require.Equal(t, custody.Enough, custodians(all, segment(1)))
	require.False(t, f.Lacking())
}

// A connection may be lost with an answer on its way.
func TestSessionThatIsBackIsGivenAllAgain(t *testing.T) {
	f := custody.New()
	c := open(f, 10)
	require.True(t, f.Lend(c.Session, segment(1), 1))
	f.Away(c.Session)
	f.Resume(c.Session)
	c.hear()
	require.True(t, c.kept[segment(1)])
}

func TestFileThatEndsBeforeItWasTakenIsNeverGiven(t *testing.T) {
	f := custody.New()
	c, other := open(f, 10), open(f, 11)
	f.Handed(other.Session, segment(1), 1)
	f.Mapped(c.Session, segment(1), 1)
	assign(f, time.Now())
	require.True(t, c.told)
	f.Gone(segment(1))
	c.hear()
	require.Empty(t, c.kept)
}

// A session that is suspended, or has no room for a descriptor, is no custodian: others are
// asked.
func TestSessionThatDoesNotAnswerIsNoCustodian(t *testing.T) {
	f := custody.New()
	var all []*client
	for n := range 6 {
		all = append(all, open(f, 10+n))
		f.Mapped(all[n].Session, segment(1), 1)
	}
	now := time.Now()
	require.True(t, assign(f, now))
	for _, c := range all {
		c.told = c.told && false // the first three hear nothing
	}
	require.True(t, assign(f, now), "they may still answer")
	require.True(t, f.Lacking())
	for _, c := range all {
		require.False(t, c.told, "and no other session is asked meanwhile")
	}
	assign(f, now.Add(custody.AnswerTime))
	for _, c := range all {
		c.hear()
	}
	require.Equal(t, custody.Enough, custodians(all, segment(1)))
	require.False(t, f.Lacking())
}

// A closed session closes what it has when it holds it no more: others are asked to keep that.
func TestClosedSessionIsNoCustodian(t *testing.T) {
	f := custody.New()
	k, other := segment(1), segment(2)
	var all []*client
	for process := 2; process < 10; process++ {
		c := open(f, process)
		c.maps(k, 1)
		all = append(all, c)
	}
	all[0].maps(other, 1)
	require.False(t, f.Lacking())
	for _, c := range all[:custody.Enough] {
		require.True(t, c.kept[k])
		f.Close(c.Session)
	}
	require.True(t, f.Lacking())
	assign(f, time.Now())
	n := 0
	for _, c := range all[custody.Enough:] {
		c.hear()
		if c.kept[k] {
			n++
		}
	}
	require.Equal(t, custody.Enough, n)
	require.False(t, f.Lend(all[1].Session, segment(3), 1), "what it maps from now on it closes")
	require.True(t, f.Lacking(), "that, and what one of them alone has mapped")
	f.Resume(all[0].Session)
	given, _ := all[0].Take()
	require.Empty(t, given)
	f.Handed(all[2].Session, other, 1)
	f.Gone(other)
	f.Gone(k)
	for _, c := range all {
		c.hear()
	}
	require.Empty(t, all[0].kept, "it hears the end of what it may have")
	_, ended := all[2].Take()
	require.Empty(t, ended)
	require.False(t, all[2].kept[other])
	f.End(all[0].Session)
}

// A session that could not receive a descriptor says so: it is no custodian.
func TestSessionWithoutRoomForADescriptorIsNoCustodian(t *testing.T) {
	f := custody.New()
	var all []*client
	for process := 2; process < 7; process++ {
		c := open(f, process)
		c.maps(segment(1), 1)
		all = append(all, c)
	}
	require.True(t, all[0].kept[segment(1)])
	delete(all[0].kept, segment(1))
	f.Done(all[0].Session, nil, []sessionfiles.Key{segment(1)})
	require.True(t, f.Lacking())
	assign(f, time.Now())
	for _, c := range all {
		c.hear()
	}
	require.Equal(t, custody.Enough, custodians(all, segment(1)))
	require.False(t, f.Lacking())
}

// assign is Assign with time enough.
func assign(f *custody.Files, now time.Time) (again bool) {
	again, _ = f.Assign(now, time.Hour)
	return again
}

func TestFilesThatThereWasNoTimeForAreAssignedByTheNextCalls(t *testing.T) {
	f := custody.New()
	maker := open(f, 1)
	for p := range 5 {
		open(f, 2+p)
	}
	closer := open(f, 10)
	for k := range 100 {
		f.Mapped(closer.Session, segment(k), maker.Process)
	}
	_, more := f.Assign(time.Now(), -1)
	require.True(t, more, "there was no time")
	again, more := f.Assign(time.Now(), time.Hour)
	require.True(t, again)
	require.False(t, more)
}
