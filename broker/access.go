package broker

import (
	"net"
	"os"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Access lists the users that may connect besides the broker's own user and root.
type Access struct {
	UIDs, GIDs []uint32 // users, and groups whose members may use the broker
	// ObserveUIDs and ObserveGIDs may look at what there is, and change nothing: they get no
	// session, and so no memory.
	ObserveUIDs, ObserveGIDs []uint32
}

// several tells whether several users may have sessions.
func (a *Access) several() bool { return len(a.UIDs)+len(a.GIDs) > 0 }

// lists tells whether a user may have sessions whatever groups it is in.
func (a *Access) lists(uid uint32) bool {
	return uid == uint32(os.Geteuid()) || uid == 0 || slices.Contains(a.UIDs, uid)
}

// errStranger refuses a user that may not connect.
func errStranger(uid uint32) error {
	return protocol.Errorf(protocol.CodePermission, "connect as the broker's user, or start the broker with --shared and --allow-uid or --allow-group",
		"user %d may not use this broker", uid)
}

// role is what a connection may do.
type role int

const (
	stranger role = iota // nothing
	observer             // what `looks` lists
	user                 // all, except what only the broker's own user may do
)

// roleOf tells what the process that connected may do. Groups are read only where they
// count.
func (a *Access) roleOf(u *net.UnixConn, cred sys.Credentials) (role, error) {
	if a.lists(cred.UID) {
		return user, nil
	}
	looksOn := slices.Contains(a.ObserveUIDs, cred.UID)
	if len(a.GIDs)+len(a.ObserveGIDs) > 0 {
		groups, err := sys.PeerGroups(u)
		if err != nil {
			return stranger, err
		}
		isIn := func(gid uint32) bool { return gid == cred.GID || slices.Contains(groups, gid) }
		if slices.ContainsFunc(a.GIDs, isIn) {
			return user, nil
		}
		looksOn = looksOn || slices.ContainsFunc(a.ObserveGIDs, isIn)
	}
	if looksOn {
		return observer, nil
	}
	return stranger, nil
}

// mayLook refuses to an observer every request that changes something.
func (c *conn) mayLook(op string, data []byte) error {
	if !c.observes || looks[op] || op == protocol.OpLimit && asksLimits(data) {
		return nil
	}
	remedy := "ask the user who started the broker for --allow-uid or --allow-group"
	if ownersOps[op] != "" {
		remedy = "ask the user who started the broker, or root: no other user may"
	}
	return protocol.Errorf(protocol.CodePermission, remedy,
		"user %d may only look at this broker: it gets no session, and the request %q is none of those that look", c.cred.UID, op)
}

// ownersOps are the requests that owns refuses to all other users, with what each does to the broker.
var ownersOps = map[string]string{
	protocol.OpStop:           "stop",
	protocol.OpReplace:        "replace",
	protocol.OpLimit:          "change the limits of",
	protocol.OpLeaseRevoke:    "revoke leases of",
	protocol.OpFunctionRemove: "remove functions of",
}

// owns refuses a request, which ownersOps has, to users other than the broker's own and root.
func (c *conn) owns(op string) error {
	if !c.isOwners() {
		return protocol.Errorf(protocol.CodePermission, "ask the user who started it", "user %d may not %s this broker", c.cred.UID, ownersOps[op])
	}
	return nil
}

// isOwners tells whether the broker's own user or root has connected.
func (c *conn) isOwners() bool { return c.cred.UID == uint32(os.Geteuid()) || c.cred.UID == 0 }
