package sessionfiles

import (
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/protocol"
)

// reserveStep is how much of the broker file is reserved at once: a topic's record has a
// whole number of steps.
const reserveStep = 8192

// Reserve makes sure that records of the broker file have pages. On a file
// system that is full, touching a hole is SIGBUS, on tmpfs even for a reader.
func (s *Store) Reserve(p record.Place) error {
	for step := p.At / reserveStep; step*reserveStep < p.At+p.Bytes; step++ {
		if s.reserved[step] {
			continue
		}
		if err := s.Broker.FD.Reserve(int64(step*reserveStep), reserveStep); err != nil {
			return NoMemory(err, "the broker's records")
		}
		s.reserved[step] = true
	}
	return nil
}

// ReserveHead reserves the head of the broker file. Records get their pages as they are
// used, lowest numbers first.
func (s *Store) ReserveHead() error { return s.Reserve(record.HeadPlace()) }

// ReserveSession reserves the records of a session in a slot: its own, and, for each of the
// sessions in all, one of remains, which must not fail to be written at its end.
func (s *Store) ReserveSession(slot uint32, all int) error {
	err := s.Reserve(record.SessionPlace(slot))
	if err == nil {
		err = s.Reserve(record.RemainsPlace(uint32(s.remains.Taken() + all + remainsSpare + 1)))
	}
	return err
}

// GiveBack gives the pages of records back that are free. Files in a directory keep
// theirs: a client that looks there late would meet a hole, which is SIGBUS where the
// file system is full.
func (s *Store) GiveBack(p record.Place) {
	if s.Files.Kind() == protocol.KindFile || s.Broker.FD.Punch(int64(p.At), int64(p.Bytes)) != nil {
		return
	}
	for step := p.At / reserveStep; step*reserveStep < p.At+p.Bytes; step++ {
		s.reserved[step] = false
	}
}

// GiveBackOwn is as GiveBack of a part of the broker's session file.
func (s *Store) GiveBackOwn(at, bytes uint64) {
	if s.Files.Kind() != protocol.KindFile {
		s.Own.File.FD.Punch(int64(at), int64(bytes)) // else it stays reserved
	}
}
