package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/doctor"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newDoctorCommand) }

func newDoctorCommand(a *app) *cobra.Command {
	f := clientFlags{answers: leastToAnswer}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what could keep Baton from working here",
		Long: `Look at this machine, the settings and the broker, and say of each thing whether it
is well (ok), could be better (warn) or does not work (fail), and what to do.
Each check ends within some 3 s and is printed as it ends. No broker is started, and nothing
is changed, but that a broker with a NATS server of its own begins to write names there with
the first connection to it, which may be this one. Status 1 if anything fails.`,
		GroupID: groupLook,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.doctor(cmd.Context(), &f, asJSON)
		},
	}
	f.add(cmd, "how long to wait for a broker; its answer may take 3s")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) doctor(ctx context.Context, f *clientFlags, asJSON bool) error {
	place, err := a.place(f)
	if err != nil {
		return err
	}
	checks := append(doctor.ThisMachine().Checks(), place.Checks()...)
	var each func(doctor.Finding)
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Name))
	}
	if !asJSON {
		each = func(f doctor.Finding) {
			if err == nil {
				f.Remedy = a.reached.spell(f.Remedy)
				err = a.printFinding(width, f)
			}
		}
	}
	findings := doctor.Run(ctx, checks, each)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case asJSON:
		for i := range findings {
			findings[i].Remedy = a.reached.spell(findings[i].Remedy)
		}
		err = a.printJSON(findings)
	case err == nil:
		err = a.printCounts(findings)
	}
	if err == nil && doctor.Worst(findings) == doctor.Fail {
		return exitStatus(exitError)
	}
	return err
}

// place finds out where a broker runs or would run, as the settings say.
func (a *app) place(f *clientFlags) (doctor.Place, error) {
	socket, named, err := address.Resolve(f.address)
	if err != nil && f.address != "" {
		return doctor.Place{}, &usage{cause: err}
	}
	if err != nil { // what the environment says is what is looked at
		return doctor.Place{SettingsErr: err}, nil
	}
	patience := time.Duration(0)
	if f.timeout > 0 {
		patience = f.timeout + leastToAnswer
	}
	p := doctor.Place{Socket: socket, Named: named, Dir: filepath.Dir(socket), Version: version, Patience: patience,
		Ask: a.askOnce(f), Hosts: func(ctx context.Context) ([]broker.HostRow, error) { return a.hostRows(ctx, f) }}
	p.RecordedErr = soon(func() error { return recordedErr(socket) })
	p.Mistyped = settings.Mistyped(os.Environ())
	s := settings.Define(pflag.NewFlagSet("", pflag.ContinueOnError), true)
	if p.SettingsErr = soon(func() error { return s.Load(os.Getenv) }); p.SettingsErr != nil {
		return p, nil // s may still be read
	}
	if s.RuntimeDir != "" {
		p.Dir = s.RuntimeDir
	}
	at := s.Socket // which the file may name, too
	if f.address != "" {
		at = socket
	}
	if s.Apart(at) && !s.Shared { // the directory of one that is shared is made by the broker
		p.SocketDir, p.SocketDirErr = filepath.Dir(at), s.CheckSocketDir(at)
	}
	p.MemoryDir = s.MemoryDir
	if s.NATS != "" {
		p.Join = &natsbridge.Info{Mode: natsbridge.ModeJoined, URL: s.NATS, Seed: s.NATSNkey, Creds: s.NATSCreds,
			CA: s.NATSCA, Cert: s.NATSCert, Key: s.NATSKey}
		if s.NATSUser != "" {
			p.JoinOptions = append(p.JoinOptions, nats.UserInfo(s.NATSUser, s.NATSPassword))
		}
	}
	return p, nil
}

// soon gives what a look at the files of settings has found, or up: they may lie on a file system that does not answer.
func soon(look func() error) error {
	found := make(chan error, 1)
	go func() { found <- look() }()
	select {
	case err := <-found:
		return err
	case <-time.After(leastToAnswer):
		return protocol.Errorf(protocol.CodeTimeout, "look at the file systems that the files of the settings lie on", "the files of the settings cannot be read within %s", leastToAnswer)
	}
}

// recordedErr is why the settings that the last broker has recorded cannot start another one; nil
// where they can, or none are recorded.
func recordedErr(socket string) error {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s := settings.Define(flags, true)
	s.StandIn = true
	if err := flags.Set("address", socket); err != nil {
		return err
	}
	_, err := replay(s, filepath.Dir(socket))
	var u *usage
	if errors.As(err, &u) {
		return protocol.Errorf(protocol.CodeInvalid, u.remedy, "%w", u.cause)
	}
	return err
}

// askOnce asks the broker once for all checks: one that is suspended is waited for once.
func (a *app) askOnce(f *clientFlags) func(context.Context) (doctor.Answer, error) {
	var answer doctor.Answer
	var err error
	var once sync.Once
	return func(ctx context.Context) (doctor.Answer, error) {
		once.Do(func() { answer, err = a.ask(context.WithoutCancel(ctx), f) }) // f bounds it
		return answer, err
	}
}

// ask asks the broker for its status.
func (a *app) ask(ctx context.Context, f *clientFlags) (answer doctor.Answer, err error) {
	s, err := a.askStatus(ctx, f)
	if err != nil {
		return answer, err
	}
	answer = doctor.Answer{PID: s.PID, Version: s.Version, MemoryDir: s.Memory.Dir, Files: s.Files, Log: s.Extra.Log}
	if s.Serves() {
		answer.Memory = s.Memory
	}
	if s.Extra.NATS != nil {
		answer.NATSDir, answer.NATS, answer.NATSError = s.Extra.NATS.Dir, s.Extra.NATS.Status, s.Extra.NATS.Error
	}
	answer.Hosts, answer.Names = s.Extra.Hosts, s.Extra.Names
	return answer, nil
}

// hostRows asks the broker for the hosts that it knows.
func (a *app) hostRows(ctx context.Context, f *clientFlags) ([]broker.HostRow, error) {
	l, err := a.look(ctx, f)
	if err != nil {
		return nil, err
	}
	defer l.close()
	raw, err := l.fetch(ctx, protocol.ListHosts, "")
	rows := make([]broker.HostRow, len(raw))
	for i := range raw {
		if err == nil {
			err = json.Unmarshal(raw[i], &rows[i])
		}
	}
	return rows, err
}

func (a *app) printFinding(width int, f doctor.Finding) error {
	line := fmt.Sprintf("%-4s  %-*s  %s", f.State, width, f.Check, a.text(f.Text))
	if f.Remedy != "" {
		line += fmt.Sprintf("\n%*s%s", 6+width+2, "", a.text("→ "+f.Remedy))
	}
	return a.println(line)
}

func (a *app) printCounts(findings []doctor.Finding) error {
	count := map[doctor.State]int{}
	for _, f := range findings {
		count[f.State]++
	}
	return a.println(fmt.Sprintf("\n%d ok, %d warn, %d fail", count[doctor.OK], count[doctor.Warn], count[doctor.Fail]))
}
