package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/cmd/baton/internal/fdstore"
	"github.com/baton-ipc/baton/cmd/baton/internal/logfile"
	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newServeCommand) }

func newServeCommand(a *app) *cobra.Command {
	var s *settings.Settings
	var check, asJSON bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker until it is asked to end",
		Long: `Run a broker in the foreground: it owns memory, lifetimes and names, and brings
NATS along. Without it, the first program starts one that ends a minute after its
last user.

Each setting may be a flag, an environment variable (BATON_MEMORY for --memory) or
a key of the configuration file (memory = "8GiB"), in this order.

Where a program has started a broker already, this one takes over from it while it
runs; with --replace from any other, too. Nothing is lost. If it cannot (another
layout, another --memory-dir, too few open files), the old one goes on.

TERM ends it in order and leaves its clients and what they have to the broker that
comes next. INT, as baton stop, ends it for good: the sessions are over. A second
signal half a second later ends it at once. Under systemd use Type=notify or
Type=notify-reload.

HUP reads the settings again, applies what can change while it runs (limits, users that
may connect, idle-exit, drain-timeout, all of HTTP, the log level), and says what
waits for a restart. Sessions of users that may not connect any more end, as by baton
evict. baton limit changes limits without a file, until the next HUP.`,
		GroupID: groupBroker,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.ownSignals = true
			if asJSON && !check {
				return badUsage("--json is for --check-config")
			}
			if s.StandIn {
				// The client that starts it reads there why it ends: the log's file system may be full.
				defer func() { a.err = both{os.Stdin, a.err} }()
				var err error
				if s, err = standIn(s); err != nil {
					return err
				}
			} else if err := s.Load(os.Getenv); err != nil {
				return err
			}
			if check {
				return a.printSettings(s, asJSON)
			}
			return a.serve(cmd.Context(), s)
		},
	}
	s = settings.Define(cmd.Flags(), true)
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&check, "check-config", false, "print the settings in force and end; status 2 if they are wrong")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the settings and the warnings as JSON")
	cmd.Flags().BoolVar(&s.Replace, "replace", false, "take over from the broker that runs at this address, with all that it has")
	cmd.Flags().BoolVar(&s.StandIn, "stand-in", false, "a client starts it: with the settings of the broker that was there last")
	cmd.Flags().MarkHidden("stand-in")
	groupFlags(cmd)
	return cmd
}

// both writes to two writers, whatever becomes of one.
type both [2]io.Writer

func (b both) Write(p []byte) (int, error) {
	b[0].Write(p)
	return b[1].Write(p)
}

// standIn loads the settings of a broker that a client starts: those that its
// predecessor recorded, which the environment of that client does not change. What a
// service manager said to the client is not for the broker.
func standIn(s *settings.Settings) (*settings.Settings, error) {
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "FDSTORE"} {
		os.Unsetenv(name)
	}
	socket, _, err := address.Resolve(s.Address)
	if err != nil {
		return nil, err
	}
	dir := s.RuntimeDir
	if dir == "" {
		dir = filepath.Dir(socket)
	}
	if next, err := replay(s, dir); next != nil || err != nil {
		return next, err
	}
	return s, s.Load(os.Getenv)
}

// replay makes the settings that the last broker of a runtime directory has recorded; nil where
// it has recorded none. An error says what to do where they cannot start a broker.
func replay(s *settings.Settings, dir string) (*settings.Settings, error) {
	st, err := statefile.Read(dir)
	if err != nil || st.Settings == nil {
		return nil, nil
	}
	next, err := s.Replay(st.Settings)
	if err != nil {
		return nil, &usage{cause: fmt.Errorf("the settings that the last broker has recorded in %s cannot start another one: %w", filepath.Join(dir, statefile.Name), err),
			remedy: "put right what they name, start a broker with settings that are right (baton serve), or have these forgotten (baton stop)"}
	}
	return next, nil
}

