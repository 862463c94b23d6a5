package main

import (
	"context"
	"encoding/json"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/cmd/baton/internal/top"
	"github.com/baton-ipc/baton/protocol"
)

// fixed is a flag with a few possible values: parsing, help and completion have them from it.
type fixed interface{ Choices() []string }

// completeFlags gives each flag of a command and its subcommands what a shell offers for its value. A flag that
// has a function already keeps it.
func (a *app) completeFlags(c *cobra.Command) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, has := c.GetFlagCompletionFunc(f.Name); !has && f.NoOptDefVal == "" {
			c.RegisterFlagCompletionFunc(f.Name, a.completionOf(f))
		}
	})
	for _, sub := range c.Commands() {
		a.completeFlags(sub)
	}
}

// completionOf is what a shell offers for a flag's value: the possible ones where they are few, what the broker
// or the machine has, and files where the value is one. For numbers and times it is nothing.
func (a *app) completionOf(f *pflag.Flag) cobra.CompletionFunc {
	if v, is := f.Value.(fixed); is {
		return cobra.FixedCompletions(v.Choices(), cobra.ShellCompDirectiveNoFileComp)
	}
	switch f.Name {
	case "namespace":
		return a.completeNamespaces
	case "allow-group", "observe-group":
		return a.completeGroups
	}
	switch what, _ := pflag.UnquoteUsage(f); what {
	case "file", "unix:/path", "interpreter", "program":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	case "directory":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	}
	if f.Name == "http" { // a socket's path, or an address
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	}
	return cobra.NoFileCompletions
}

// addressOf is where a command line says that the broker is.
func addressOf(cmd *cobra.Command) *clientFlags {
	value := func(name string) string {
		if f := cmd.Flags().Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	return &clientFlags{address: value("address"), namespace: value("namespace")}
}

// briefly looks at the broker of a command line for no longer than a shell, or the end of a command, may wait.
func (a *app) briefly(cmd *cobra.Command, with func(context.Context, *looker) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), time.Second)
	defer cancel()
	l, err := a.look(ctx, addressOf(cmd))
	if err != nil {
		return err
	}
	defer l.close()
	return with(ctx, l)
}

// completeNamespaces completes the namespaces that the broker has anything in.
func (a *app) completeNamespaces(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	var out []string
	a.briefly(cmd, func(ctx context.Context, l *looker) error {
		for _, what := range []string{protocol.ListNames, protocol.ListTopics, protocol.ListFunctions, protocol.ListSessions} {
			var page protocol.ListReply
			if err := l.Broker(ctx, protocol.OpList, protocol.List{What: what, Namespace: protocol.AnyNamespace, Limit: mostCompleted}, &page); err != nil {
				return err
			}
			for _, raw := range page.Rows {
				var r struct{ Namespace string }
				if json.Unmarshal(raw, &r) == nil && r.Namespace != "" && strings.HasPrefix(r.Namespace, begun) && !slices.Contains(out, r.Namespace) {
					out = append(out, r.Namespace)
				}
			}
		}
		return nil
	})
	slices.Sort(out)
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeGroups completes the groups of this process, with their numbers: to list all of a machine may take long.
func (a *app) completeGroups(_ *cobra.Command, _ []string, begun string) (out []string, _ cobra.ShellCompDirective) {
	me, err := user.Current()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ids, _ := me.GroupIds()
	for _, id := range ids {
		if g, err := user.LookupGroupId(id); err == nil && strings.HasPrefix(g.Name, begun) {
			out = append(out, g.Name+"\t"+id)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeColumns completes the columns by which a view of top is sorted.
func completeColumns(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	view := top.Topics
	if len(args) > 0 {
		var known bool
		if view, known = top.Parse(args[0]); !known {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
	return view.SortedBy(), cobra.ShellCompDirectiveNoFileComp
}

// completeTensors completes the paths of the tensors of a name.
func (a *app) completeTensors(f *clientFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := a.connect(ctx, f, false)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		b, err := c.Get(ctx, args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer b.Release()
		var out []string
		for _, t := range b.Tensors() {
			if name := t.Name(); name != "" && strings.HasPrefix(name, begun) {
				out = append(out, name)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
