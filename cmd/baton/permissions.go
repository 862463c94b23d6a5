package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/protocol"
)

// permissionsAnswer is what `nats permissions --json` prints.
type permissionsAnswer struct {
	Instance    string                     `json:"instance"` // "*": any
	Namespaces  []string                   `json:"namespaces"`
	Span        []string                   `json:"span"`
	Functions   bool                       `json:"functions"`
	Permissions natsbridge.UserPermissions `json:"permissions"`
}

// permissionFlags say what the broker is to do, where that is not what one does or would do here.
type permissionFlags struct {
	clientFlags
	names, span, instance string
	functions             bool
	asJSON                bool
}

func newPermissionsCommand(a *app) *cobra.Command {
	var f permissionFlags
	cmd := &cobra.Command{
		Use:   "permissions",
		Short: "Print the permissions of a broker's user for a NATS server",
		Long: `Print the permissions that a broker's user needs on a NATS server of your own, for
nats-server.conf, or as JSON. They are those of the broker that runs here: its instance, what
it spans, and whether it answers calls of functions. Where none runs, the settings say so, and
any instance is permitted. Flags say otherwise. A broker has another instance after baton stop:
print them anew then, or give --instance='*'.`,
		Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.permissions(cmd.Context(), &f, cmd.Flags()) },
	}
	f.add(cmd, waitForBroker)
	fl := cmd.Flags()
	fl.StringVar(&f.names, "names", "", "`namespaces` of names, topics and functions, with commas between; *: all; default that of this command, and those of --span")
	fl.StringVar(&f.span, "span", "", "`namespaces` that other hosts reach; *: all; default as the broker has it")
	fl.Lookup("span").NoOptDefVal = everything
	fl.BoolVar(&f.functions, "nats-functions", false, "with calls of functions; default as the broker has it")
	fl.StringVar(&f.instance, "instance", "", "`instance` of the broker, as baton status has it; *: any; default that of the broker that runs")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

// everything stands for all namespaces, and for any instance.
const everything = "*"

// instanceForm is what an instance of a broker looks like.
var instanceForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

func (a *app) permissions(ctx context.Context, f *permissionFlags, flags *pflag.FlagSet) error {
	n, err := a.brokersNeeds(ctx, &f.clientFlags)
	if err != nil {
		return err
	}
	if flags.Changed("span") {
		if n.Span, err = namespaceList(f.span); err != nil {
			return err
		}
	}
	if flags.Changed("nats-functions") {
		n.Functions = f.functions
	}
	if flags.Changed("names") {
		if n.Names, err = namespaceList(f.names); err != nil {
			return err
		}
		if len(n.Names) == 0 { // nats-server takes an empty list of rights for all
			return &usage{cause: protocol.Errorf(protocol.CodeInvalid, "give namespaces with commas between, or *; or leave --names out", "--names has no namespace")}
		}
	} else if n.Names = []string{f.space()}; slices.Contains(n.Span, everything) {
		n.Names = n.Span
	} else {
		n.Names = append(n.Names, n.Span...)
		slices.Sort(n.Names)
		n.Names = slices.Compact(n.Names)
	}
	if flags.Changed("instance") {
		n.Instance = f.instance
	}
	if n.Instance == everything {
		n.Instance = ""
	}
	if n.Instance != "" && !instanceForm.MatchString(n.Instance) {
		return &usage{cause: protocol.Errorf(protocol.CodeInvalid, "copy it from baton status", "%q is no instance", n.Instance)}
	}
	granted, why := n.Grant()
	if f.asJSON {
		return a.printJSON(permissionsAnswer{cmp.Or(n.Instance, everything), n.Names, append([]string{}, n.Span...), n.Functions, granted})
	}
	return a.println(permissionsText(n, &granted, why))
}

// brokersNeeds are those of the broker that runs here, or would by the settings.
func (a *app) brokersNeeds(ctx context.Context, f *clientFlags) (*natsbridge.Needs, error) {
	st, err := a.askStatus(ctx, f)
	if err == nil {
		n := &natsbridge.Needs{Instance: st.Instance}
		if st.Extra.Hosts != nil {
			n.Span = st.Extra.Hosts.Namespaces
		}
		n.Functions = st.Extra.NATS != nil && st.Extra.NATS.Status != nil && st.Extra.NATS.Functions != nil
		return n, nil
	}
	if !errors.Is(err, protocol.ErrNoBroker) {
		return nil, err
	}
	s := settings.Define(pflag.NewFlagSet("", pflag.ContinueOnError), true)
	if err := s.Load(os.Getenv); err != nil {
		return nil, err
	}
	return &natsbridge.Needs{Span: s.Span, Functions: s.NATSFunctions}, nil
}

// namespaceList reads what a flag has.
func namespaceList(text string) (list []string, err error) {
	for _, ns := range strings.Split(text, ",") {
		switch ns = strings.TrimSpace(ns); {
		case ns == "":
		case ns == everything:
			return []string{everything}, nil
		default:
			if err := protocol.CheckNamespace(ns); err != nil {
				return nil, &usage{cause: err}
			}
			list = append(list, ns)
		}
	}
	return list, nil
}

// permissionsText is a block for a user in nats-server.conf.
func permissionsText(n *natsbridge.Needs, u *natsbridge.UserPermissions, why map[string][]string) string {
	var b strings.Builder
	line := func(parts ...string) { b.WriteString(strings.Join(parts, "") + "\n") }
	line("# The user of a broker of Baton, instance ", cmp.Or(n.Instance, "any"), ". It publishes and subscribes to nothing else.")
	line("permissions: {")
	for _, part := range []struct {
		verb  string
		allow []string
	}{{"publish", u.Publish.Allow}, {"subscribe", u.Subscribe.Allow}} {
		line("  ", part.verb, ": {")
		line("    allow: [")
		for _, s := range part.allow {
			line("      # ", strings.Join(why[part.verb+" "+s], "; "))
			line(`      "`, s, `"`)
		}
		line("    ]")
		line("  }")
	}
	b.WriteString("}")
	return b.String()
}
