package logqueue_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cmd/baton/internal/logqueue"
)

// patience bounds what would otherwise hang.
const patience = time.Minute

// reader is what a log is written to: it may take nothing for a time, or refuse.
type reader struct {
	stalls sync.Mutex // held while it takes nothing
	asked  chan struct{}

	mu     sync.Mutex
	refuse error
	room   int // that is left when it refuses
	got    bytes.Buffer
}

func (r *reader) Write(p []byte) (int, error) {
	select {
	case r.asked <- struct{}{}:
	default:
	}
	r.stalls.Lock()
	defer r.stalls.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		n, _ := r.got.Write(p[:min(r.room, len(p))])
		r.room -= n
		return n, r.refuse
	}
	return r.got.Write(p)
}

func (r *reader) refuses(err error) { r.refusesAfter(0, err) }

// refusesAfter has it take so many bytes more.
func (r *reader) refusesAfter(room int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse, r.room = err, room
}

func (r *reader) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.String()
}

func newQueue() (*logqueue.Queue, *reader) {
	r := &reader{asked: make(chan struct{}, 1)}
	q := logqueue.New(r)
	q.OnLoss(func(to io.Writer, lines uint64) error {
		_, err := fmt.Fprintf(to, "lost %d\n", lines)
		return err
	})
	return q, r
}

func put(t *testing.T, q *logqueue.Queue, line string) {
	t.Helper()
	n, err := q.Write([]byte(line))
	require.NoError(t, err)
	require.Equal(t, len(line), n)
}

func TestLinesAreWrittenInOrderAndNoneIsLost(t *testing.T) {
	q, r := newQueue()
	var want strings.Builder
	for i := range 5000 {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		put(t, q, line)
	}
	require.True(t, q.Flush(patience))
	assert.Equal(t, want.String(), r.text())
	assert.Zero(t, q.Status())
	require.True(t, q.Flush(0), "nothing waits")
}

func TestLinesOfManyWritersAreWhole(t *testing.T) {
	q, r := newQueue()
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			for j := range 200 {
				fmt.Fprintf(q, "%d %d\n", i, j)
			}
		})
	}
	writers.Wait()
	require.True(t, q.Flush(patience))
	next := map[int]int{}
	for line := range strings.Lines(r.text()) {
		var i, j int
		_, err := fmt.Sscanf(line, "%d %d\n", &i, &j)
		require.NoError(t, err, line)
		require.Equal(t, next[i], j)
		next[i]++
	}
	assert.Len(t, next, 8)
}

// A reader that takes nothing holds no writer up. What does not fit is told at its place, in one line.
func TestLinesThatDoNotFitAreDroppedAndTold(t *testing.T) {
	q, r := newQueue()
	r.stalls.Lock()
	line := strings.Repeat("x", 1<<10) + "\n"
	put(t, q, "first\n")
	<-r.asked
	fits := (logqueue.Most - len("first\n")) / len(line)
	for range fits + 100 {
		put(t, q, line)
	}
	put(t, q, "short\n")
	assert.EqualValues(t, 101, q.Status().Lost, "none comes before one that was dropped")
	assert.False(t, q.Flush(time.Millisecond))
	for tick := time.NewTicker(10 * time.Millisecond); q.Status().Stalled == 0; <-tick.C {
	}
	assert.Regexp(t, `^101 lines lost since the broker started; nothing has read it for \d+ s$`, q.Status().String())
	r.stalls.Unlock()
	require.True(t, q.Flush(patience))
	assert.Zero(t, q.Status().Stalled)
	put(t, q, "last\n")
	require.True(t, q.Flush(patience))
	assert.Equal(t, "first\n"+strings.Repeat(line, fits)+"lost 101\nlast\n", r.text())
	assert.Equal(t, "101 lines lost since the broker started", q.Status().String())
}

func TestALineThatIsLongerThanTheQueueIsWritten(t *testing.T) {
	q, r := newQueue()
	line := strings.Repeat("x", 2*logqueue.Most) + "\n"
	put(t, q, line)
	require.True(t, q.Flush(patience))
	assert.Equal(t, line, r.text())
}

// A line that cannot be written is lost, as where the reader has ended or the file system is full.
func TestLinesThatCannotBeWrittenAreToldOnceTheyCan(t *testing.T) {
	q, r := newQueue()
	put(t, q, "first\n")
	require.True(t, q.Flush(patience))
	r.refuses(errors.New("full"))
	for range 10 {
		put(t, q, "lost\n")
	}
	require.True(t, q.Flush(patience))
	assert.EqualValues(t, 10, q.Status().Lost)
	r.refuses(nil)
	put(t, q, "last\n")
	require.True(t, q.Flush(patience))
	assert.Equal(t, "first\nlost 10\nlast\n", r.text())
}

// A line that is written in part, as where the file system becomes full within it, leaves the next one whole.
func TestALineThatIsCutEndsBeforeTheNext(t *testing.T) {
	for room, before := range map[int]string{
		0:  "first\n",
		3:  "first\ncut\n",
		7:  "first\ncut off\n", // all but the newline
		10: "first\ncut off\nlo\n",
	} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			q, r := newQueue()
			put(t, q, "first\n")
			require.True(t, q.Flush(patience))
			r.refusesAfter(room, errors.New("full"))
			put(t, q, "cut off\n")
			put(t, q, "lost\n")
			require.True(t, q.Flush(patience))
			r.refuses(nil)
			put(t, q, "last\n")
			put(t, q, "and one more\n")
			require.True(t, q.Flush(patience))
			assert.Equal(t, before+"lost 2\nlast\nand one more\n", r.text())
		})
	}
}

func TestALogThatEndsWithinALineIsGoneOnWithInTheNext(t *testing.T) {
	q, r := newQueue()
	q.Lead(r, true)
	put(t, q, "first\n")
	put(t, q, "second\n")
	require.True(t, q.Flush(patience))
	assert.Equal(t, "\nfirst\nsecond\n", r.text())
}

func TestWhatFollowsGoesToTheOtherWriter(t *testing.T) {
	q, r := newQueue()
	put(t, q, "first\n")
	require.True(t, q.Flush(patience))
	other := &reader{}
	q.Lead(other, false)
	put(t, q, "second\n")
	require.True(t, q.Flush(patience))
	assert.Equal(t, "first\n", r.text())
	assert.Equal(t, "second\n", other.text())
}
