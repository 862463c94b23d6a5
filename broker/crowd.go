package broker

import (
	"maps"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// While a broker waits for the clients of the previous broker, the open files that those need
// are kept for them: programs that connect meanwhile have a part of the rest. Whether a
// connection is of a client that comes back is known from its hello on.

// crowd is what is known of a connection during a takeover.
type crowd uint8

const (
	uncounted   crowd = iota // its files are counted elsewhere, or the takeover was not there yet
	beforeHello              // it has not said hello
	strangers                // it waits for a new session
	comers                   // it was asked for the files of a session
)

// fewBeforeHello is how many connections may be without a hello however few files are left: they
// are among filesBeside, and a client that comes back is one of them for a moment.
const fewBeforeHello = filesBeside / 4

// errCrowded sends a client away; the client tries again.
var errCrowded = &protocol.Error{Code: protocol.CodeBrokerLost,
	Message: "the broker waits for the clients of the previous broker, and has no more open files for others until then",
	Remedy:  "connect again, or raise the broker's limit of open files (ulimit -n, LimitNOFILE= of a unit)"}

// connect counts a new connection, or refuses it. A nil gathering refuses none.
func (t *gathering) connect(c *conn) error {
	if t == nil {
		return nil
	}
	// A half is kept for connections that have said nothing yet, since they may be of sessions that come back.
	if t.crowded[beforeHello] >= max(fewBeforeHello, t.room/2) {
		return errCrowded
	}
	t.count(c, beforeHello)
	return nil
}

// wait counts a connection that waits for a new session, or refuses it.
func (t *gathering) wait(c *conn) error {
	if (t.crowded[strangers]+1)*filesEach > t.room/2 {
		return errCrowded
	}
	t.count(c, strangers)
	return nil
}

// knows tells whether a process may be that of a session which is awaited.
func (t *gathering) knows(serial uint64, pid int) bool {
	sameView := t.state.PIDNS == sys.PIDNamespace(processID)
	return slices.ContainsFunc(t.state.Sessions, func(s stateSession) bool {
		return s.Serial == serial && (s.PID == pid || pid == 0 || s.StartTime == 0 || !sameView)
	})
}

// asks counts a connection that is asked for the files of a session: its files are counted as
// that one's. It tells whether no other one is asked for them.
func (t *gathering) asks(c *conn, serial uint64) bool {
	if t.asked[serial] != nil {
		return false
	}
	t.asked[serial] = c
	t.count(c, comers)
	return true
}

// forget ends the count of a connection.
func (t *gathering) forget(c *conn) {
	if t == nil {
		return
	}
	if c.crowd == comers {
		maps.DeleteFunc(t.asked, func(_ uint64, asked *conn) bool { return asked == c })
	}
	t.count(c, uncounted)
}

func (t *gathering) count(c *conn, as crowd) {
	t.crowded[c.crowd]--
	t.crowded[as]++
	c.crowd = as
}
