package sessionfiles

import "github.com/baton-ipc/baton/internal/sys"

// askedOften is the number of requests for a file from which on its descriptor for reading is
// kept. To open a file anew takes longer than the rest of lending it, and where each of many
// sessions receives from each, it is lent to all of them.
const askedOften = 3

// lentFile is what is known of a file that was lent for reading.
type lentFile struct {
	times int
	fd    *sys.FD // nil: not kept
}

// LendForReading gives a descriptor of a file that allows no writing, for any process. If the
// file is asked for often, it is a duplicate of one that is kept.
func (s *Store) LendForReading(k Key, file *sys.FD) (*sys.FD, error) {
	l := s.lent[k]
	if l == nil {
		l = &lentFile{}
		s.lent[k] = l
	}
	if l.fd != nil {
		return l.fd.Dup()
	}
	fd, err := file.ReopenReadOnly()
	if err != nil {
		return nil, err
	}
	if l.times++; l.times < askedOften || s.MayKeep == nil || !s.MayKeep(s.lentOpen+1) {
		return fd, nil
	}
	kept, err := fd.Dup()
	if err != nil {
		return fd, nil // it is lent, and opened anew the next time
	}
	l.fd = kept
	s.lentOpen++
	return fd, nil
}

// LentOpen counts the descriptors that are kept to be lent. No takeover needs them.
func (s *Store) LentOpen() int { return s.lentOpen }

// CloseLent closes them: their place is needed.
func (s *Store) CloseLent() {
	for k := range s.lent {
		s.forgetLent(k)
	}
}

func (s *Store) forgetLent(k Key) {
	if l := s.lent[k]; l != nil && l.fd != nil {
		l.fd.Close()
		s.lentOpen--
	}
	delete(s.lent, k)
}
