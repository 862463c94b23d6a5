package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/internal/typed"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newNATSCommand) }

// natsAnswer is what `nats --json` prints.
type natsAnswer struct {
	Mode      string `json:"mode"`
	URL       string `json:"url"`
	Connected bool   `json:"connected"` // the broker is
	Seed      string `json:"seed,omitempty"`
	Creds     string `json:"creds,omitempty"`
	User      string `json:"user,omitempty"`
	CA        string `json:"ca,omitempty"`
	Cert      string `json:"cert,omitempty"`
	Key       string `json:"key,omitempty"`
	Info      string `json:"info"`    // file that tells programs the same
	Subject   string `json:"subject"` // of all tuples of the namespace
	Bucket    string `json:"bucket"`  // of its names
	// Calls is the subject of calls of all functions of the namespace; "": the broker has none called over NATS.
	Calls string `json:"calls,omitempty"`
}

func newNATSCommand(a *app) *cobra.Command {
	var f clientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "nats",
		Short: "Tell how to connect a NATS client to the broker's NATS",
		Long: `Tell how to connect a NATS client to the NATS that the broker uses: address, keys,
subjects, and commands to try. Every message of a topic is seen there as JSON while
a client subscribes, and can be opened at a broker of its machine. Where the broker runs
with --nats-functions, the subject on which functions are called is told, too.`,
		GroupID: groupLook,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.nats(cmd.Context(), &f, asJSON)
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(newPermissionsCommand(a))
	return cmd
}

func (a *app) nats(ctx context.Context, f *clientFlags, asJSON bool) (err error) {
	s, err := a.askStatus(ctx, f)
	if err != nil {
		return err
	}
	n := s.Extra.NATS
	if n == nil || n.Dir == "" {
		why := "the broker runs without NATS"
		if n != nil && n.Error != "" {
			why += ": " + n.Error
		}
		return protocol.Errorf(protocol.CodeNotFound, "start it without --no-nats, or see its log", "%s", why)
	}
	info, err := natsbridge.ReadInfo(n.Dir)
	if err != nil {
		return err
	}
	answer := natsAnswer{Mode: info.Mode, URL: info.URL, Connected: n.Status != nil && n.Connected,
		Seed: info.Seed, Creds: info.Creds, User: info.User, CA: info.CA, Cert: info.Cert, Key: info.Key,
		Info:    filepath.Join(n.Dir, "nats.json"),
		Subject: protocol.TopicSubject(f.space(), ">"), Bucket: "baton-" + f.space()}
	if n.Status != nil && n.Functions != nil {
		answer.Calls = protocol.FunctionSubject(f.space(), ">")
	}
	if asJSON {
		return a.printJSON(answer)
	}
	return a.println(a.natsText(&answer))
}

// natsText is the answer as text.
func (a *app) natsText(n *natsAnswer) string {
	state := "connected"
	if !n.Connected {
		state = "not connected now: see " + a.reached.command("", "status")
	}
	rows := [][2]string{{"NATS", n.Mode + ", " + state}, {"address", n.URL}}
	for _, p := range [][2]string{{"nkey seed", n.Seed}, {"credentials", n.Creds}, {"user", n.User},
		{"authorities", n.CA}, {"certificate", n.Cert}, {"key", n.Key}} {
		if p[1] != "" {
			rows = append(rows, p)
		}
	}
	rows = append(rows, [2]string{"tuples", n.Subject}, [2]string{"names", "key-value bucket " + n.Bucket})
	if n.Calls != "" {
		rows = append(rows, [2]string{"functions", n.Calls})
	}
	rows = append(rows, [2]string{"for programs", n.Info})

	command := []string{"nats --server " + typed.Word(n.URL)}
	for _, p := range [][2]string{{"nkey", n.Seed}, {"creds", n.Creds}, {"user", n.User},
		{"tlsca", n.CA}, {"tlscert", n.Cert}, {"tlskey", n.Key}} {
		if p[1] != "" {
			command = append(command, "--"+p[0]+" "+typed.Word(p[1]))
		}
	}
	base := strings.Join(command, " ")
	parts := []string{a.pairs(rows), "With the nats command line tool:",
		"  " + base + " sub " + typed.Word(n.Subject),
		"  " + base + " kv ls " + n.Bucket,
		"  " + base + " micro info baton"}
	if n.Calls != "" {
		parts = append(parts, "  "+base+" request "+strings.TrimSuffix(n.Calls, ">")+"FUNCTION '[]'")
	}
	switch {
	case n.Seed != "":
		parts = append(parts, "In Go:",
			fmt.Sprintf("  opt, err := nats.NkeyOptionFromSeed(%q)", n.Seed),
			fmt.Sprintf("  nc, err := nats.Connect(%q, opt)", n.URL))
	case n.Creds != "":
		parts = append(parts, "In Go:", fmt.Sprintf("  nc, err := nats.Connect(%q, nats.UserCredentials(%q))", n.URL, n.Creds))
	}
	for i, part := range parts[1:] {
		parts[i+1] = a.text(part)
		if !strings.HasPrefix(part, " ") { // a heading
			parts[i+1] = "\n" + parts[i+1]
		}
	}
	return strings.Join(parts, "\n")
}
