package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/cmd/baton/internal/spelling"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/sys"
)

// Warnings are what is not wrong and hardly meant.
func (s *Settings) Warnings(getenv func(string) string, environ []string) (list []string) {
	if s.sharedWithNone() && s.reloaded {
		list = append(list, "no other user may connect, though the broker is shared: it goes on, and serve does not begin with these settings; leave --shared out, or name users with --allow-uid or --allow-group")
	}
	if text := s.unreached(getenv); text != "" {
		list = append(list, text)
	}
	if err := s.CheckSocketDir(s.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		list = append(list, fmt.Sprintf("other users may put a socket in the broker's place: the directory %v; %s", err, SocketDirRemedy))
	}
	if network, at, err := ParseHTTP(s.HTTP, true); s.HTTP != "" && err == nil && network == "unix" {
		if err := sys.CheckSocketDir(dirOf(at), nil, nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
			list = append(list, fmt.Sprintf("serve does not begin with this HTTP endpoint: other users may put a socket in its place: the directory %v; %s", err, HTTPSocketDirRemedy))
		}
	}
	if info, err := os.Stat(s.HTTPToken); s.HTTPToken != "" && err == nil && info.Mode()&0o004 != 0 {
		list = append(list, fmt.Sprintf("every user may read the token in %s: its mode is %04o (chmod 600)", s.HTTPToken, info.Mode().Perm()))
	}
	return append(list, Mistyped(environ)...)
}

// Mistyped says which variables of an environment look like those of settings, and are none.
func Mistyped(environ []string) (list []string) {
	var known []string
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	Define(flags, true)
	flags.VisitAll(func(f *pflag.Flag) { known = append(known, envName(f.Name)) })
	known = append(known, address.EnvAddress, address.EnvNamespace, address.EnvBinary, address.EnvName, address.EnvTrace, address.EnvNoTraces)
	for _, set := range environ {
		name, _, _ := strings.Cut(set, "=")
		if !strings.HasPrefix(name, "BATON_") || slices.Contains(known, name) {
			continue
		}
		far := func(other string) int { return spelling.Distance(name, other) }
		near := slices.MinFunc(known, func(a, b string) int { return cmp.Compare(far(a), far(b)) })
		if far(near) <= 2 {
			list = append(list, fmt.Sprintf("$%s is no setting: %s is", name, near))
		}
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

// SocketDirRemedy is what to do where CheckSocketDir finds something.
const SocketDirRemedy = "name a socket in another one (--address), give this one the sticky bit (chmod +t), or, if it is for the broker alone, make it writable by the broker's user only (chmod 755); a volume whose users trust each other may stay so"

// HTTPSocketDirRemedy is what to do where the socket of the HTTP endpoint lies in such a directory.
const HTTPSocketDirRemedy = "name a path in another one (--http), give this one the sticky bit (chmod +t), or, if it is for the broker alone, make it the broker's own (chmod 755)"

// CheckSocketDir tells which others may put a socket of theirs in the place of the broker's. A
// directory that is the runtime directory as well, or one for other users, is not looked at: the
// broker does not begin with one that others may write.
func (s *Settings) CheckSocketDir(socket string) error {
	if !s.Apart(socket) || s.Shared {
		return nil
	}
	return sys.CheckSocketDir(dirOf(socket), s.AllowUIDs, s.AllowGIDs)
}

// Apart tells whether a socket lies elsewhere than in the runtime directory.
func (s *Settings) Apart(socket string) bool {
	return s.RuntimeDir != "" && filepath.Clean(s.RuntimeDir) != dirOf(socket)
}
