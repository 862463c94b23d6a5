package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newRunCommand) }

// Exit statuses of `run` where there is no command's, as env(1) has them.
const (
	exitNotRunnable = 126
	exitNoCommand   = 127
)

func newRunCommand(a *app) *cobra.Command {
	var s *settings.Settings
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command with a broker of its own",
		Long: `Run a command with a broker for its life alone, at a private address that it finds
in BATON_ADDRESS. When the command has ended the broker ends for good. What
processes that the command has left behind have mapped stays, for them alone, until they
let it go.

As the first process of a container it also reaps orphaned processes. Signals go to
the command. The exit status is the command's, 128+N if signal N has
killed it, 126 or 127 if it could not be run or found; the broker's own failures
have those of baton --help.`,
		Example: `  baton run -- python train.py
  baton run --memory 4GiB --no-nats -- pytest`,
		GroupID: groupBroker,
		Args:    takes(1, anyNumber),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.ownSignals = true
			if err := s.Load(os.Getenv); err != nil {
				return err
			}
			if first() {
				return a.reapForRun()
			}
			return a.runCommand(s, args)
		},
	}
	s = settings.Define(cmd.Flags(), false)
	cmd.Flags().SortFlags = false
	cmd.Flags().SetInterspersed(false)
	groupFlags(cmd)
	return cmd
}

// first tells whether this is the first process of a container, whose children all orphans become.
func first() bool { return os.Getpid() == 1 }

// reapForRun runs this program again as a child, passing signals on, and collects the ends of all
// processes until that one ends: which of them were its own only that one knows.
func (a *app) reapForRun() error {
	signals := passedOn()
	defer signal.Stop(signals)
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return fmt.Errorf("run itself as a child of process 1: %w", err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go a.passOn(signals, child, ended)
	for {
		pid, status, err := sys.ReapAny()
		switch {
		case err != nil:
			return fmt.Errorf("wait for children: %w", err)
		case pid == child.Pid && status.Signaled():
			return exitStatus(exitSignal + int(status.Signal()))
		case pid == child.Pid:
			return exitStatus(status.ExitStatus())
		}
	}
}

func (a *app) runCommand(s *settings.Settings, args []string) error {
	began := time.Now()
	stderr := a.err // the command has it as it is
	a.queueLog()
	path, err := exec.LookPath(args[0])
	if err != nil {
		return a.notRunnable(err, args[0])
	}
	signals := passedOn()
	defer signal.Stop(signals)

	log, _ := newLog(a.log, s)
	d, err := startPrivate(func(socket, dir string) (*daemon, error) {
		return startDaemon(context.Background(), s, socket, dir, log, nil, nil, nil)
	})
	if err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)
	tellLog(d.broker, a.log)
	warn(settings.Mistyped(os.Environ()), log)
	d.logServing()
	ctx, stop := context.WithCancelCause(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.serve(ctx) }()

	cmd := exec.Command(path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, stderr
	cmd.Env = append(without(os.Environ(), address.EnvAddress), address.EnvAddress+"=unix:"+d.broker.Socket())
	status := a.wait(cmd, signals)
	stop(errDiscard)
	err = <-served
	d.logEnded(began, err)
	if err != nil {
		if status == nil {
			return err
		}
		a.report(err) // and the command's status is passed on
	}
	return status
}

// passedOn gives the signals that a command gets, as they come.
func passedOn() chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	return signals
}

// passOn gives signals to a process until it has ended.
func (a *app) passOn(signals <-chan os.Signal, to *os.Process, ended <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			// A terminal has sent these to the process already.
			if (s == syscall.SIGINT || s == syscall.SIGQUIT) && isTerminal(a.in) {
				continue
			}
			to.Signal(s)
		case <-ended:
			return
		}
	}
}

// wait runs the command, passing signals on, and returns its status; nil is 0.
func (a *app) wait(cmd *exec.Cmd, signals <-chan os.Signal) error {
	if err := cmd.Start(); err != nil {
		return a.notRunnable(err, cmd.Path)
	}
	ended := make(chan struct{})
	go a.passOn(signals, cmd.Process, ended)
	err := cmd.Wait()
	close(ended)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exitStatus(exitSignal + int(w.Signal()))
	}
	return exitStatus(exit.ExitCode())
}

// notRunnable tells why there is no command and gives env's status.
func (a *app) notRunnable(err error, name string) error {
	status := exitNotRunnable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		status = exitNoCommand
	}
	fmt.Fprintf(a.err, "baton: cannot run %s: %v\n", a.text(name), err)
	return exitStatus(status)
}

// without removes a variable from an environment.
func without(environ []string, name string) []string {
	var out []string
	for _, e := range environ {
		if !strings.HasPrefix(e, name+"=") {
			out = append(out, e)
		}
	}
	return out
}

// Names in the runtime directory of the user.
const (
	runPrefix = "run-"
	runLock   = "run.lock"
)

// startPrivate starts a broker in a directory made for it. What killed runs have
// left is removed first: their brokers hold no lock any more. A lock of this
// user keeps two runs from taking each other's new directory for such a rest.
func startPrivate(start func(socket, dir string) (*daemon, error)) (*daemon, error) {
	parent := address.RuntimeDir()
	if err := sys.CheckPrivateDir(parent); err != nil {
		return nil, protocol.Errorf(protocol.CodePermission, sys.DirRemedy(err, "XDG_RUNTIME_DIR"), "%w", err)
	}
	lock, err := sys.OpenLock(filepath.Join(parent, runLock))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := lock.Lock(true); err != nil {
		return nil, fmt.Errorf("lock %s: %w", parent, err)
	}
	sweep(parent)
	dir, err := os.MkdirTemp(parent, runPrefix)
	if err != nil {
		return nil, err
	}
	d, err := start(filepath.Join(dir, "broker.sock"), dir)
	if err != nil {
		os.RemoveAll(dir)
	}
	return d, err
}

// sweep removes the directories of runs that have ended without doing so.
func sweep(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), runPrefix) {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		lock, err := sys.OpenLock(filepath.Join(dir, reach.LockName))
		if err != nil {
			continue
		}
		if lock.Lock(false) == nil {
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}
