package broker

import (
	"encoding/hex"

	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// rebuild makes the broker's view from the broker file, with what fetch can get
// of the files that the store lists as missing. Then it corrects its own row, buries the
// dead, and lets everybody look again. sameBoot tells whether any process that
// the file speaks of can still live.
func (b *Broker) rebuild(sameBoot bool, fetch pages.Fetch) error {
	if err := b.rebuildOwn(fetch); err != nil {
		return err
	}
	b.rebuildSessions(fetch)
	b.store.RestoreRemains(fetch)
	b.memory.Restore(fetch)
	b.topics.Restore(fetch)
	b.leases.Restore(sameBoot)
	b.recount()
	crashpoint.At("broker-rebuild-lowered")
	b.topics.Rewind()
	crashpoint.At("broker-rebuild-hints")
	b.buryDead(sameBoot)
	crashpoint.At("broker-rebuild-buried")
	b.topics.Announce()
	b.store.Record.SetBoot(sys.BootID())
	b.settle()
	b.careSoon()
	return nil
}

func (b *Broker) rebuildOwn(fetch pages.Fetch) error {
	serial := b.store.Record.Session(protocol.BrokerSlot).Serial()
	p := b.store.Restore(fetch, protocol.BrokerSlot, serial, "broker", uint32(processID))
	if !p.There() {
		return protocol.Errorf(protocol.CodeProtocol, "start the broker once more: it begins anew",
			"the row of the former broker of instance %s cannot be had", b.id)
	}
	if err := b.store.RemakeBell(p); err != nil {
		return err
	}
	b.store.Own = p
	b.putOwn()
	return nil
}

func (b *Broker) rebuildSessions(fetch pages.Fetch) {
	for slot := uint32(1); slot < protocol.MaxSessions; slot++ {
		serial := b.store.Record.Session(slot).Serial()
		if serial == 0 || b.store.BySerial(serial) != nil {
			continue
		}
		r := b.store.Record.Session(slot).Load()
		s := &session{Pages: b.store.Restore(fetch, slot, serial, r.Name, r.PID)}
		s.absent, s.answered = true, r.Answered
		s.state, s.uid, s.start, s.pidNS, s.language = r.State, r.UID, r.StartTime, r.PIDNS, r.Language
		s.namespace, s.connectedAt, s.secretHash = r.Namespace, record.Formerly(r.Connected), r.SecretHash
		b.slots[slot] = s
		b.enter(s)
		b.slotTable.Claim(slot)
	}
}

// buryDead ends the sessions whose processes have ended, and watches the others.
// Of a process that cannot be seen (another pid namespace) only its own return
// tells; until then it keeps what it holds.
func (b *Broker) buryDead(sameBoot bool) {
	b.foreign = b.store.Record.PIDNamespace() != sys.PIDNamespace(processID)
	b.store.Record.SetPIDNamespace(sys.PIDNamespace(processID))
	for _, s := range b.slots {
		if s == nil {
			continue
		}
		dead := s.state == protocol.SessionDead || !sameBoot
		if !dead && !b.foreign && s.start != 0 {
			pidfd, err := sys.OpenPidfd(s.PID)
			if dead = err != nil || sys.StartTime(s.PID) != s.start; !dead {
				go b.watch(s, pidfd)()
			} else if err == nil {
				pidfd.Close()
			}
		}
		if dead {
			b.log.Info("process ended while no broker ran", "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
			b.bury(s)
			continue
		}
		b.setState(s, protocol.SessionDisconnected)
		if !s.answered {
			b.clock.After(b.cfg.RecoverWait, func() { b.buryGhost(s) })
		}
	}
}

// buryGhost ends a session whose process lives and does not know of it: the former
// broker died before it had answered the hello. Who got the answer all the same,
// at the last moment, is back by now.
func (b *Broker) buryGhost(s *session) {
	if s.absent && !s.ended {
		b.log.Info("nobody knows of this session: its broker died while it was opened", "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
		b.bury(s)
	}
}

func parseInstance(text string) (n [16]byte, err error) {
	if d, err := hex.DecodeString(text); err == nil && len(d) == len(n) {
		copy(n[:], d)
		return n, nil
	}
	return n, protocol.Errorf(protocol.CodeProtocol, "remove the state file of the former broker", "its instance %q is damaged", text)
}
