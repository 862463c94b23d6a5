package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newDeleteCommand) }

// deleteOptions are the flags of delete.
type deleteOptions struct {
	kind      string
	yes, json bool
}

func newDeleteCommand(a *app) *cobra.Command {
	var f clientFlags
	var o deleteOptions
	cmd := &cobra.Command{
		Use:   "delete NAME|TOPIC|QUEUE|FUNCTION...",
		Short: "Delete names, topics and queues, end functions",
		Long: `Delete names, topics and queues. A program that has got a bundle under a name, or
has received a message, keeps it; its memory goes back when the last of them releases it.

A topic or queue that is deleted is closed for all that have it open: calls on it fail
with Closed. What it keeps or has waiting is dropped, and its name is free for another
one at once. An item that a taker holds unacknowledged stays until it is released or its
taker ends, and then goes to no other one. baton ls topics shows the topic as deleted as
long as any session has it open.

Of a function, with its version, every registration ends: calls that run are answered,
others end with NoProvider, and it may be registered anew.

Where several of these are called the same, --kind says which. A name is deleted
without a question where there is no terminal: it can be set again. A topic, queue or
function wants --yes there.`,
		GroupID: groupCarry,
		Args:    takes(1, anyNumber),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.delete(cmd.Context(), &f, args, &o)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if o.kind != "" {
				return a.completeKind(&f, o.kind)(cmd, args, begun)
			}
			var all []string
			for _, what := range []string{protocol.ListNames, protocol.ListTopics, protocol.ListFunctions} {
				some, _ := a.completeRows(&f, what)(cmd, args, begun)
				all = append(all, some...)
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().Var(settings.NewChoice(&o.kind, deletable...), "kind", "what `kind` is deleted: "+settings.Or(deletable)+"; default whichever there is")
	yesFlag(cmd, &o.yes)
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

// deletable are the kinds of what can be deleted.
var deletable = []string{protocol.KindName, protocol.KindTopic, protocol.KindQueue, protocol.KindFunction}

// deleted is the result for one name, topic, queue or function.
type deleted struct {
	Name string `json:"name"`
	protocol.PurgeReply
	Providers *int `json:"providers,omitempty"` // of a function: how many there were
}

// delete goes on after a name that fails, so that the rest is done.
func (a *app) delete(ctx context.Context, f *clientFlags, names []string, o *deleteOptions) (err error) {
	check := protocol.CheckName
	if o.kind == "" || o.kind == protocol.KindFunction {
		check = protocol.CheckFunction
	}
	for _, name := range names {
		if err := check(name); err != nil {
			return &usage{cause: err}
		}
	}
	kinds, err := a.kindsOf(ctx, f, names, o.kind)
	if err != nil {
		return err
	}
	if err := a.confirmDelete(ctx, names, kinds, o); err != nil {
		return err
	}
	l, err := a.lookToChange(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	things := make([]deleted, len(names))
	for i, name := range names {
		things[i] = deleted{Name: name, PurgeReply: protocol.PurgeReply{Kind: kinds[i]}}
	}
	return each(a, things, o.json, func(d deleted) (deleted, string, error) {
		if d.Kind == "" {
			return d, "", protocol.Errorf(protocol.CodeNotFound, "baton ls lists what there is, functions with their versions; --namespace chooses another namespace",
				"there is no name, topic, queue or function %s in namespace %s", d.Name, l.namespace)
		}
		if d.Kind == protocol.KindName {
			l.bound(f)
			err := l.change(ctx, protocol.OpNameDelete, protocol.NameRef{Name: d.Name, Namespace: l.namespace, Seconds: f.forHosts()}, nil, "baton ls names")
			return d, "deleted " + d.Name, err
		}
		if d.Kind == protocol.KindFunction {
			var reply protocol.FunctionRemoved
			err := l.change(ctx, protocol.OpFunctionRemove, protocol.FunctionByName{Name: d.Name, Namespace: l.namespace}, &reply, "baton ls functions")
			d.Providers = &reply.Providers
			return d, fmt.Sprintf("ended function %s, which %s provided", d.Name, plural(int64(reply.Providers), "session")), err
		}
		err := l.change(ctx, protocol.OpTopicDelete, protocol.TopicByName{Name: d.Name, Kind: d.Kind, Namespace: l.namespace}, &d.PurgeReply, "baton ls topics")
		return d, dropped("deleted", d.Name, &d.PurgeReply), err
	})
}

// kindsOf finds out what each is; "": it is not there.
func (a *app) kindsOf(ctx context.Context, f *clientFlags, names []string, kind string) ([]string, error) {
	kinds := make([]string, len(names))
	l, err := a.lookToChange(ctx, f)
	if err != nil {
		return nil, err
	}
	defer l.close()
	for i, name := range names {
		if kinds[i] = kind; kind != "" {
			continue
		}
		found := []string{}
		isName, err := l.fetch(ctx, protocol.ListNames, name)
		if err != nil {
			return nil, nothingDone(err)
		}
		if len(isName) > 0 {
			found = append(found, protocol.KindName)
		}
		topics, err := rowsOf[broker.TopicRow](ctx, l, protocol.List{What: protocol.ListTopics, Pattern: name, Namespace: l.namespace})
		if err != nil {
			return nil, nothingDone(err)
		}
		for _, row := range topics {
			if row.Name == name { // else a former one, that was deleted
				found = append(found, row.Kind)
			}
		}
		functions, err := l.fetch(ctx, protocol.ListFunctions, name)
		if err != nil {
			return nil, nothingDone(err)
		}
		if len(functions) > 0 {
			found = append(found, protocol.KindFunction)
		}
		switch len(found) {
		case 0:
		case 1:
			kinds[i] = found[0]
		default:
			return nil, &usage{cause: fmt.Errorf("there are a %s called %s", strings.Join(found, " and a "), name), remedy: "say which with --kind"}
		}
	}
	return kinds, nil
}

// confirmDelete asks; of names alone only at a terminal.
func (a *app) confirmDelete(ctx context.Context, names, kinds []string, o *deleteOptions) error {
	var what []string
	onlyNames := true
	for i, name := range names {
		if kinds[i] != "" {
			what = append(what, kinds[i]+" "+name)
			onlyNames = onlyNames && kinds[i] == protocol.KindName
		}
	}
	if len(what) == 0 || onlyNames && !isTerminal(a.in) {
		return nil
	}
	question := "delete " + series(what)
	if !onlyNames {
		question += ", and drop the messages and waiting calls that are kept there"
	}
	return a.confirm(ctx, o.yes, question)
}
