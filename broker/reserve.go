package broker

import "github.com/baton-ipc/baton/broker/record"

// reserveStep is how much of the broker file is reserved at once.
const reserveStep = 64 << 10

// reserve makes sure that records of the broker file have pages. On a file
// system that is full, touching a hole is SIGBUS, on tmpfs even for a reader.
func (b *Broker) reserve(p record.Place) error {
	for step := p.At / reserveStep; step*reserveStep < p.At+p.Bytes; step++ {
		if b.reserved[step] {
			continue
		}
		if err := b.broker.fd.Reserve(int64(step*reserveStep), reserveStep); err != nil {
			return noMemory(err, "the broker's records")
		}
		b.reserved[step] = true
	}
	return nil
}

// reserveTables reserves what is looked at wherever a number or handle points,
// and what a death must be able to note. Topics, joins and leases get their pages
// as they are used, lowest numbers first.
func (b *Broker) reserveTables() error {
	err := b.reserve(record.Tables())
	if err == nil {
		err = b.reserve(record.AllRemains())
	}
	return err
}
