package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Pauses between looks for a broker's socket.
const (
	dialSoon = 10 * time.Millisecond
	dialLate = 250 * time.Millisecond
	// mayStartAgain is how often it is asked anew whether one may be started.
	mayStartAgain = time.Second
)

// Place is where a session's broker is, and how one is started there.
type Place struct {
	Socket string // as the environment was when the session was opened
	Named  bool   // the address was given
	Start  bool   // one may be started where it was not
	Binary string // "": it is looked for
}

// dial connects to the broker's socket and waits for one until ctx ends. It starts
// the user's broker where that is allowed and left to clients.
func dial(ctx context.Context, o *Place) (*net.UnixConn, error) {
	socket := o.Socket
	var asked time.Time
	for pause := dialSoon; ; pause = min(2*pause, dialLate) {
		conn, err := reach.Dial(ctx, socket)
		if err == nil || !reach.Absent(err) {
			return conn, err
		}
		switch {
		case o.Named:
		case !o.Start:
			return nil, noBroker(socket)
		case time.Since(asked) >= mayStartAgain:
			asked = time.Time{}
			switch err := startBroker(ctx, o, socket); err {
			case nil:
				continue
			case errAwaited:
				asked = time.Now()
			case errOccupied:
			default:
				return nil, err
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if asked.IsZero() {
				return nil, noBroker(socket)
			}
			return nil, protocol.Errorf(protocol.CodeNoBroker, "start that broker again with its settings: its unit, or `baton serve` as before",
				"no broker answers at %s: an operator started the last one, and programs still have sessions of it", socket)
		}
	}
}

// errAwaited says that the next broker is not for clients to start, errOccupied that
// none can be started while another one lives, which may be about to end.
var (
	errAwaited  = errors.New("the broker is the operator's to start")
	errOccupied = errors.New("another broker lives")
)

func noBroker(socket string) error {
	return reach.None(socket, "start one with `baton serve`, or set BATON_ADDRESS")
}

// startBroker runs `baton serve` for this user, unless the next broker is the operator's
// to start (errAwaited), or a broker lives already (errOccupied). A lock makes one of many processes that come at once do it,
// and a second look finds what another has started.
func startBroker(ctx context.Context, o *Place, socket string) error {
	dir := filepath.Dir(socket)
	if err := sys.CheckPrivateDir(dir); err != nil {
		return protocol.Errorf(protocol.CodePermission, "set XDG_RUNTIME_DIR to a directory that is yours alone", "%w", err)
	}
	path := filepath.Join(dir, "start.lock")
	lock, err := sys.OpenLock(path)
	if errors.Is(err, sys.ErrInTheWay) {
		return protocol.Errorf(protocol.CodeNoBroker, "move it away", "%w", err)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeNoBroker, "check the runtime directory", "%w", err)
	}
	defer lock.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := lock.Lock(false)
		if err == nil {
			break
		}
		if !sys.IsLocked(err) {
			return protocol.Errorf(protocol.CodeNoBroker, "set XDG_RUNTIME_DIR to a folder where files can be locked", "lock %s: %w", path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return noBroker(socket)
		}
	}
	if reach.Listens(socket) {
		return nil
	}
	if reach.Owner(dir, socket) != 0 {
		return errOccupied
	}
	if st, err := statefile.Read(dir); err == nil && st.Awaits() {
		return errAwaited
	}
	binary, err := findBinary(o)
	if err != nil {
		return err
	}
	log, err := sys.OpenAppend(filepath.Join(dir, "broker.log"))
	if errors.Is(err, sys.ErrInTheWay) {
		return protocol.Errorf(protocol.CodeNoBroker, "move it away", "open the broker's log: %w", err)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeNoBroker, "check the runtime directory", "open the broker's log: %w", err)
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return protocol.Errorf(protocol.CodeNoBroker, "check the runtime directory", "open the broker's log: %w", err)
	}
	cmd := exec.Command(binary, "serve", "--stand-in", "--address", socket)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log // os/exec passes no other descriptors on
	// Why it ends: the log's file system may be full.
	said, why, err := os.Pipe()
	if err != nil {
		return protocol.Errorf(protocol.CodeTooMany, "raise the limit of open files (ulimit -n), or close some", "start the broker: %w", err)
	}
	defer said.Close()
	cmd.Stdin = why
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	why.Close()
	if err != nil {
		return protocol.Errorf(protocol.CodeNoBroker, "check the binary", "start %s serve: %w", binary, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // reaps it if it ends before us
	// Keep the lock until it answers, so that no other is started.
	for {
		if reach.Listens(socket) {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			if reach.Listens(socket) {
				return nil
			}
			return endedAtOnce(said, log.Name(), before, err)
		case <-ctx.Done():
			return notBegun(cmd.Process.Pid, log.Name())
		}
	}
}

// notBegun is the error of a broker that was started and does not serve yet. It goes on, for others that wait for it, and ends
// where it does not come so far.
func notBegun(pid int, log string) error {
	return protocol.Errorf(protocol.CodeNoBroker, fmt.Sprintf("wait longer, or read %s and look what process %d waits for; it ends by itself unless it serves within a minute", log, pid),
		"the broker that was started here, process %d, has not begun to serve", pid).With("pid", pid)
}

// endedAtOnce is the error of a broker that was started and has ended: what it has said, and what
// it says is to be done. before is how long its log was.
func endedAtOnce(pipe *os.File, log string, before int64, ended error) error {
	what, remedy := fmt.Sprint(ended), "read "+log
	pipe.SetReadDeadline(time.Now().Add(time.Second)) // should another process have its end, too
	said, _ := io.ReadAll(io.LimitReader(pipe, mostSaid))
	if len(said) == 0 {
		if f, err := sys.OpenRegular(log); err == nil {
			defer f.Close()
			said, _ = io.ReadAll(io.NewSectionReader(f, before, mostSaid))
		}
	}
	for line := range strings.Lines(string(said)) {
		line = strings.TrimRight(line, "\n")
		if text, is := strings.CutPrefix(line, "baton: "); is {
			what = text
		} else if text, is := strings.CutPrefix(line, "  what to do: "); is {
			remedy = text
		}
	}
	return protocol.Errorf(protocol.CodeNoBroker, remedy, "the broker that was started here ended at once: %s", what)
}

// mostSaid is how much of what a broker has said, or of its log, is looked at for its reason to end.
const mostSaid = 64 << 10

func findBinary(o *Place) (string, error) {
	named := o.Binary
	if named == "" {
		named = os.Getenv(address.EnvBinary)
	}
	switch {
	case strings.Contains(named, "/"): // from here, while the broker runs in /
		return filepath.Abs(named)
	case named != "":
		return named, nil
	}
	self, err := os.Executable()
	if err == nil && filepath.Base(self) == "baton" {
		return self, nil
	}
	if b, err := exec.LookPath("baton"); err == nil {
		return b, nil
	}
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), "baton")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	return "", protocol.Errorf(protocol.CodeNoBroker, "put baton on PATH or set BATON_BINARY", "no broker runs and the program baton was not found")
}
