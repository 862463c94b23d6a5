// Package address finds a broker's socket and runtime directory, the same way
// for the broker, its clients and the command line. It owns nothing, keeps no
// state, and reads only the environment.
package address

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/baton-ipc/baton/protocol"
)

// Environment variables.
const (
	EnvAddress   = "BATON_ADDRESS"
	EnvNamespace = "BATON_NAMESPACE"
	EnvBinary    = "BATON_BINARY"
	EnvName      = "BATON_NAME"
	EnvTrace     = "BATON_TRACE"
	EnvNoTraces  = "BATON_NO_REMOTE_TRACES"
)

// maxSocketPath is sun_path less its final zero.
const maxSocketPath = 107

// RuntimeDir is where this user's broker keeps its socket and small files.
func RuntimeDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && filepath.IsAbs(dir) {
		return filepath.Join(dir, "baton")
	}
	return fmt.Sprintf("/tmp/baton-%d", os.Geteuid())
}

// roomForSocket is what a run adds to the folder of what is temporary: a folder of
// its own, and the socket.
const roomForSocket = 48

// TempDir is where private brokers have their folders: that of what is temporary,
// or /tmp where a socket's path there would be too long.
func TempDir() string {
	if dir := os.TempDir(); len(dir)+roomForSocket <= maxSocketPath {
		return dir
	}
	return "/tmp"
}

// Usual is the socket of this user's broker where nothing names another one.
func Usual() string { return filepath.Join(RuntimeDir(), "broker.sock") }

// Resolve returns the socket path of an address: `unix:/path`, `/path`, or ""
// for $BATON_ADDRESS or else the user's broker. given tells whether the user
// named it: then a broker is awaited there and never started.
func Resolve(address string) (socket string, given bool, err error) {
	if address == "" {
		address = os.Getenv(EnvAddress)
	}
	if address == "" {
		socket = Usual()
	} else {
		given = true
		socket = strings.TrimPrefix(address, "unix:")
		socket = strings.TrimPrefix(socket, "//")
		if !filepath.IsAbs(socket) {
			return "", true, protocol.Errorf(protocol.CodeInvalid, "use unix:/path or /path", "address %q is not an absolute path", address)
		}
	}
	if len(socket) > maxSocketPath {
		return "", given, protocol.Errorf(protocol.CodeInvalid, "use a shorter directory, or set BATON_ADDRESS",
			"socket path of %d bytes is longer than %d: %s", len(socket), maxSocketPath, socket)
	}
	return socket, given, nil
}
