package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/logqueue"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Place is where a broker runs, or would.
type Place struct {
	Socket string // "": the environment names none that could be, see SettingsErr
	Named  bool   // the address was given: programs wait for a broker there, and start none
	Dir    string // runtime directory
	// SocketDir is the directory of the broker's socket, "" where that is Dir, and SocketDirErr
	// tells which others may put a socket of theirs there.
	SocketDir    string
	SocketDirErr error
	// MemoryDir is where the settings have shared memory lie; "": in memfds.
	MemoryDir string
	// Ask connects to the broker and tells its version and what runs of NATS.
	// ErrNoBroker: none answers.
	Ask func(context.Context) (Answer, error)
	// Hosts lists the hosts that the broker knows.
	Hosts func(context.Context) ([]broker.HostRow, error)
	// Patience is how long the broker may take to be there and to answer; 0: as other checks.
	Patience time.Duration
	// Version of this program.
	Version string
	// Join is the NATS that the settings name; nil: none.
	Join *natsbridge.Info
	// JoinOptions go with it: what an Info does not carry.
	JoinOptions []nats.Option
	// Mistyped are variables of the environment that look like settings, and are none.
	Mistyped []string
	// SettingsErr is why the settings cannot be used.
	SettingsErr error
	// RecordedErr is why the settings that the last broker has recorded, for one that a program
	// starts, cannot start it.
	RecordedErr error
}

// Answer is what a broker says of itself.
type Answer struct {
	PID     int
	Version string
	// MemoryDir is where its shared memory lies; "": in memfds.
	MemoryDir string
	Files     broker.FilesStatus
	Log       *logqueue.Status // nil: it does not tell
	Memory    broker.MemoryStatus
	// NATSError is why it runs without NATS; "": it was told to.
	NATSError string
	NATSDir   string // where it tells how to reach its NATS; "": it has none
	NATS      *natsbridge.Status
	// Hosts is what it has of other hosts; nil: it does not span.
	Hosts *machines.Status
	// Names is how the names of namespaces are agreed on with them.
	Names []names.Status
}

// Checks lists what to look at in the broker's place.
func (p Place) Checks() []Check {
	settings := Check{Name: "settings", Look: func(context.Context) Finding { return p.settings() }}
	if p.Socket == "" {
		return []Check{settings}
	}
	checks := []Check{
		settings,
		{Name: "recorded settings", Look: func(context.Context) Finding { return p.recorded() }},
		{Name: "runtime directory", Look: p.directory, Most: p.Patience},
	}
	if p.SocketDir != "" {
		checks = append(checks, Check{Name: "socket directory", Look: func(context.Context) Finding { return p.socketDir() }})
	}
	return append(checks,
		Check{Name: "memory directory", Look: p.memoryDir, Most: p.Patience},
		Check{Name: "broker", Look: p.broker, Most: p.Patience},
		Check{Name: "broker's memory", Look: p.memory, Most: p.Patience},
		Check{Name: "broker's open files", Look: p.files, Most: p.Patience},
		Check{Name: "broker's log", Look: p.log, Most: p.Patience},
		Check{Name: "NATS", Look: p.nats, Most: p.Patience},
		Check{Name: "other hosts", Each: p.hosts, Most: hostsTime + p.Patience})
}

func (p Place) settings() Finding {
	if e := new(protocol.Error); errors.As(p.SettingsErr, &e) {
		return fail(e.Remedy, "%s", protocol.Plain(p.SettingsErr))
	}
	if p.SettingsErr != nil {
		return fail("correct it; baton serve --check-config shows all of them", "%v", p.SettingsErr)
	}
	if len(p.Mistyped) > 0 {
		return warn("correct the name, or unset it", "%s", strings.Join(p.Mistyped, "; "))
	}
	return ok("environment and file can be used")
}

func (p Place) recorded() Finding {
	if p.RecordedErr != nil {
		return failed(p.RecordedErr)
	}
	return ok("nothing that a broker has recorded keeps a program from starting the next")
}

