package broker

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// rebuild makes the broker's view from the broker file, with what fetch can get
// of the files that b.missing lists. Then it corrects its own row, buries the
// dead, and lets everybody look again. sameBoot tells whether any process that
// the file speaks of can still live.
func (b *Broker) rebuild(sameBoot bool, fetch func(fileKey) *sys.FD) error {
	if err := b.rebuildOwn(fetch); err != nil {
		return err
	}
	b.rebuildSessions(fetch)
	b.rebuildRemains(fetch)
	b.rebuildDevices()
	b.rebuildSegments(fetch)
	b.rebuildChunks()
	b.rebuildTopics(fetch)
	b.rebuildJoins()
	b.rebuildLeases(sameBoot)
	b.recount()
	crashpoint.At("broker-rebuild-lowered")
	for _, t := range b.topics {
		if t == nil {
			continue
		}
		for _, g := range t.groups {
			for n := range t.lanes {
				if g == nil {
					continue
				}
				if a, ok := g.area(n); ok {
					a.Rewind(1) // MODEL group:restart-hint
				}
			}
		}
	}
	crashpoint.At("broker-rebuild-hints")
	b.buryDead(sameBoot)
	crashpoint.At("broker-rebuild-buried")
	for _, t := range b.topics {
		if t != nil {
			b.changed(t)
			b.leftAlone(t)
		}
	}
	b.file.SetBoot(sys.BootID())
	b.settle()
	b.careSoon()
	return nil
}

// fetchFile maps a file of the former broker, if it can be had and is right.
func (b *Broker) fetchFile(fetch func(fileKey) *sys.FD, k fileKey, role uint32, bytes uint64) mapped {
	fd := fetch(k)
	if fd == nil {
		return mapped{}
	}
	m, err := b.adoptFile(k, fd, role, bytes)
	if err != nil {
		b.log.Error("a file of the former broker cannot be used", "role", k.role, "serial", k.serial, "error", err)
		return mapped{}
	}
	return m
}

func (b *Broker) adoptFile(k fileKey, fd *sys.FD, role uint32, bytes uint64) (mapped, error) {
	m, err := mapFile(fd, bytes)
	if err != nil {
		return m, err
	}
	err = b.checkHead(m, role, k.serial)
	if err == nil && m.inode != b.missing[k] {
		err = fmt.Errorf("inode %d where %d belongs", m.inode, b.missing[k])
	}
	if err != nil {
		m.close()
		return mapped{}, err
	}
	delete(b.missing, k)
	return m, nil
}

// newPages makes the pages of a session of the former broker, with such files as
// there are. Those that are missing read as zeros meanwhile.
func (b *Broker) newPages(fetch func(fileKey) *sys.FD, slot uint32, serial uint64, name string, pid uint32) *pages {
	p := &pages{slot: slot, serial: serial, name: printable(name, protocol.SessionNameBytes), pid: int(pid),
		chunks: map[*chunk]struct{}{}, lanes: map[*lane]struct{}{}}
	p.session = b.fetchFile(fetch, fileKey{protocol.RestoreSession, serial}, protocol.RoleSession, protocol.SessionBytes)
	p.bell = b.fetchFile(fetch, fileKey{protocol.RestoreBell, serial}, protocol.RoleBell, protocol.BellBytes)
	b.view(p)
	b.pages[serial] = p
	return p
}

// view makes the views of a session's files.
func (b *Broker) view(p *pages) {
	file := p.session.region
	if !p.there() {
		file = b.blankPages()
	}
	p.row, p.entries = handles.NewRow(file), handles.NewEntries(file)
	if p.there() && p.bell.region.Valid() {
		p.ringer = shm.NewBell(p.session.region, p.bell.region)
	}
}

