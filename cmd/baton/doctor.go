package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/doctor"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newDoctorCommand) }

func newDoctorCommand(a *app) *cobra.Command {
	var f clientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what could keep Baton from working here",
		Long: `Look at this machine, the settings and the broker, and say of each thing whether it
is well (ok), could be better (warn) or does not work (fail), and what to do.
Nothing is changed and no broker is started. Status 1 if anything fails.`,
		GroupID: groupLook,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.doctor(cmd.Context(), &f, asJSON)
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) doctor(ctx context.Context, f *clientFlags, asJSON bool) error {
	place, err := a.place(f)
	if err != nil {
		return err
	}
	checks := append(doctor.ThisMachine().Checks(), place.Checks()...)
	findings := doctor.Run(ctx, checks)
	if asJSON {
		err = a.printJSON(findings)
	} else {
		err = a.printFindings(findings)
	}
	if err == nil && doctor.Worst(findings) == doctor.Fail {
		return exitStatus(exitError)
	}
	return err
}

// place finds out where a broker runs or would run, as the settings say.
func (a *app) place(f *clientFlags) (doctor.Place, error) {
	socket, _, err := address.Resolve(f.address)
	if err != nil && f.address != "" {
		return doctor.Place{}, &usage{cause: err}
	}
	if err != nil { // what the environment says is what is looked at
		return doctor.Place{SettingsErr: err}, nil
	}
	p := doctor.Place{Socket: socket, Dir: filepath.Dir(socket), Version: version,
		Ask: func(ctx context.Context) (doctor.Answer, error) { return a.ask(ctx, f) }}
	p.RecordedErr = recordedErr(socket)
	s := settings.Define(pflag.NewFlagSet("", pflag.ContinueOnError), true)
	if p.SettingsErr = s.Load(os.Getenv); p.SettingsErr != nil {
		return p, nil
	}
	if s.RuntimeDir != "" {
		p.Dir = s.RuntimeDir
	}
	if s.NATS != "" {
		p.Join = &natsbridge.Info{Mode: natsbridge.ModeJoined, URL: s.NATS, Seed: s.NATSNkey, Creds: s.NATSCreds,
			CA: s.NATSCA, Cert: s.NATSCert, Key: s.NATSKey}
		if s.NATSUser != "" {
			p.JoinOptions = append(p.JoinOptions, nats.UserInfo(s.NATSUser, s.NATSPassword))
		}
	}
	return p, nil
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

// ask asks the broker for its status.
func (a *app) ask(ctx context.Context, f *clientFlags) (answer doctor.Answer, err error) {
	s, err := a.askStatus(ctx, f)
	if err != nil {
		return answer, err
	}
	answer = doctor.Answer{PID: s.PID, Version: s.Version}
	if s.Extra.NATS != nil {
		answer.NATSDir, answer.NATS = s.Extra.NATS.Dir, s.Extra.NATS.Status
	}
	return answer, nil
}

func (a *app) printFindings(findings []doctor.Finding) error {
	count := map[doctor.State]int{}
	width := 0
	for _, f := range findings {
		count[f.State]++
		width = max(width, len(f.Check))
	}
	for _, f := range findings {
		line := fmt.Sprintf("%-4s  %-*s  %s", f.State, width, f.Check, a.text(f.Text))
		if f.Remedy != "" {
			line += fmt.Sprintf("\n%*s%s", 6+width+2, "", a.text("→ "+f.Remedy))
		}
		if err := a.println(line); err != nil {
			return err
		}
	}
	return a.println(fmt.Sprintf("\n%d ok, %d warn, %d fail", count[doctor.OK], count[doctor.Warn], count[doctor.Fail]))
}
