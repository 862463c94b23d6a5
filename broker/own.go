package broker

import (
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// makeOwnFile makes slot 0: the broker's refcounts, and lanes for names.
func (b *Broker) makeOwnFile() error {
	p, err := b.makeSessionFile(protocol.BrokerSlot, b.store.Record.NextSerial(), record.Holder{})
	if err != nil {
		return err
	}
	p.PID = processID
	p.SetName("broker")
	b.store.Own = p
	b.putOwn()
	return nil
}

// putOwn writes the broker's own session record.
func (b *Broker) putOwn() {
	p := b.store.Own
	start, _ := sys.StartTime(p.PID)
	b.store.Record.Session(protocol.BrokerSlot).Store(record.Session{
		Serial: p.Serial, State: protocol.SessionLive, PID: uint32(p.PID), StartTime: start,
		Language: protocol.LanguageGo, Connected: uint64(b.started.UnixNano()), Name: p.Name,
		File: p.File.Inode})
}