// blankPages stand for a session file that is missing: nothing is ever written
// there, and untouched zeros take no memory.
func (b *Broker) blankPages() shm.Region {
	if b.blank == nil {
		m, err := sys.MapAnonymous(protocol.SessionBytes)
		if err != nil {
			m = make([]byte, protocol.SessionBytes)
		}
		b.blank = m
	}
	return shm.NewRegion(b.blank)
}

func (b *Broker) rebuildOwn(fetch func(fileKey) *sys.FD) error {
	serial := b.file.Session(protocol.BrokerSlot).Serial()
	p := b.newPages(fetch, protocol.BrokerSlot, serial, "broker", uint32(processID))
	if !p.there() {
		return protocol.Errorf(protocol.CodeProtocol, "start the broker once more: it begins anew",
			"the row of the former broker of instance %s cannot be had", b.id)
	}
	if !p.bell.region.Valid() {
		bell, err := b.newFile(protocol.RoleBell, protocol.RestoreBell, serial, p.slot, protocol.BellBytes)
		if err != nil {
			return err
		}
		p.bell = bell
		b.view(p)
	}
	b.own = p
	b.putOwn()
	return nil
}

func (b *Broker) rebuildSessions(fetch func(fileKey) *sys.FD) {
	for slot := uint32(1); slot < protocol.MaxSessions; slot++ {
		serial := b.file.Session(slot).Serial()
		if serial == 0 || b.pages[serial] != nil {
			continue
		}
		r := b.file.Session(slot).Load()
		s := newSession(b.newPages(fetch, slot, serial, r.Name, r.PID))
		s.absent, s.answered = true, r.Answered
		s.state, s.uid, s.start, s.pidNS, s.language = r.State, r.UID, r.StartTime, r.PIDNS, r.Language
		s.namespace, s.connectedAt, s.secretHash = r.Namespace, formerly(r.Connected), r.SecretHash
		b.slots[slot] = s
		b.slotTable.claim(slot)
	}
}

func (b *Broker) rebuildRemains(fetch func(fileKey) *sys.FD) {
	for i := range b.file.UsedRemains() {
		r := b.file.Remains(i).Load()
		if r.Serial == 0 {
			continue
		}
		// A session that is still in its slot was not wholly buried: it will be.
		if b.pages[r.Serial] != nil {
			b.file.Remains(i).Free()
			continue
		}
		p := b.newPages(fetch, r.Slot, r.Serial, r.Name, r.PID)
		p.dead, p.remains = true, i+1
		b.remains.claim(i)
	}
}

func (b *Broker) rebuildSegments(fetch func(fileKey) *sys.FD) {
	for i := range uint32(protocol.MaxSegments) {
		if b.file.Segment(i).Serial() == 0 {
			continue
		}
		r := b.file.Segment(i).Load()
		g := &segment{index: i, serial: r.Serial, bytes: r.Bytes, inode: r.File, kind: r.Kind,
			given: map[*session]struct{}{}, made: formerly(r.MadeAt)}
		g.owner = b.pages[r.OwnerSerial]
		if g.owner == nil {
			// Its owner is over and left no record: settle frees it.
			g.owner = &pages{serial: r.OwnerSerial, name: "an ended session", dead: true,
				chunks: map[*chunk]struct{}{}, lanes: map[*lane]struct{}{}}
			b.view(g.owner)
			b.pages[g.owner.serial] = g.owner
		}
		if r.OnDevice() {
			g.device = b.rebuiltDevice(r.DeviceID)
		}
		k := fileKey{protocol.RestoreSegment, r.Serial}
		if g.device == nil || b.files.kind() != protocol.KindFile { // a directory has none of a device
			if fd := fetch(k); fd != nil {
				b.setView(g, k, fd)
			}
		}
		b.segments[i] = g
		b.segmentTable.claim(i)
		if s := b.slots[g.owner.slot]; s != nil && s.pages == g.owner {
			b.charge(g, s)
		} else {
			b.chargeAll(g)
			b.orphans[g] = struct{}{}
			b.file.Segment(i).SetOrphan()
		}
	}
}

