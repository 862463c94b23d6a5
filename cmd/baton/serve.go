package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/cmd/baton/internal/fdstore"
	"github.com/baton-ipc/baton/cmd/baton/internal/logfile"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newServeCommand) }

func newServeCommand(a *app) *cobra.Command {
	var s *settings.Settings
	var check, asJSON bool
	var within time.Duration
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
may connect, idle-exit, drain-timeout, span-timeout, all of HTTP, the log level), and
says what waits for a restart. Sessions of users that may not connect any more end, as by baton
evict. baton limit changes limits without a file, until the next HUP.`,
		GroupID: groupBroker,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON && !check {
				return badUsage("--json is for --check-config")
			}
			a.queueLog()
			e, load := newEarly(a.log), func() (*settings.Settings, error) { return s, s.Load(os.Getenv) }
			if s.StandIn {
				// The client that starts it reads there why it ends: the log's file system may be full.
				defer func() { a.err = both{os.Stdin, a.err} }()
				if err := a.standIn(s, e, within); err != nil {
					return err
				}
				load = func() (*settings.Settings, error) { return standInSettings(s) }
			}
			s, err := loaded(cmd.Context(), load)
			if err != nil {
				return err
			}
			a.ownSignals = true
			if check {
				return a.printSettings(s, asJSON)
			}
			return a.serve(cmd.Context(), s, e)
		},
	}
	s = settings.Define(cmd.Flags(), true)
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&check, "check-config", false, "print the settings in force and end; status 2 if they are wrong")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the settings and the warnings as JSON")
	cmd.Flags().BoolVar(&s.Replace, "replace", false, "take over from the broker that runs at this address, with all that it has")
	cmd.Flags().BoolVar(&s.StandIn, "stand-in", false, "a client starts it: with the settings of the broker that was there last")
	cmd.Flags().MarkHidden("stand-in")
	cmd.Flags().DurationVar(&within, "begin-within", beginWithin, "how long one that a client starts may take until it serves")
	cmd.Flags().MarkHidden("begin-within")
	groupFlags(cmd)
	return cmd
}

func (a *app) serve(ctx context.Context, s *settings.Settings, early *early) error {
	began := time.Now()
	if s.StandIn { // its log lies in the runtime directory, which is memory
		if file, err := logfile.New(os.Stderr, mostLog); err == nil {
			early.log = file
			a.log.Lead(file, file.Cut())
		}
	}
	log, level := newLog(a.log, s)
	defer a.exitAtSecondSignal(ctx, log)()
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
	var descriptors broker.DescriptorStore // not a nil *Store in it
	store, err := fdstore.Open(os.Getenv)
	if err != nil {
		log.Warn("the service manager's descriptor store is not used", "error", err)
	} else if store != nil {
		defer store.Close()
		descriptors = store
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
	d, err = startDaemon(starting, s, s.Socket, s.Dir, log, descriptors, fdstore.Inherited(os.Getenv), early)
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
	warn(warnings(s), log)
	d.logServing()

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
	d.logEnded(began, err)
	return err
}

// warnings are what is hardly meant.
func warnings(s *settings.Settings) []string { return s.Warnings(os.Getenv, os.Environ()) }

// warn says them.
func warn(texts []string, log *slog.Logger) {
	for _, text := range texts {
		log.Warn(text)
	}
}

// mostLog is how long the log of a broker that a program started may be; one more is kept.
const mostLog = 4 << 20

// oneSignal is how close together signals are one request: timeout(1), make and a terminal
// send theirs to the broker and once more to its group.
const oneSignal = 500 * time.Millisecond

// exitAtSecondSignal ends the process without waiting for anything but the log, and for that not
// long, when TERM or INT comes again. The returned function gives the signals back.
func (a *app) exitAtSecondSignal(ctx context.Context, log *slog.Logger) func() {
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
				a.flushLog()
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
	lines, warnings := s.Lines(), warnings(s)
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