func (a *app) serve(ctx context.Context, s *settings.Settings) error {
	began := time.Now()
	to, early := a.err, newEarly()
	if s.StandIn { // its log lies in the runtime directory, which is memory
		if file, err := logfile.New(os.Stderr, mostLog); err == nil {
			to, early.log = file, file
		}
	}
	// A broker goes on without the reader of its log. Caught and not ignored, which what it starts would inherit: the write
	// fails, and the line is lost.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	log, level := newLog(to, s)
	defer exitAtSecondSignal(ctx, log)()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	starting, giveUp := context.WithCancel(context.Background())
	defer giveUp()
	defer context.AfterFunc(ctx, func() {
		if context.Cause(ctx) != errInterrupted { // else it ends for good, once it has taken over what that is
			giveUp()
		}
	})()
	var keeper broker.Keeper // not a nil *Store in it
	store, err := fdstore.Open(os.Getenv)
	if err != nil {
		log.Warn("the service manager's descriptor store is not used", "error", err)
	} else if store != nil {
		defer store.Close()
		keeper = store
	}
	endpoint, unbound := startHTTP(s, early, log)
	logHTTP(endpoint, log)
	var d *daemon
	defer func() {
		if d != nil { // HUP may have changed it
			endpoint = d.endpoint
		}
		closeHTTP(endpoint)
	}()
	if unbound != nil && !formerHas(s) {
		return unbound // before anything is taken over
	}
	d, err = startDaemon(starting, s, s.Socket, s.Dir, log, keeper, fdstore.Inherited(os.Getenv), early)
	if err != nil && starting.Err() != nil {
		log.Info("ended before it served", "error", protocol.Plain(err))
		return nil
	}
	if err != nil {
		return err
	}
	early.daemon.Store(d)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.endpoint, d.early = endpoint, early
	if unbound != nil {
		d.startHTTPLate(starting, s, early, unbound)
	}
	status := d.broker.Status()
	warn(s, log)
	log.Info("serving", "socket", d.broker.Socket(), "pid", os.Getpid(), "version", version,
		"memory", termtext.Size(status.Memory.Limit), "instance", d.broker.ID())

	ended := make(chan struct{})
	attended := make(chan struct{})
	go func() {
		defer close(attended)
		d.attend(ctx, s, level, hup, ended)
	}()
	notify(log, sd.SdNotifyReady)
	err = d.serve(ctx)
	close(ended)
	<-attended
	log.Info("ended", "after", time.Since(began).Round(time.Millisecond), "error", errorText(err))
	return err
}

// warn says what is hardly meant.
func warn(s *settings.Settings, log *slog.Logger) {
	for _, text := range s.Warnings(os.Getenv, os.Environ()) {
		log.Warn(text)
	}
}

func errorText(err error) string {
	if err == nil {
		return "none"
	}
	return protocol.Plain(err)
}

// attend does what a service manager expects while the broker serves: reload at
// HUP, signs of life for the watchdog, and word of the coming end.
func (d *daemon) attend(ctx context.Context, s *settings.Settings, level *slog.LevelVar, hup <-chan os.Signal, ended <-chan struct{}) {
	var watchdog <-chan time.Time
	if every, err := sd.SdWatchdogEnabled(false); err != nil {
		d.log.Warn("the watchdog's interval cannot be read", "error", err)
	} else if every > 0 {
		tick := time.NewTicker(every / 2)
		defer tick.Stop()
		watchdog = tick.C
	}
	done := ctx.Done()
	for {
		select {
		case <-hup:
			notify(d.log, sd.SdNotifyReloading+fmt.Sprintf("\nMONOTONIC_USEC=%d", sys.Monotonic()/1000))
			s = d.reload(s, level)
			notify(d.log, sd.SdNotifyReady)
		case <-watchdog:
			if err := observe.Healthy(ctx, d.broker.Alive); err != nil && ctx.Err() == nil {
				d.log.Error("no sign of life for the watchdog", "error", err)
				continue
			}
			notify(d.log, sd.SdNotifyWatchdog)
		case <-done:
			d.log.Info("ending: a signal asks for it")
			notify(d.log, sd.SdNotifyStopping)
			done = nil
		case <-ended:
			return
		}
	}
}

// mostLog is how long the log of a broker that a program started may be; one more is kept.
const mostLog = 4 << 20

func notify(log *slog.Logger, state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		log.Warn("cannot notify the service manager", "error", err)
	}
}

// oneSignal is how close together signals are one request: timeout(1), make and a terminal
// send theirs to the broker and once more to its group.
const oneSignal = 500 * time.Millisecond

// exitAtSecondSignal ends the process without waiting for anything when TERM or
// INT comes again. The returned function gives the signals back.
func exitAtSecondSignal(ctx context.Context, log *slog.Logger) func() {
	again := make(chan os.Signal, 2)
	signal.Notify(again, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	var first time.Time // when the broker was asked to end
	if ctx.Err() != nil {
		first = time.Now()
	}
	go func() {
		for {
			select {
			case s := <-again:
				if first.IsZero() {
					first = time.Now() // and ctx ends
				}
				if time.Since(first) < oneSignal {
					continue
				}
				log.Warn("ending at once: a second signal", "signal", s.String())
				number, _ := s.(syscall.Signal)
				os.Exit(exitSignal + int(number))
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(again)
		close(done)
	}
}

// checked is what --check-config --json prints.
type checked struct {
	Settings []settings.Line `json:"settings"`
	Warnings []string        `json:"warnings"`
}

// printSettings shows what serve would use.
func (a *app) printSettings(s *settings.Settings, asJSON bool) error {
	if s.Memory == 0 { // as the broker would choose now
		var err error
		if s.Memory, err = broker.DefaultMemory(nil); err != nil {
			return err
		}
	}
	lines, warnings := s.Lines(), s.Warnings(os.Getenv, os.Environ())
	if asJSON {
		return a.printJSON(checked{lines, append([]string{}, warnings...)})
	}
	var rows [][]string
	for _, l := range lines {
		rows = append(rows, []string{l.Key, l.Value, l.Source})
	}
	if err := a.println(a.table(&layout{header: []string{"setting", "value", "from"}}, rows)); err != nil {
		return err
	}
	for _, text := range warnings {
		fmt.Fprintf(a.err, "baton: warning: %s\n", a.lines(text))
	}
	return nil
}