// setView uses the descriptor of a former broker's segment. It takes ownership of
// fd.
func (b *Broker) setView(g *segment, k fileKey, fd *sys.FD) {
	view := shm.NewDeviceSegment(g.index, g.serial, g.bytes, fd)
	if g.device == nil {
		var err error
		if view, err = shm.NewSegment(g.index, g.serial, g.bytes, fd, true); err != nil {
			return
		}
		if g.kind != protocol.KindHugePages {
			b.unreserved[g] = struct{}{} // its maker may have died before it had pages
		}
	}
	g.view = view
	delete(b.missing, k)
}

func (b *Broker) rebuildChunks() {
	for i := range uint32(protocol.MaxChunks) {
		v := b.chunks.Load(i)
		if v.Serial == 0 {
			// Its freeing may have been half done.
			b.chunks.EachAttached(i, func(slot uint32) bool {
				b.chunks.Detach(i, slot)
				return true
			})
			continue
		}
		b.chunkTable.claim(i)
		c := &chunk{index: i, serial: v.Serial}
		if v.Segment < protocol.MaxSegments {
			c.segment = b.segments[v.Segment]
		}
		if c.segment == nil || c.segment.serial != v.SegmentSerial {
			// Its segment's freeing was half done: nobody held anything of it.
			b.file.SetChunkSerial(i, 0)
			b.chunkTable.give(i)
			continue
		}
		b.chunkOf[i] = c
		c.segment.chunks = append(c.segment.chunks, c)
		c.segment.owner.chunks[c] = struct{}{}
		if c.segment.isBorrowed() && c.segment.holder == nil {
			b.file.SetChunkSerial(i, 0) // as in expire: its owner ended while no broker ran
		}
		b.chunks.EachAttached(i, func(slot uint32) bool {
			if s := b.slots[slot]; s != nil {
				s.setAttached(i, true)
			} else if slot != protocol.BrokerSlot {
				b.chunks.Detach(i, slot)
			}
			return true
		})
	}
}

// buryDead ends the sessions whose processes have ended, and watches the others.
// Of a process that cannot be seen (another pid namespace) only its own return
// tells; until then it keeps what it holds.
func (b *Broker) buryDead(sameBoot bool) {
	b.foreign = b.file.PIDNamespace() != sys.PIDNamespace(processID)
	b.file.SetPIDNamespace(sys.PIDNamespace(processID))
	for _, s := range b.slots {
		if s == nil {
			continue
		}
		dead := s.state == protocol.SessionDead || !sameBoot
		if !dead && !b.foreign && s.start != 0 {
			pidfd, err := sys.OpenPidfd(s.pid)
			if dead = err != nil || sys.StartTime(s.pid) != s.start; !dead {
				go b.watch(s, pidfd)()
			} else if err == nil {
				pidfd.Close()
			}
		}
		if dead {
			b.log.Info("process ended while no broker ran", "slot", s.slot, "serial", s.serial, "name", s.name, "pid", s.pid)
			b.bury(s)
			continue
		}
		b.setState(s, protocol.SessionDisconnected)
		if !s.answered {
			b.after(b.cfg.RecoverWait, func() { b.buryGhost(s) })
		}
	}
}

// buryGhost ends a session whose process lives and does not know of it: the former
// broker died before it had answered the hello. Who got the answer all the same,
// at the last moment, is back by now.
func (b *Broker) buryGhost(s *session) {
	if s.absent && !s.ended {
		b.log.Info("nobody knows of this session: its broker died while it was opened", "slot", s.slot, "serial", s.serial, "name", s.name, "pid", s.pid)
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

// formerly is a time of CLOCK_REALTIME that a former broker wrote. The clock may
// have been set since: it is never later than now, and its age grows evenly.
func formerly(ns uint64) time.Time {
	now := time.Now()
	return now.Add(-max(now.Sub(time.Unix(0, int64(ns))), 0))
}
