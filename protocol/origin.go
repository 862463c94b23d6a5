package protocol

import (
	"math"
	"unicode/utf8"
)

// Origin tells where a message comes from, for readers that look at several machines.
// It stands in tuples, where what is not known is left out. Nothing is decided by it:
// a tuple's host, the instance of its broker, is what handles are opened by.
type Origin struct {
	HostName  string // what the machine calls itself
	Machine   string // boot id of its kernel, the same in all of its containers
	BrokerPID uint32 // of the broker, as it sees itself
	PID       uint32 // of the process that sent the message or set the name, as the broker sees it
}

const (
	maxHostName = 255 // bytes
	maxMachine  = 64
)

// originFields are the keys that an Origin has in a document.
var originFields = []string{"host_name", "machine", "broker_pid", "pid"}

func (o *Origin) check() error {
	switch {
	case len(o.HostName) > maxHostName || !utf8.ValidString(o.HostName):
		return errTuple("has a host name of %d bytes that is not UTF-8 of at most %d", len(o.HostName), maxHostName)
	case len(o.Machine) > maxMachine || o.Machine != "" && !isToken(o.Machine):
		return errTuple("is of machine %q, which is no boot id", shortened(o.Machine))
	}
	return nil
}

// append writes the keys that are known, each behind a comma.
func (o *Origin) append(dst []byte) []byte {
	if o.HostName != "" {
		dst = appendText(append(dst, `,"host_name":`...), o.HostName)
	}
	if o.Machine != "" {
		dst = appendText(append(dst, `,"machine":`...), o.Machine)
	}
	if o.BrokerPID != 0 {
		dst = appendNumber(dst, `,"broker_pid":`, uint64(o.BrokerPID))
	}
	if o.PID != 0 {
		dst = appendNumber(dst, `,"pid":`, uint64(o.PID))
	}
	return dst
}

// field reads one of originFields.
func (o *Origin) field(r *jsonReader, key string) (err error) {
	switch key {
	case "host_name":
		o.HostName, err = r.text()
	case "machine":
		o.Machine, err = r.text()
	case "broker_pid":
		o.BrokerPID, err = pid(r)
	case "pid":
		o.PID, err = pid(r)
	}
	return err
}

func pid(r *jsonReader) (uint32, error) {
	n, err := r.natural()
	if err == nil && n > math.MaxInt32 {
		err = r.fail("%d is no process", n)
	}
	return uint32(n), err
}
