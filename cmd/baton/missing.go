package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/cmd/baton/internal/spelling"
	"github.com/baton-ipc/baton/protocol"
)

// remedied is an error with another remedy than its own.
type remedied struct {
	error
	remedy string // as it is printed
}

func (r *remedied) Unwrap() error { return r.error }

// asked is what a command line was to find: words that stand for things of some listings.
type asked struct {
	kinds []string
	words []string
	first string // what else may be done, before what is said of the listings
}

// askedBy is what the arguments of a command are, of those that may find nothing.
func askedBy(cmd *cobra.Command, args []string) asked {
	last := args[max(len(args)-1, 0):]
	switch cmd.Name() {
	case "compact":
		return asked{kinds: []string{protocol.ListNames}, words: args}
	case "purge":
		return asked{kinds: []string{protocol.ListTopics}, words: args}
	case "revoke":
		return asked{kinds: []string{protocol.ListLeases}, words: args}
	case "evict":
		return asked{kinds: []string{protocol.ListSessions}, words: args}
	case "delete":
		if kind := cmd.Flags().Lookup("kind").Value.String(); kind != "" {
			return asked{kinds: []string{listed(kind)}, words: args}
		}
		return asked{kinds: []string{protocol.ListNames, protocol.ListTopics, protocol.ListFunctions}, words: args}
	case "show", "why":
		if len(args) == 2 {
			return asked{kinds: []string{listed(args[0])}, words: last}
		}
		if isNumber(last[0]) {
			return asked{kinds: kinds(), words: last}
		}
		return asked{kinds: named, words: last}
	case "get":
		return asked{kinds: []string{protocol.ListNames}, words: args[:1], first: "set it first, or wait longer (--timeout); "}
	case "tail":
		return asked{kinds: []string{protocol.ListTopics}, words: args[:1], first: "make it first, or wait for it (--timeout); "}
	case "call":
		return asked{kinds: []string{protocol.ListFunctions}, words: args[:1], first: "register it first, or wait for it (--timeout); "}
	}
	return asked{}
}

// named are the listings of what goes by a name: of a namespace, and at last the sessions of all.
var named = []string{protocol.ListNames, protocol.ListTopics, protocol.ListFunctions, protocol.ListSessions}

// mostAlike is how many similar names an error has for each that was not found.
const mostAlike = 3

// missing adds to the error of a command that has not found what it was given which command lists what there is,
// and what is called alike, of any kind and in any namespace. An error about a thing that is there stays as it is.
func (a *app) missing(cmd *cobra.Command, args []string, err error) error {
	if !errors.Is(err, protocol.ErrNotFound) && !errors.Is(err, protocol.ErrNoProvider) || len(args) == 0 {
		return err
	}
	of := askedBy(cmd, args)
	if len(of.words) == 0 {
		return err
	}
	remedy := of.first + "baton ls " + of.kinds[0]
	if len(of.kinds) > 1 {
		remedy += " (or " + strings.Join(of.kinds[1:], ", ") + ")"
	}
	remedy = a.reached.spell(remedy + " lists what there is")
	var near []string
	there, text := false, err.Error()
	looked := a.briefly(cmd, func(ctx context.Context, l *looker) error {
		if slices.Contains(named[:len(named)-1], of.kinds[0]) { // all else is the whole broker's
			remedy += " in namespace " + l.namespace + " (--namespace chooses another)"
		}
		things, err := l.things(ctx)
		for _, word := range of.words {
			if len(of.words) > 1 && !strings.Contains(text, word) { // it was found
				continue
			}
			alike, is := similar(word, of.kinds, l.namespace, things)
			there = there || is
			if len(of.words) > 1 && len(alike) > 0 {
				near = append(near, word+" is like "+series(alike))
			} else if len(alike) > 0 && !strings.Contains(text, "; similar ones: ") { // the broker names those of functions
				near = append(near, "similar: "+strings.Join(alike, ", "))
			}
		}
		return err
	})
	if looked == nil && there && len(of.words) == 1 {
		return err
	}
	return &remedied{err, strings.Join(append([]string{remedy}, near...), "; ")}
}

// thing is what goes by a name.
type thing struct{ what, kind, name, space string }

// things lists the first of all that goes by a name.
func (l *looker) things(ctx context.Context) (all []thing, err error) {
	for _, what := range named {
		var page protocol.ListReply
		if err := l.Broker(ctx, protocol.OpList, protocol.List{What: what, Namespace: protocol.AnyNamespace, Limit: mostCompleted}, &page); err != nil {
			return all, err
		}
		for _, raw := range page.Rows {
			var r struct{ Namespace string }
			if json.Unmarshal(raw, &r) != nil {
				continue
			}
			t := thing{what, strings.TrimSuffix(what, "s"), calledIn(what, raw), r.Namespace}
			if what == protocol.ListTopics {
				var topic broker.TopicRow
				json.Unmarshal(raw, &topic)
				t.kind = topic.Kind
			}
			if what == protocol.ListSessions {
				t.space = "" // sessions of all namespaces are listed together
			}
			if t.name != "" {
				all = append(all, t)
			}
		}
	}
	return all, nil
}

// similar finds what is called like a word, the likest first: things of the kinds that were asked for by their
// names alone, others with their kind and namespace. is tells that one of those kinds goes by the word itself.
func similar(word string, kinds []string, space string, things []thing) (alike []string, is bool) {
	type found struct {
		text string
		far  int
	}
	var all []found
	for _, t := range things {
		asked := slices.Contains(kinds, t.what)
		here := t.space == "" || t.space == space
		bare := t.name
		if t.what == protocol.ListFunctions {
			bare, _ = protocol.SplitFunction(t.name)
		}
		if asked && here && (t.name == word || bare == word) {
			is = true
			continue
		}
		if isNumber(word) { // which is like no name
			continue
		}
		far := min(spelling.Distance(word, t.name), spelling.Distance(word, bare))
		if far > max(min(2, len(word)/2), len(word)/4) && (len(word) < 3 || !strings.Contains(t.name, word)) {
			continue
		}
		text := t.name
		if !asked {
			text = t.kind + " " + text
		}
		if !here {
			text += " in namespace " + t.space
		}
		if !slices.ContainsFunc(all, func(f found) bool { return f.text == text }) {
			all = append(all, found{text, far})
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Or(cmp.Compare(a.far, b.far), strings.Compare(a.text, b.text)) })
	for _, f := range all[:min(len(all), mostAlike)] {
		alike = append(alike, f.text)
	}
	return alike, is
}
