package settings

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Warnings are what is not wrong and hardly meant.
func (s *Settings) Warnings(getenv func(string) string) (list []string) {
	if s.sharedWithNone() && s.reloaded {
		list = append(list, "no other user may connect, though the broker is shared: it goes on, and serve does not begin with these settings; leave --shared out, or name users with --allow-uid or --allow-group")
	}
	if text := s.unreached(getenv); text != "" {
		list = append(list, text)
	}
	if info, err := os.Stat(s.HTTPToken); s.HTTPToken != "" && err == nil && info.Mode()&0o004 != 0 {
		list = append(list, fmt.Sprintf("every user may read the token in %s: its mode is %04o (chmod 600)", s.HTTPToken, info.Mode().Perm()))
	}
	return list
}

// unreached says why users that may connect reach no socket; "": they can, as far as is seen, or there are none. Of a
// socket that a service manager binds, nothing is seen.
func (s *Settings) unreached(getenv func(string) string) string {
	if getenv("LISTEN_FDS") != "" {
		return ""
	}
	own := uint32(os.Geteuid())
	users := slices.DeleteFunc(slices.Concat(s.AllowUIDs, s.ObserveUIDs), func(uid uint32) bool { return uid == own || uid == 0 })
	if len(users)+len(s.AllowGIDs)+len(s.ObserveGIDs) == 0 {
		return ""
	}
	var missing []string
	if s.SocketMode&0o022 == 0 {
		missing = append(missing, fmt.Sprintf("its mode is %04o (--socket-mode 0666)", s.SocketMode))
	}
	dir := dirOf(s.Socket)
	info, err := os.Stat(dir)
	if err == nil && info.Mode()&0o011 == 0 || err != nil && !s.Shared {
		missing = append(missing, fmt.Sprintf("its directory %s is for one user (--address, --runtime-dir)", dir))
	}
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("other users may connect and cannot reach the socket: %s; --shared sees to both", strings.Join(missing, ", and "))
}
