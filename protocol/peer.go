package protocol

// Speaker is one side of a hello.
type Speaker struct {
	Role   string // "broker" or "client"
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
	older := peer
	if peer.Speaks > s.Speaks || peer.Speaks == s.Speaks && peer.Layout > s.Layout {
		older = s
	}
	remedy := "update the client, which is the older of the two"
	if older.Role == "broker" {
		remedy = "end the broker, which is the older of the two, and start it from the program that came with the client"
	}
	return Errorf(CodeVersion, remedy, "the %s (%s) speaks protocol %d with layout %d, this %s (%s) protocol %d with layout %d",
		peer.Role, peer.Build, peer.Speaks, peer.Layout, s.Role, s.Build, s.Speaks, s.Layout).
		With("protocol", s.Speaks).With("layout", s.Layout)
}
