package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// observer is a session that only looks: it sees in the bell file when another session
// sleeps, without a call that would wake a process.
type observer struct {
	conn  *wire.Conn
	fds   []*sys.FD
	maps  [][]byte
	bells shm.Region
	slots uint32  // of sessions, as far as they are used
	word  *uint64 // parked, of the session observed
}

// observe joins a broker and finds the session with a serial.
func observe(ctx context.Context, socket string, serial uint64) (*observer, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("observe a session: %w", err)
	}
	o := &observer{conn: wire.New(c.(*net.UnixConn))}
	if err := o.find(serial); err != nil {
		o.close()
		return nil, fmt.Errorf("observe session %d: %w", serial, err)
	}
	return o, nil
}

func (o *observer) find(serial uint64) error {
	fds, err := o.call(protocol.OpHello, protocol.Hello{
		Protocol: protocol.Version, Layout: protocol.Layout, PID: os.Getpid(), Namespace: "default",
		Client: protocol.Client{Name: "bench-observer", Language: "go", Version: "1"},
	})
	if err != nil {
		return err
	}
	if len(fds) != 4 {
		return fmt.Errorf("hello came with %d descriptors, not 4", len(fds))
	}
	broker, err := o.view(fds[0], protocol.BrokerBytes)
	if err != nil {
		return err
	}
	o.slots = broker.Load32(protocol.BrokerSessionsEnd)
	for slot := range uint64(o.slots) {
		if broker.Load64(protocol.BrokerSessions+slot*protocol.SessionRecordSize+protocol.SessionSerial) != serial {
			continue
		}
		if o.bells, err = o.view(fds[2], protocol.BellBytes); err != nil {
			return err
		}
		o.word = o.bells.Word(protocol.BellRecords + slot*protocol.BellRecordSize + protocol.BellParked)
		return nil
	}
	return fmt.Errorf("the broker's page does not list it")
}

// rings counts how often any session was rung.
func (o *observer) rings() (n uint64) {
	for slot := range uint64(o.slots) {
		n += uint64(o.bells.Load32(protocol.BellRecords + slot*protocol.BellRecordSize + protocol.BellWord))
	}
	return n
}

// call makes a request; the descriptors of the reply are closed with o.
func (o *observer) call(op string, body any) ([]*sys.FD, error) {
	if err := o.conn.Request(1, op, body); err != nil {
		return nil, err
	}
	for {
		data, fds, err := o.conn.Read()
		if err != nil {
			return nil, err
		}
		o.fds = append(o.fds, fds...)
		var e protocol.Envelope
		if err := json.Unmarshal(data, &e); err != nil {
			return nil, err
		}
		if e.Event != "" {
			continue
		}
		if e.Error != nil {
			return nil, e.Error
		}
		return fds, nil
	}
}

func (o *observer) view(fd *sys.FD, bytes int) (shm.Region, error) {
	size, _, err := fd.Stat()
	if err == nil && size < int64(bytes) {
		err = fmt.Errorf("shared file of %d bytes, not %d", size, bytes)
	}
	if err != nil {
		return shm.Region{}, err
	}
	b, err := sys.Map(fd, bytes, false)
	if err != nil {
		return shm.Region{}, err
	}
	o.maps = append(o.maps, b)
	return shm.NewRegion(b), nil
}

// parked returns the session's parked word: odd while it sleeps, greater by two
// with each sleep.
func (o *observer) parked() uint64 { return atomic.LoadUint64(o.word) }

// awaitParked spins until the session has gone to sleep, later than the last
// time that it was seen asleep, and returns which sleep this is.
//
// SYNC parked: a look only; nothing is left out because of it.
func (o *observer) awaitParked(last uint64) uint64 {
	for {
		if p := o.parked(); p&1 == 1 && p != last {
			return p
		}
		shm.Pause()
	}
}

func (o *observer) close() {
	o.conn.Close()
	wire.CloseAll(o.fds)
	for _, m := range o.maps {
		sys.Unmap(m)
	}
}
