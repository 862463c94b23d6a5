package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/statefile"
)

func dirOf(path string) string { return filepath.Dir(path) }

// relative refuses a path that would mean another place elsewhere: a file of
// settings is read wherever the broker is started.
func relative(path string) error {
	if abs, err := filepath.Abs(path); err == nil {
		return fmt.Errorf("%q is not an absolute path; from here it would be %s", path, abs)
	}
	return fmt.Errorf("%q is not an absolute path", path)
}

// leastMemory is the smallest first grant of a session.
const leastMemory = 64 << 10

// check tells whether the settings fit together and the files that they name
// can be read.
func (s *Settings) check() error {
	if s.Dir != "" && !filepath.IsAbs(s.Dir) {
		return s.wrong(keyRuntimeDir, relative(s.Dir))
	}
	if err := s.checkOwnFile(keyAddress, filepath.Clean(s.Socket)); err != nil {
		return err
	}
	if s.MemoryDir != "" {
		if !filepath.IsAbs(s.MemoryDir) {
			return s.wrong("memory-dir", relative(s.MemoryDir))
		}
		if info, err := os.Stat(s.MemoryDir); err == nil && !info.IsDir() {
			return s.wrong("memory-dir", fmt.Errorf("%s is not a directory", s.MemoryDir))
		}
	}
	for _, limit := range []struct {
		name  string
		bytes uint64
	}{{"memory", s.Memory}, {"session-memory", s.SessionMemory}} {
		if limit.bytes != 0 && limit.bytes < leastMemory {
			return s.wrong(limit.name, fmt.Errorf("nothing fits into %s: a session takes %s at first", formatSize(limit.bytes), formatSize(leastMemory)))
		}
	}
	if s.Memory != 0 && s.SessionMemory > s.Memory {
		return s.wrong("session-memory", fmt.Errorf("one session may have more (%s) than all together (%s)",
			formatSize(s.SessionMemory), formatSize(s.Memory)))
	}
	if s.DeviceMemory != 0 && s.SessionDeviceMemory > s.DeviceMemory {
		return s.wrong("session-device-memory", fmt.Errorf("one session may have more (%s) than all together (%s)",
			formatSize(s.SessionDeviceMemory), formatSize(s.DeviceMemory)))
	}
	// The last user may be taken out of those of a shared broker while it runs, and of the next one that stands in for it.
	if s.sharedWithNone() && !s.StandIn && !s.reloaded {
		return s.wrong(keyShared, errors.New("no other user may connect: name some with --allow-uid or --allow-group, or observers with --observe-uid or --observe-group"))
	}
	if s.IdleExit < 0 {
		return s.wrong("idle-exit", errors.New("a negative time"))
	}
	if s.UnreadPickles < 0 {
		return s.wrong("unread-pickles", errors.New("a negative time"))
	}
	if s.DrainTimeout <= 0 {
		return s.wrong("drain-timeout", errors.New("give it at least some time, such as 1s"))
	}
	if s.PProf && s.HTTP == "" {
		return s.wrong("pprof", errors.New("it is served over HTTP: give --http too"))
	}
	if s.MetricsTopics > 0 && s.HTTP == "" {
		return s.wrong("metrics-topics", errors.New("they are served over HTTP: give --http too"))
	}
	if s.MetricsFunctions > 0 && s.HTTP == "" {
		return s.wrong("metrics-functions", errors.New("they are served over HTTP: give --http too"))
	}
	if err := s.checkHTTP(); err != nil {
		return err
	}
	if err := s.checkNATS(); err != nil {
		return err
	}
	if err := s.checkSpan(); err != nil {
		return err
	}
	return s.checkFiles()
}

