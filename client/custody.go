package client

import (
	"context"

	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// lacks tells the broker of a file that could not be had for want of descriptors: it counts on
// this session to keep it, perhaps.
func (m *memory) lacks(err error, k fileKey) {
	if protocolCode(err) != protocol.CodeTooMany || m.pages.custodyOf(k) != nil {
		return
	}
	go func() {
		asked := protocol.Custody{Closed: []protocol.RestoreItem{{Role: k.role, Serial: k.serial}}}
		fds, _ := m.broker.CallUntil(context.Background(), protocol.OpCustody, asked, nil)
		wire.CloseAll(fds) // what is offered with the answer is offered again
	}()
}

// takeCustody asks the broker what this session is to keep, and what not any more.
func (m *memory) takeCustody() {
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
		for i, f := range ok.Given {
			m.keepNew(before, fileKey{f.Role, f.Serial}, fds[i])
		}
		for _, f := range ok.Ended {
			m.pages.letGo(fileKey{f.Role, f.Serial})
		}
		if len(ok.Given)+len(ok.Ended) == 0 {
			return
		}
		ask = protocol.Custody{Kept: ok.Given, Closed: ok.Ended}
	}
}