// dirSettings choose the runtime directory, for programs and brokers.
const dirSettings = "XDG_RUNTIME_DIR, BATON_ADDRESS"

func (p Place) directory(ctx context.Context) Finding {
	info, err := os.Lstat(p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		// It is made with all that is missing above it.
		above := filepath.Dir(p.Dir)
		for info, err = os.Stat(above); errors.Is(err, fs.ErrNotExist); info, err = os.Stat(above) {
			above = filepath.Dir(above)
		}
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a directory", above)
		}
		if err == nil {
			err = sys.CheckWritable(above)
		}
		if err != nil {
			return fail("set XDG_RUNTIME_DIR to a directory of yours", "%s cannot be made: %v", p.Dir, err)
		}
		if full := noRoom(above, leastRoom, runtimeRemedy); full != nil {
			return *full
		}
		return ok("%s is not there yet and will be made", p.Dir)
	}
	if err != nil {
		return fail(sys.DirRemedy(err, dirSettings), "%v", err)
	}
	if owner, others := othersDir(info); others {
		return p.othersDirectory(ctx, owner)
	}
	// Only one that is there is checked, because the check would make it.
	if err := sys.CheckPrivateDir(p.Dir); err != nil {
		return fail(sys.DirRemedy(err, dirSettings), "%v", err)
	}
	if found := p.inTheWay(); found != nil {
		return *found
	}
	if err := sys.CheckWritable(p.Dir); err != nil {
		return fail("make it writable (chmod 700, or mount it so), or set XDG_RUNTIME_DIR or BATON_ADDRESS", "%v", err)
	}
	if full := noRoom(p.Dir, leastRoom, runtimeRemedy); full != nil {
		return *full
	}
	return ok("%s, mode %04o, belongs to this user alone", p.Dir, info.Mode().Perm())
}

// inTheWay is the finding about what stands where a file of a broker belongs; nil: nothing does.
func (p Place) inTheWay() *Finding {
	for _, file := range []struct {
		name, lacks string
		replaced    bool // but for a directory
	}{
		{reach.LockName, "no broker can lock it", false},
		{statefile.Name, "no broker can write its state there", true},
		{"start.lock", "no program can lock it to start a broker", false},
		{"nats.lock", "no broker with NATS can lock it", false},
		{"nats.seed", "no broker can write the key of its NATS there", true},
		{"nats.json", "no broker can write there how its NATS is reached", true},
	} {
		path := filepath.Join(p.Dir, file.name)
		info, err := os.Lstat(path)
		if err != nil || info.Mode().IsRegular() || file.replaced && !info.IsDir() {
			continue
		}
		found := fail("move it away", "%s is no regular file: %s", path, file.lacks)
		return &found
	}
	if err := logErr(filepath.Join(p.Dir, "broker.log")); err != nil {
		found := fail("move it away", "%v: no program can start a broker, whose log it is", err)
		return &found
	}
	return nil
}

// logErr is why a program that starts a broker cannot open its log, as far as is seen without making it. Links are followed,
// also to a file that is not there.
func logErr(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file", path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	target := path
	for {
		next, err := os.Readlink(target)
		if err != nil {
			break
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(filepath.Dir(target), next)
		}
		target = next
	}
	if _, err := os.Stat(filepath.Dir(target)); err != nil {
		return fmt.Errorf("%s leads to %s, which cannot be made: %w", path, target, err)
	}
	return nil
}

// socketDir looks at the directory of a socket that lies apart from the runtime directory.
func (p Place) socketDir() Finding {
	var at *fs.PathError
	switch {
	case errors.As(p.SocketDirErr, &at):
		return fail("make it (mkdir -m 755), or name a socket in another one (--address)", "no socket can be made in %s: %v", p.SocketDir, at.Err)
	case p.SocketDirErr != nil:
		return warn(settings.SocketDirRemedy, "other users may put a socket in the broker's place: %v", p.SocketDirErr)
	}
	return ok("no other user may put a socket in the broker's place in %s", p.SocketDir)
}