// checkSpan tells whether what is said of other hosts fits together.
func (s *Settings) checkSpan() error {
	if len(s.Span) > 0 && s.NATS == "" {
		return s.wrong(keySpan, errors.New("hosts find each other by a NATS that all of them reach: give --nats URL too"))
	}
	for _, key := range []string{"data", "data-listen", "data-tls", "remote-memory", keySpanTimeout} {
		if s.sources[key] != "" && len(s.Span) == 0 {
			return s.wrong(key, errors.New("it is of the way to other hosts: give --span too"))
		}
	}
	if s.SpanTimeout <= 0 {
		return s.wrong(keySpanTimeout, errors.New("give it at least some time, such as 1s"))
	}
	if s.DataTLS != dataTLS[0] && s.Data == "nats" {
		return s.wrong("data-tls", errors.New("with --data=nats there are no direct connections: leave one of them out"))
	}
	if s.DataListen == "" {
		return nil
	}
	if s.Data == "nats" {
		return s.wrong("data-listen", errors.New("with --data=nats there is no data port: leave one of them out"))
	}
	if _, port, err := net.SplitHostPort(s.DataListen); err != nil || port == "" {
		return s.wrong("data-listen", fmt.Errorf("%q is no address: write host:port, such as 10.0.0.5:7500, or :7500 for all addresses", s.DataListen))
	}
	return nil
}

// sharedWithNone tells whether no user but the broker's own may connect to a broker that is shared.
func (s *Settings) sharedWithNone() bool {
	return s.Shared && len(s.AllowUIDs)+len(s.AllowGIDs)+len(s.ObserveUIDs)+len(s.ObserveGIDs) == 0
}

func (s *Settings) checkHTTP() error {
	for _, f := range []struct{ key, value string }{
		{"http-token-file", s.HTTPToken}, {"http-cert", s.HTTPCert}, {"http-key", s.HTTPKey}} {
		if f.value != "" && s.HTTP == "" {
			return s.wrong(f.key, errors.New("it is of the HTTP endpoint: give --http too"))
		}
	}
	if (s.HTTPCert == "") != (s.HTTPKey == "") {
		return s.wrong("http-cert", errors.New("a certificate and its key go together: give --http-cert and --http-key"))
	}
	if s.HTTP == "" {
		return nil
	}
	network, at, err := ParseHTTP(s.HTTP, s.HTTPToken != "" || s.HTTPCert != "")
	if err != nil {
		return s.wrong("http", err)
	}
	if network == "unix" {
		return s.checkHTTPSocket(filepath.Clean(at))
	}
	return nil
}

// checkHTTPSocket refuses the paths of the broker's own socket and files.
func (s *Settings) checkHTTPSocket(at string) error {
	if at == filepath.Clean(s.Socket) {
		return s.wrong("http", fmt.Errorf("%s is the socket at which the broker serves its clients: give another path", at))
	}
	return s.checkOwnFile("http", at)
}

// checkOwnFile refuses the path of a socket where the broker has a file of its own.
func (s *Settings) checkOwnFile(key, at string) error {
	name := filepath.Base(at)
	own := strings.HasPrefix(name, statefile.Name) || name == reach.LockName || strings.HasPrefix(name, "nats.")
	if own && filepath.Dir(at) == filepath.Clean(s.Dir) {
		return s.wrong(key, fmt.Errorf("the broker has a file of its own at %s: give another path", at))
	}
	return nil
}

