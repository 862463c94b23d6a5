package names

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// mostEntry bounds an entry.
	mostEntry = 8 << 10
	// mostOver is how many of the sets before it an entry knows: as many may follow a set whose answer was lost.
	mostOver = 16
	// mostText bounds a text of another host.
	mostText = 128
)

// entry is what a bucket has of a name.
type entry struct {
	ID        string `json:"id"` // of the set: host and number
	Host      string `json:"host"`
	HostName  string `json:"host_name"`
	Setter    string `json:"setter,omitempty"`
	Bytes     uint64 `json:"bytes,omitempty"`
	Tensors   uint16 `json:"tensors,omitempty"`
	Ephemeral bool   `json:"ephemeral,omitempty"`
	Deleted   bool   `json:"deleted,omitempty"`
	// Was is the number of the revision in a bucket that was lost, if the entry stands for that.
	Was  uint64 `json:"was,omitempty"`
	Over []over `json:"over,omitempty"`
}

// over is a set that was replaced.
type over struct {
	ID  string `json:"id"`
	Seq uint64 `json:"seq"`
}

// stored is an entry at its place in the stream; Seq 0: there is none.
type stored struct {
	entry
	Seq uint64
}

// set tells whether the name is set.
func (s *stored) set() bool { return s.Seq != 0 && !s.Deleted }

// has tells where the set of an id stands or stood, as far as the entry knows.
func (s *stored) has(id string) (seq uint64, is bool) {
	if s.Seq != 0 && s.ID == id {
		return s.Seq, true
	}
	for _, o := range s.Over {
		if o.ID == id {
			return o.Seq, true
		}
	}
	return 0, false
}

// after lists what an entry on top of this one has replaced.
func (s *stored) after() []over {
	if s.Seq == 0 {
		return nil
	}
	all := append([]over{{s.ID, s.Seq}}, s.Over...)
	return all[:min(len(all), mostOver)]
}

// where is the host of an entry, for messages.
func (e *entry) where() string {
	if e.HostName == "" {
		return "host " + e.Host
	}
	return "host " + e.Host + " (" + e.HostName + ")"
}

// readEntry reads what any host may have written.
func readEntry(data []byte, seq uint64) stored {
	var e entry
	if len(data) > mostEntry || json.Unmarshal(data, &e) != nil {
		return stored{entry{Deleted: true}, seq} // no host can bring it
	}
	e.ID, e.Host, e.HostName, e.Setter = printable(e.ID), printable(e.Host), printable(e.HostName), printable(e.Setter)
	e.Over = e.Over[:min(len(e.Over), mostOver)]
	return stored{e, seq}
}

func printable(s string) string {
	s = s[:min(len(s), mostText)]
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Numbers of revisions: the epoch above, the place in the stream below.
const (
	placeBits = 36
	lastEpoch = 1<<12 - 1
)

// epochKey is a key that no name has.
const epochKey = "=epoch"

// epochs say which epoch holds from which place of a stream on.
type epochs []epochFrom

type epochFrom struct {
	From  uint64 `json:"from"` // behind this place
	Epoch uint64 `json:"epoch"`
}

// epochRecord is the value of epochKey. It holds for what stands behind it.
type epochRecord struct {
	Epoch  uint64 `json:"epoch"`
	Before epochs `json:"before"`
}

// number is that of the revision at a place.
func (e epochs) number(seq uint64) uint64 {
	epoch := uint64(0)
	for _, f := range e {
		if f.From < seq {
			epoch = max(epoch, f.Epoch)
		}
	}
	return epoch<<placeBits | seq&(1<<placeBits-1)
}

func (e epochs) last() (epoch uint64) {
	for _, f := range e {
		epoch = max(epoch, f.Epoch)
	}
	return epoch
}

func epochOf(number uint64) uint64 { return number >> placeBits }

// readEpochs reads the record of a bucket.
func readEpochs(data []byte, seq uint64) (epochs, error) {
	var r epochRecord
	if len(data) > mostEntry || json.Unmarshal(data, &r) != nil || r.Epoch > lastEpoch {
		return nil, protocol.Errorf(protocol.CodeProtocol, "delete the key "+epochKey+" of the bucket", "the epoch of a bucket cannot be read")
	}
	return append(slices.Clone(r.Before), epochFrom{seq, r.Epoch}), nil
}

// raised is the record by which a bucket has an epoch from then on.
func (e epochs) raised(epoch uint64) ([]byte, error) {
	before := e
	if len(before) > 64 { // what stood there so long ago was replaced, or is as old as the rest
		before = before[len(before)-64:]
	}
	return json.Marshal(epochRecord{epoch, before})
}
