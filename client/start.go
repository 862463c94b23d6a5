package client

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// dial connects to the broker's socket, starting the user's broker when there
// is none and that is allowed, and waiting for one otherwise, until ctx ends.
func dial(ctx context.Context, o *options) (*net.UnixConn, error) {
	socket, given, err := address.Resolve(o.address)
	if err != nil {
		return nil, err
	}
	conn, err := dialOnce(ctx, socket)
	if err == nil || !absent(err) {
		return conn, err
	}
	if !given && o.start {
		if err := start(ctx, o, socket); err != nil {
			return nil, err
		}
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, again := dialOnce(ctx, socket)
		if again != nil && ctx.Err() != nil {
			return nil, noBroker(socket, err) // what was found while there was time
		}
		if err = again; err == nil || !absent(err) {
			return conn, err
		}
		if !given && !o.start {
			return nil, noBroker(socket, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, noBroker(socket, err)
		}
	}
}

func noBroker(socket string, err error) error {
	return protocol.Errorf(protocol.CodeNoBroker, "start one with `baton serve`, or set BATON_ADDRESS", "no broker answers at %s: %w", socket, err)
}

func dialOnce(ctx context.Context, socket string) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		if absent(err) {
			return nil, err
		}
		if errors.Is(err, os.ErrPermission) {
			return nil, protocol.Errorf(protocol.CodePermission, "ask its owner for --allow-uid", "the broker's socket %s may not be used: %w", socket, err)
		}
		if sys.IsNoDescriptors(err) {
			return nil, protocol.Errorf(protocol.CodeTooMany, "raise the limit of open files (ulimit -n), or close some", "connect to the broker: %w", err)
		}
		return nil, noBroker(socket, err)
	}
	return c.(*net.UnixConn), nil
}

// absent tells that nobody listens (yet).
func absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// start runs `baton serve` for this user. A lock makes one of many processes
// that come at once do it, and a second look finds what another has started.
func start(ctx context.Context, o *options, socket string) error {
	dir := filepath.Dir(socket)
	if err := sys.CheckPrivateDir(dir); err != nil {
		return protocol.Errorf(protocol.CodePermission, "remove it or set XDG_RUNTIME_DIR", "%w", err)
	}
	path := filepath.Join(dir, "start.lock")
	lock, err := sys.OpenLock(path)
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
			return noBroker(socket, ctx.Err())
		}
	}
	if conn, err := dialOnce(ctx, socket); err == nil {
		return conn.Close()
	}
	binary, err := findBinary(o)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, "broker.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return protocol.Errorf(protocol.CodeNoBroker, "check the runtime directory", "open the broker's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(binary, "serve", "--address", socket, "--idle-exit", "60s", "--log-level", "warn")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log // os/exec passes no other descriptors on
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return protocol.Errorf(protocol.CodeNoBroker, "check the binary", "start %s serve: %w", binary, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // reaps it if it ends before us
	// Keep the lock until it answers, so that nobody starts another.
	for {
		if conn, err := dialOnce(ctx, socket); err == nil {
			return conn.Close()
		}
		select {
		case <-tick.C:
		case err := <-ended:
			if conn, derr := dialOnce(ctx, socket); derr == nil {
				return conn.Close()
			}
			return protocol.Errorf(protocol.CodeNoBroker, "read "+log.Name(), "the broker ended at once: %v", err)
		case <-ctx.Done():
			return noBroker(socket, ctx.Err())
		}
	}
}

func findBinary(o *options) (string, error) {
	named := o.binary
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
