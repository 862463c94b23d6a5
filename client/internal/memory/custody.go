package memory

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// lacks tells the broker of a file that could not be received for lack of descriptors: it counts on
// this session to keep it, perhaps.
func (m *Memory) lacks(err error, k protocol.RestoreItem) {
	if fault.Code(err) == protocol.CodeTooMany && m.files.CustodyOf(k) == nil {
		m.declines(k)
	}
}

// declines tells the broker of a file that this session does not keep.
func (m *Memory) declines(k protocol.RestoreItem) {
	go func() {
		asked := protocol.Custody{Closed: []protocol.RestoreItem{k}}
		fds, _ := m.broker.CallUntil(context.Background(), protocol.OpCustody, asked, nil)
		wire.CloseAll(fds) // what comes with the answer comes again
	}()
}

// TakeCustody asks the broker what this session is to keep, and what not any more.
func (m *Memory) TakeCustody() {
	for ask := (protocol.Custody{}); ; {
		var ok protocol.CustodyReply
		before := m.arriving()
		fds, err := m.broker.Call(context.Background(), protocol.OpCustody, ask, &ok)
		if err != nil {
			return // what this session does not say that it keeps, others are asked to keep
		}
		if len(fds) != len(ok.Given) {
			wire.CloseAll(fds)
			return
		}
		if len(ok.Given)+len(ok.Ended) == 0 {
			return
		}
		ask = protocol.Custody{Closed: ok.Ended}
		for _, f := range ok.Ended {
			m.files.LetGo(f)
		}
		for i, f := range ok.Given {
			if m.files.HasNoRoom(f) {
				fds[i].Close()
				ask.Closed = append(ask.Closed, f)
				continue
			}
			m.keepNew(before, f, fds[i])
			ask.Kept = append(ask.Kept, f)
		}
	}
}
