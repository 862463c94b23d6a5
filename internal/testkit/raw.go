package testkit

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func dialSocket(path string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
}

// Raw is a session spoken by hand, after docs/protocol.md: for tests that look
// at the broker's page, or break the rules. Calls are made one after another.
type Raw struct {
	Conn  *wire.Conn
	Hello protocol.HelloReply
	// What came with hello.
	Broker, Session, BellFile, BrokerSession shm.Region
	SessionFD                                *sys.FD

	next uint64
	fds  []*sys.FD
	maps [][]byte
}

// DialRaw opens a session at a socket.
func DialRaw(socket, namespace string) (*Raw, error) {
	c, err := dialSocket(socket)
	if err != nil {
		return nil, err
	}
	r := &Raw{Conn: wire.New(c)}
	fds, err := r.Call(protocol.OpHello, protocol.Hello{Protocol: protocol.Version, Layout: protocol.Layout,
		Client: protocol.Client{Name: "raw", Language: "go", Version: "test"}, Namespace: namespace, PID: os.Getpid()}, &r.Hello)
	if err != nil {
		c.Close()
		return nil, err
	}
	if len(fds) != 4 {
		r.Close()
		return nil, fmt.Errorf("hello came with %d descriptors", len(fds))
	}
	r.SessionFD = fds[1]
	for i, m := range []struct {
		to    *shm.Region
		bytes uint64
		write bool
	}{{&r.Broker, protocol.BrokerBytes, false}, {&r.Session, protocol.SessionBytes, true}, {&r.BellFile, protocol.BellBytes, true},
		{&r.BrokerSession, protocol.SessionBytes, false}} {
		if *m.to, err = r.Map(fds[i], m.bytes, m.write); err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

// Call makes one request and decodes the reply. The descriptors that came with
// it stay open until Close.
func (r *Raw) Call(op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	r.next++
	if err := r.Conn.Request(r.next, op, body, send...); err != nil {
		return nil, err
	}
	r.Conn.SetDeadline(time.Now().Add(Patience))
	for {
		data, fds, err := r.Conn.Read()
		if err != nil {
			return nil, err
		}
		r.fds = append(r.fds, fds...)
		var e protocol.Envelope
		if err := json.Unmarshal(data, &e); err != nil {
			return nil, err
		}
		switch {
		case e.Event != "":
			continue
		case e.Error != nil:
			return nil, e.Error
		case e.ID != r.next:
			return nil, fmt.Errorf("reply to %d where %d was asked", e.ID, r.next)
		}
		if ok != nil {
			err = json.Unmarshal(e.OK, ok)
		}
		return append([]*sys.FD(nil), fds...), err
	}
}

// Map maps a descriptor until Close.
func (r *Raw) Map(fd *sys.FD, bytes uint64, write bool) (shm.Region, error) {
	m, err := sys.Map(fd, int(bytes), write)
	if err != nil {
		return shm.Region{}, err
	}
	r.maps = append(r.maps, m)
	return shm.NewRegion(m), nil
}

// Close ends the session and lets everything go.
func (r *Raw) Close() {
	r.Call(protocol.OpBye, nil, nil)
	r.Drop()
}

// Drop closes the connection without a word and lets everything go: the session
// lives on until the process ends.
func (r *Raw) Drop() {
	r.Conn.Close()
	for _, m := range r.maps {
		sys.Unmap(m)
	}
	wire.CloseAll(r.fds)
	r.maps, r.fds = nil, nil
}

// Raw returns the test's own raw session, opened at the first call.
func (b *Broker) Raw() *Raw {
	b.t.Helper()
	if b.raw == nil {
		r, err := DialRaw(b.Socket, b.Namespace)
		if err != nil {
			b.t.Fatalf("open a raw session: %v", err)
		}
		b.raw = r
	}
	return b.raw
}

func (b *Broker) dropRaw() {
	if b.raw != nil {
		b.raw.Close()
		b.raw = nil
	}
}

// List returns all rows of a listing.
func List[Row any](t testing.TB, b *Broker, what string) []Row {
	t.Helper()
	rows, err := list[Row](b.Raw(), what)
	if err != nil {
		t.Fatalf("list %s: %v", what, err)
	}
	return rows
}

func list[Row any](r *Raw, what string) (rows []Row, err error) {
	ask := protocol.List{What: what}
	for {
		var page protocol.ListReply
		if _, err := r.Call(protocol.OpList, ask, &page); err != nil {
			return nil, err
		}
		for _, data := range page.Rows {
			var row Row
			if err := json.Unmarshal(data, &row); err != nil {
				return nil, fmt.Errorf("row of %s: %w: %s", what, err, data)
			}
			rows = append(rows, row)
		}
		if page.Cursor == "" {
			return rows, nil
		}
		ask.Cursor = page.Cursor
	}
}

// Slot finds the slot of a session in the broker's page.
func (r *Raw) Slot(serial uint64) (slot uint32, ok bool) {
	for slot := range r.SessionsEnd() {
		if r.Serial(slot) == serial {
			return slot, true
		}
	}
	return 0, false
}

// SessionsEnd returns from which slot on there was never a session.
func (r *Raw) SessionsEnd() uint32 { return r.Broker.Load32(protocol.BrokerSessionsEnd) }

// ChunksEnd is as SessionsEnd.
func (r *Raw) ChunksEnd() uint32 { return r.Broker.Load32(protocol.BrokerChunksEnd) }

// Serial returns the serial of the session in a slot, 0 where there is none.
func (r *Raw) Serial(slot uint32) uint64 {
	return r.Broker.Load64(protocol.BrokerSessions + uint64(slot)*protocol.SessionRecordSize + protocol.SessionSerial)
}

// Bells views the bells of all sessions.
func (r *Raw) Bells() shm.Bells { return shm.NewBells(r.BellFile) }

// ParkedWord returns a look at a session's word that is odd while it sleeps.
func ParkedWord(t testing.TB, b *Broker, serial uint64) func() uint64 {
	t.Helper()
	raw := b.Raw()
	slot, ok := raw.Slot(serial)
	if !ok {
		t.Fatalf("no session %d", serial)
	}
	at := protocol.BellRecords + uint64(slot)*protocol.BellRecordSize + protocol.BellParked
	return func() uint64 { return raw.BellFile.Load64(at) }
}