const (
	// leastRoom is what the small files of a runtime directory may take until all is written anew.
	leastRoom = 64 << 10
	// leastMemoryRoom is less than a session's file takes, and what it may allocate at once.
	leastMemoryRoom = 1 << 20

	runtimeRemedy = "make room in its file system (df), or set XDG_RUNTIME_DIR or BATON_ADDRESS"
)

// noRoom is the finding about a directory whose file system is full; nil: it has room, or this cannot be seen.
func noRoom(dir string, least uint64, remedy string) *Finding {
	free, err := sys.FreeSpace(dir)
	if err != nil || free >= least {
		return nil
	}
	f := fail(remedy, "the file system of %s is full: %s are left in it", dir, bytes(free))
	return &f
}

// memoryDir looks at where shared memory lies, or would: what the broker says counts.
func (p Place) memoryDir(ctx context.Context) Finding {
	dir, inUse := p.MemoryDir, false
	if a, err := p.Ask(ctx); err == nil {
		dir, inUse = a.MemoryDir, true
	} else if st, err := statefile.Read(p.Dir); err == nil && len(st.Survivors()) > 0 {
		dir = st.MemoryDir
	}
	if dir == "" {
		return ok("none: shared memory lies in memory files without names")
	}
	free, err := sys.FreeSpace(dir)
	if errors.Is(err, fs.ErrNotExist) && inUse {
		return fail("restart the broker once the programs that use it have ended: what they have mapped stays as it is, and no other process can open it",
			"%s, where the broker's shared memory lies, was removed", dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return ok("%s is not there yet and will be made", dir)
	}
	if err != nil {
		return fail("make it readable to the broker's user, or choose another with --memory-dir", "%v", err)
	}
	if full := noRoom(dir, leastMemoryRoom, "make room in its file system (df): no session can be opened; baton collect has programs give memory back"); full != nil {
		return *full
	}
	return ok("%s, with room for %s", dir, bytes(free))
}

// othersDir tells whose a directory is that is not this user's.
func othersDir(info fs.FileInfo) (owner uint32, others bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || st.Uid == uint32(os.Geteuid()) {
		return 0, false
	}
	return st.Uid, true
}

// othersDirectory judges the directory of another user: one of a broker that serves this user
// as well is as it should be, and no broker of this user's can be anywhere in it.
func (p Place) othersDirectory(ctx context.Context, owner uint32) Finding {
	_, err := p.Ask(ctx)
	switch {
	case err == nil:
		return ok("%s belongs to user %d, whose broker serves user %d as well", p.Dir, owner, os.Geteuid())
	case errors.Is(err, protocol.ErrPermissionDenied):
		return fail(fmt.Sprintf("ask user %d for --shared with --allow-uid or --allow-group, or set XDG_RUNTIME_DIR or BATON_ADDRESS to use a broker of yours", owner),
			"%s belongs to user %d, and user %d may not use the broker there", p.Dir, owner, os.Geteuid())
	}
	return fail(fmt.Sprintf("set XDG_RUNTIME_DIR or BATON_ADDRESS to a directory of yours, or ask user %d to start a broker there (baton serve --shared)", owner),
		"%s belongs to user %d, and no broker there serves user %d", p.Dir, owner, os.Geteuid())
}

func (p Place) broker(ctx context.Context) Finding {
	a, err := p.Ask(ctx)
	switch {
	case errors.Is(err, protocol.ErrNoBroker) && reach.Owner(p.Dir, p.Socket) != 0:
		return failed(reach.CutOff(protocol.CodeNoBroker, reach.Owner(p.Dir, p.Socket), p.Socket))
	case errors.Is(err, protocol.ErrNoBroker) && p.Named:
		return fail("start it (baton serve), or unset BATON_ADDRESS: then the first program starts one",
			"none runs at %s; programs to which that address is given wait for one, and start none", p.Socket)
	case errors.Is(err, protocol.ErrNoBroker) && p.awaits():
		return fail("start it again, as it was started before",
			"none runs at %s; sessions of the last one still live, and it was an operator's: programs wait for the next, and start none", p.Socket)
	case errors.Is(err, protocol.ErrNoBroker):
		if info, statErr := os.Lstat(p.Socket); statErr == nil && info.Mode()&fs.ModeSocket == 0 {
			return fail("choose another path (--address), or move away what is there", "%s exists and is not a socket: no broker can listen there", p.Socket)
		} else if statErr == nil {
			return ok("none runs; %s is left of one that was killed, and the next replaces it", p.Socket)
		}
		return ok("none runs at %s; the first program starts one, or baton serve", p.Socket)
	case errors.Is(err, protocol.ErrVersion):
		return fail("restart the broker with this version", "%v", message(err))
	case errors.Is(err, protocol.ErrTimeout), errors.Is(err, protocol.ErrPermissionDenied):
		return failed(err)
	case err != nil:
		return fail("see its log; restart it", "%v", message(err))
	case a.Version != p.Version:
		return warn("restart it when it is not in use", "process %d serves at %s, version %s; this program is %s", a.PID, p.Socket, a.Version, p.Version)
	}
	return ok("process %d serves at %s, version %s", a.PID, p.Socket, a.Version)
}

// files looks how many more files the broker may open: each session takes some, and so does memory that it takes over.
func (p Place) files(ctx context.Context) Finding {
	const remedy = "raise it (ulimit -n, LimitNOFILE= of its unit, --ulimit nofile of its container), and restart the broker: sessions come back"
	a, err := p.Ask(ctx)
	switch {
	case err != nil:
		return ok("none: no broker answers")
	case a.Files.Limit == 0:
		return ok("none: the broker reports none")
	}
	text := fmt.Sprintf("%d of %d that the broker may have open", a.Files.Open, a.Files.Limit)
	switch {
	case a.Files.Short:
		return fail(remedy, "%s, and it keeps the rest for sessions that have few: sessions or memory were refused, and may be again", text)
	case a.Files.Open > a.Files.Limit/10*9:
		return warn(remedy, "%s", text)
	}
	return ok("%s", text)
}

// log looks whether the log is read and written.
func (p Place) log(ctx context.Context) Finding {
	a, err := p.Ask(ctx)
	switch {
	case err != nil:
		return ok("none: no broker answers")
	case a.Log == nil:
		return warn("restart it with this program when it is not in use", "process %d does not tell whether lines of its log are lost: its program is another build than this one", a.PID)
	case *a.Log == (logqueue.Status{}):
		return ok("no line of it is lost")
	}
	return warn("look at what reads the broker's standard error, or at the file system of that file", "%s", a.Log)
}

// awaits tells whether programs leave the next broker to an operator.
func (p Place) awaits() bool {
	st, err := statefile.Read(p.Dir)
	return err == nil && st.Awaits()
}

// failed is what an error says, with its remedy.
func failed(err error) Finding {
	var e *protocol.Error
	if errors.As(err, &e) {
		return fail(e.Remedy, "%s", e.Message)
	}
	return fail("", "%v", err)
}

func (p Place) nats(ctx context.Context) Finding {
	a, err := p.Ask(ctx)
	if errors.Is(err, protocol.ErrTimeout) {
		return warn("see the check of the broker", "the broker does not say what it has of NATS: it does not answer")
	}
	if err == nil {
		if a.NATSDir == "" && a.NATSError == "" {
			return ok("the broker runs without NATS, as it was told: clients of NATS see none of its tuples and names")
		}
		if a.NATSDir == "" {
			return warn("see the broker's log", "the broker runs without NATS: %s", a.NATSError)
		}
		// What the broker itself sees counts: its password may be one that this program does not know.
		if n := a.NATS; n != nil && !n.Connected {
			return warn(natsRemedyFor(n.LastError), "the broker is not connected to NATS at %s%s", n.URL, because(n.LastError))
		}
		if n := a.NATS; n != nil && len(n.Refused) > 0 {
			var all []string
			for _, r := range n.Refused {
				all = append(all, r.String())
			}
			return warn("grant the broker's user the right on the NATS server; the broker looks for it by itself",
				"the broker is connected to %s, which refuses it something: it %s", n.URL, strings.Join(all, "; it "))
		}
		if n := a.NATS; n != nil && n.Names.Error != "" {
			return warn("see baton status, and the broker's log", "the broker is connected to %s, but its names are not: %s", n.URL, n.Names.Error)
		}
		if n := a.NATS; n != nil && n.Names.Foreign > 0 {
			return warn("give one of the two another namespace, or delete the names there; baton status says whose they are",
				"%d names of this broker are another one's on NATS", n.Names.Foreign)
		}
		if n := a.NATS; n != nil && n.Service != "" {
			return warn("see the broker's log", "the broker is connected to %s, but is not listed among its services: %s", n.URL, n.Service)
		}
		info, err := natsbridge.ReadInfo(a.NATSDir)
		if errors.Is(err, protocol.ErrPermissionDenied) && a.NATS != nil { // the broker of another user
			return ok("the broker is connected to %s; %s", a.NATS.URL, message(err))
		}
		if err != nil {
			return warn("see the broker's log", "%v", message(err))
		}
		return roundTrip(ctx, "the broker's", info, nil)
	}
	if p.Join != nil {
		return roundTrip(ctx, "the one in the settings", *p.Join, p.JoinOptions)
	}
	return ok("a broker brings its own, on loopback")
}

// roundTrip connects to a server and asks for a round trip. Without secrets of its
// own it takes a demand for them for an answer.
func roundTrip(ctx context.Context, whose string, info natsbridge.Info, secrets []nats.Option) Finding {
	opts := append([]nats.Option{nats.Timeout(mostTime), nats.MaxReconnects(0), nats.Name("baton doctor")}, secrets...)
	nc, err := info.Connect(opts...)
	if errors.Is(err, nats.ErrAuthorization) && info.User != "" && len(secrets) == 0 {
		return ok("%s answers at %s; its user's password is the broker's secret", whose, info.URL)
	}
	if err == nil {
		err = nc.FlushWithContext(ctx)
		defer nc.Close()
	}
	if err != nil {
		// The address may hold a password.
		what := "does not answer"
		if errors.Is(err, nats.ErrAuthorization) {
			what = "refuses this program"
		}
		return warn(natsRemedy(err), "%s %s: %s", whose, what, strings.ReplaceAll(message(err), info.URL, settings.HideSecrets(info.URL)))
	}
	return ok("%s answers at %s", whose, nc.ConnectedUrlRedacted())
}

func natsRemedy(err error) string {
	var n net.Error
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		return "check the credentials (--nats-creds, --nats-nkey, --nats-user)"
	case errors.Is(err, nats.ErrNoServers), errors.Is(err, syscall.ECONNREFUSED), errors.As(err, &n):
		return "start the NATS server or correct its address; hand-overs on this machine go on without"
	}
	return "check address, TLS files and credentials; hand-overs on this machine go on without"
}

// natsRemedyFor is natsRemedy of an error that a broker reports.
func natsRemedyFor(text string) string {
	if strings.Contains(text, nats.ErrAuthorization.Error()) || strings.Contains(text, "Authorization Violation") {
		return natsRemedy(nats.ErrAuthorization)
	}
	return natsRemedy(nats.ErrNoServers)
}

func because(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// message is an error's text without the remedy, which the finding has.
func message(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return fmt.Sprint(err)
}
