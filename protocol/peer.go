package protocol

import "fmt"

// Speaker is one side of a hello.
type Speaker struct {
	Role   string // SpeakerBroker and the others
	Build  string // its version, for messages only
	Speaks int    // control protocol
	Layout int
}

// This is this build as a speaker.
func This(role, build string) Speaker { return Speaker{role, build, Version, Layout} }

// CheckPeer refuses, with ErrVersion, a peer that speaks another protocol or
// another layout of shared memory. Both sides of a hello call it before they
// believe anything else of it: pages of another layout do not look damaged, they
// are silently misread.
func (s Speaker) CheckPeer(peer Speaker) error {
	if peer.Speaks == s.Speaks && peer.Layout == s.Layout {
		return nil
	}
	older, newer := peer, s
	if peer.Speaks > s.Speaks || peer.Speaks == s.Speaks && peer.Layout > s.Layout {
		older, newer = s, peer
	}
	return Errorf(CodeVersion, older.remedy(&newer), "the %s (%s) speaks protocol %d with layout %d, this %s (%s) protocol %d with layout %d",
		peer.Role, peer.Build, peer.Speaks, peer.Layout, s.Role, s.Build, s.Speaks, s.Layout).
		With("protocol", s.Speaks).With("layout", s.Layout)
}

// Roles in a hello, and where one broker takes over from another.
const (
	SpeakerBroker    = "broker"
	SpeakerClient    = "client"
	SpeakerNewBroker = "new broker" // one that asks a running one to hand over
)

// version is how a remedy names a build: builds of one version may have several layouts.
func (s *Speaker) version() string {
	return fmt.Sprintf("version %s (protocol %d, layout %d)", s.Build, s.Speaks, s.Layout)
}

// remedy is what to do about the older of two that do not fit.
func (s *Speaker) remedy(newer *Speaker) string {
	switch {
	case s.Role == SpeakerBroker && newer.Role == SpeakerClient:
		return fmt.Sprintf("the broker is the older of the two: end it (baton stop), and start %s, which the program has", newer.version())
	case s.Role == SpeakerBroker:
		return fmt.Sprintf("the broker that runs is the older of the two and cannot hand over to %s: end it first (baton stop), which ends the sessions of its programs", newer.version())
	case s.Role == SpeakerNewBroker:
		return fmt.Sprintf("the new broker is the older of the two: start %s, which runs, or a later one that has its layout", newer.version())
	}
	return fmt.Sprintf("the client is the older of the two: update it to %s, which the broker has", newer.version())
}
