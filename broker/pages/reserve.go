package pages

import "github.com/baton-ipc/baton/broker/record"

// reserveStep is how much of the broker file is reserved at once.
const reserveStep = 64 << 10

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

// ReserveTables reserves what is looked at wherever a number or handle points,
// and what a death must be able to note. Topics, joins and leases get their pages
// as they are used, lowest numbers first.
func (s *Store) ReserveTables() error {
	err := s.Reserve(record.Tables())
	if err == nil {
		err = s.Reserve(record.AllRemains())
	}
	return err
}
