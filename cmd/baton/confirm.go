package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// yesFlag adds the flag that answers confirm.
func yesFlag(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do not ask; needed without a terminal")
}

// errUnconfirmed: the answer was no, and nothing was done.
var errUnconfirmed = errors.New("nothing was done")

// confirm asks at the terminal before something is destroyed. Without a terminal it refuses
// with the status of a wrong command line, unless yes was said already. Either names a broker that is not the user's own.
func (a *app) confirm(ctx context.Context, yes bool, what string) error {
	if yes {
		return nil
	}
	what += a.reached.ofBroker()
	if !isTerminal(a.in) {
		return &usage{cause: fmt.Errorf("this would %s, and there is no terminal to ask at", a.text(what)), remedy: "give --yes if that is meant"}
	}
	fmt.Fprintf(a.err, "This will %s.\nGo on? [y/N] ", a.text(what))
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case said := <-answer:
		if said == "y" || said == "yes" {
			return nil
		}
		return errUnconfirmed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// confirmFound is confirm of what a look at the broker finds; the look's error is that there is nothing of the kind.
func (a *app) confirmFound(ctx context.Context, f *clientFlags, yes bool, find func(*looker) (what string, err error)) error {
	if yes {
		return nil
	}
	l, err := a.lookToChange(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	what, err := find(l)
	if err != nil {
		return nothingDone(err)
	}
	return a.confirm(ctx, false, what)
}

// series joins several names.
func series(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}
