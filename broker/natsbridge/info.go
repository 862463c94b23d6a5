package natsbridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Modes of a bridge.
const (
	ModeEmbedded = "embedded"
	ModeJoined   = "joined"
)

const (
	infoFile = "nats.json"
	infoMax  = 64 << 10 // bytes that ReadInfo reads at most
)

// Info tells how to connect a NATS client to what a broker uses. It is the content
// of nats.json in the runtime directory. It holds paths of secrets, no secrets.
type Info struct {
	Version  int    `json:"v"`
	Mode     string `json:"mode"`
	URL      string `json:"url"`            // several are joined by commas
	Seed     string `json:"seed,omitempty"` // file with an nkey seed
	Creds    string `json:"creds,omitempty"`
	User     string `json:"user,omitempty"` // without the password
	CA       string `json:"ca,omitempty"`
	Cert     string `json:"cert,omitempty"`
	Key      string `json:"key,omitempty"`
	TLSFirst bool   `json:"tls_first,omitempty"`
	// Owner is the identity under which the bridge writes names, of one that has joined.
	Owner string `json:"owner,omitempty"`

	// The process that wrote it: pids and start times count in a pid namespace
	// and since a boot.
	PID          int    `json:"pid"`
	StartTime    uint64 `json:"start_time"`
	PIDNamespace uint64 `json:"pid_namespace"`
	BootID       string `json:"boot_id"`
}

func newInfo(mode, url string) Info {
	pid := os.Getpid()
	start, _ := sys.StartTime(pid) // 0: not to be compared
	return Info{Version: 1, Mode: mode, URL: url, PID: pid, StartTime: start,
		PIDNamespace: sys.PIDNamespace(pid), BootID: sys.BootID()}
}

// write puts the info into a runtime directory, whole.
func (i Info) write(dir string) error {
	data, err := json.MarshalIndent(i, "", "  ")
	if err == nil {
		err = writePrivate(filepath.Join(dir, infoFile), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write how to connect to NATS: %w", err)
	}
	return nil
}

// ReadInfo tells how to connect to the NATS of the broker that has this runtime
// directory. Where no broker lives the error is ErrNotRunning (code NoBroker); a
// file that others can write, or that is damaged, is refused. Another user than the broker's
// may not read it (code PermissionDenied).
func ReadInfo(runtimeDir string) (Info, error) {
	info, err := readInfo(runtimeDir)
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, protocol.Errorf(protocol.CodeNoBroker, "start one with: baton serve",
			"%s names no NATS server: %w", runtimeDir, ErrNotRunning)
	}
	if errors.Is(err, fs.ErrPermission) {
		return Info{}, protocol.Errorf(protocol.CodePermission,
			"ask the user who started the broker to run baton nats, and for keys of your own; tensors, names and topics of the broker need none",
			"how to connect to this broker's NATS, with the keys, is for the user who started it alone: user %d may not read it: %w", os.Geteuid(), err)
	}
	if err != nil {
		return Info{}, err
	}
	if !info.alive() {
		return Info{}, protocol.Errorf(protocol.CodeNoBroker, "start one with: baton serve",
			"the broker that wrote %s has ended (pid %d): %w", filepath.Join(runtimeDir, infoFile), info.PID, ErrNotRunning)
	}
	return info, nil
}

// readInfo reads the file, whichever broker wrote it, living or not.
func readInfo(runtimeDir string) (Info, error) {
	path := filepath.Join(runtimeDir, infoFile)
	f, err := openOwn(path, 0o022)
	if err != nil {
		return Info{}, fmt.Errorf("read how to connect to NATS: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, infoMax+1))
	if err != nil {
		return Info{}, fmt.Errorf("read how to connect to NATS: %w", err)
	}
	info, err := parseInfo(data)
	if err != nil {
		return Info{}, protocol.Errorf(protocol.CodeProtocol, "remove it and restart the broker", "%s is damaged: %w", path, err)
	}
	if info.Mode == ModeEmbedded {
		// Beside this file by definition; another container may have mounted the
		// directory elsewhere.
		info.Seed = filepath.Join(runtimeDir, seedFile)
	}
	return info, nil
}

// formerLife is the owner, with its process, of a bridge that had this directory and did not close: that process has
// ended, since its lock is free, and no other of that identity writes keys with that pid. nil: there was none.
func formerLife(runtimeDir string) *entry {
	info, err := readInfo(runtimeDir)
	if err != nil || info.Mode != ModeJoined || info.Owner == "" {
		return nil
	}
	return &entry{owner: info.Owner, machine: info.BootID, pid: info.PID}
}

// parseInfo reads the content of nats.json. Unknown fields are for later versions.
func parseInfo(data []byte) (Info, error) {
	if len(data) > infoMax {
		return Info{}, fmt.Errorf("more than %d bytes", infoMax)
	}
	var i Info
	if err := json.Unmarshal(data, &i); err != nil {
		return Info{}, err
	}
	if i.Version != 1 {
		return Info{}, fmt.Errorf("version %d, this is for version 1", i.Version)
	}
	if i.Mode != ModeEmbedded && i.Mode != ModeJoined {
		return Info{}, fmt.Errorf("unknown mode %q", i.Mode)
	}
	if _, err := checkURLs([]string{i.URL}); err != nil {
		return Info{}, err
	}
	if i.PID <= 0 || i.BootID == "" {
		return Info{}, errors.New("it does not name its writer")
	}
	return i, nil
}

// alive tells whether the writer lives, as far as can be seen: a process in
// another pid namespace counts as alive until the next boot.
func (i Info) alive() bool {
	if i.BootID != sys.BootID() {
		return false
	}
	if i.PIDNamespace != sys.PIDNamespace(os.Getpid()) {
		return true
	}
	fd, state := sys.FindProcess(i.PID, i.StartTime)
	if fd != nil {
		fd.Close()
	}
	return i.StartTime == 0 || state != sys.ProcessEnded
}

// port of the embedded server, 0 if there is none.
func (i Info) port() int {
	u, err := url.Parse(i.URL)
	if i.Mode != ModeEmbedded || err != nil {
		return 0
	}
	n, err := strconv.Atoi(u.Port())
	if err != nil || n < 1 || n > 65535 {
		return 0
	}
	return n
}

// Connect opens a connection of the caller's own, as the info says and with his
// options on top. A broker that joined with user and password adds nats.UserInfo.
func (i Info) Connect(opts ...nats.Option) (*nats.Conn, error) {
	j := JoinConfig{URLs: strings.Split(i.URL, ","), Creds: i.Creds, Seed: i.Seed,
		CA: i.CA, Cert: i.Cert, Key: i.Key, TLSFirst: i.TLSFirst}
	o, err := j.options()
	if err != nil {
		return nil, err
	}
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, fmt.Errorf("connect to NATS at %s: %w", i.URL, err)
		}
	}
	nc, err := o.Connect()
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", i.URL, err)
	}
	return nc, nil
}