func (s *Settings) checkNATS() error {
	joining := []struct{ key, value string }{
		{"nats-creds", s.NATSCreds}, {"nats-nkey", s.NATSNkey}, {"nats-user", s.NATSUser},
		{keyNATSPassword, s.NATSPassword}, {"nats-ca", s.NATSCA}, {"nats-cert", s.NATSCert}, {"nats-key", s.NATSKey},
	}
	if s.NoNATS && s.NATS != "" {
		return s.wrong("no-nats", fmt.Errorf("and %s are given: choose one", s.place("nats")))
	}
	if s.NATSFunctions && s.NoNATS {
		return s.wrong("nats-functions", fmt.Errorf("and %s are given: choose one", s.place("no-nats")))
	}
	if s.NATSPort != 0 && (s.NoNATS || s.NATS != "") {
		return s.wrong("nats-port", errors.New("it is the embedded server's, which --nats and --no-nats leave out"))
	}
	for _, j := range joining {
		if j.key == keyNATSPassword && s.sources[j.key] == "environment" {
			continue // of a shell that has it for other programs: it names and permits nothing by itself
		}
		if j.value != "" && s.NATS == "" {
			return s.wrong(j.key, errors.New("it is for joining a NATS server: give --nats URL too"))
		}
	}
	if err := checkURLs(s.NATS); err != nil {
		return s.wrong("nats", err)
	}
	ways := 0
	for _, v := range []string{s.NATSCreds, s.NATSNkey, s.NATSUser} {
		if v != "" {
			ways++
		}
	}
	switch {
	case ways > 1:
		return s.wrong("nats", errors.New("give one of --nats-creds, --nats-nkey and --nats-user"))
	case s.NATSPassword != "" && s.NATSUser == "" && s.sources[keyNATSPassword] != "environment":
		return s.wrong(keyNATSPassword, errors.New("give --nats-user too"))
	case s.NATSCert == "" && s.NATSKey != "":
		return s.wrong("nats-key", errors.New("give --nats-cert too"))
	case s.NATSCert != "" && s.NATSKey == "":
		return s.wrong("nats-cert", errors.New("give --nats-key too"))
	}
	return nil
}

// checkURLs looks at a list of NATS addresses. Its errors do not repeat what may
// hold a password.
func checkURLs(list string) error {
	if list == "" {
		return nil
	}
	for i, text := range strings.Split(list, ",") {
		if text = strings.TrimSpace(text); !strings.Contains(text, "://") {
			text = "nats://" + text
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return fmt.Errorf("entry %d is not an address: write nats://host:port or tls://host:port", i+1)
		}
		if err := checkPort(u.Port()); err != nil {
			return fmt.Errorf("address %d: %w", i+1, err)
		}
	}
	return nil
}

// checkPort refuses a number that is no port's. A service has a name.
func checkPort(port string) error {
	if n, err := strconv.Atoi(port); err == nil && (n < 0 || n > math.MaxUint16) {
		return fmt.Errorf("port %s is not 0 to %d", port, math.MaxUint16)
	}
	return nil
}

// HideSecrets takes credentials out of NATS addresses.
func HideSecrets(list string) string {
	parts := strings.Split(list, ",")
	for i, p := range parts {
		if at := strings.LastIndexByte(p, '@'); at >= 0 {
			scheme, _, found := strings.Cut(p, "://")
			if !found {
				scheme = "nats"
			}
			parts[i] = scheme + "://" + p[at+1:]
		}
	}
	return strings.Join(parts, ",")
}

// ParseHTTP splits an address of the HTTP endpoint into what net.Listen takes: a
// Unix socket (unix:/path or /path) or a loopback address with a port. Any other
// host is refused unless the endpoint is guarded, by a token or TLS.
func ParseHTTP(s string, guarded bool) (network, addr string, err error) {
	if path := strings.TrimPrefix(s, "unix:"); path != s || strings.HasPrefix(s, "/") {
		if !filepath.IsAbs(path) {
			return "", "", fmt.Errorf("%q is not an absolute path", s)
		}
		if len(path) > maxSocketPath {
			return "", "", fmt.Errorf("socket path of %d bytes is longer than %d", len(path), maxSocketPath)
		}
		return "unix", path, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", "", fmt.Errorf("%q is neither a socket path nor host:port", s)
	}
	if err := checkPort(port); err != nil {
		return "", "", err
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) && !guarded {
		return "", "", fmt.Errorf("%q is not a loopback address: give --http-token-file or --http-cert too, or use 127.0.0.1:%s or a socket path", s, port)
	}
	return "tcp", s, nil
}

// maxSocketPath is sun_path less its final zero.
const maxSocketPath = 107
