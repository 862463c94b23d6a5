package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newEvictCommand) }

// evictOptions are the flags of evict.
type evictOptions struct{ kill, yes, json bool }

func newEvictCommand(a *app) *cobra.Command {
	var f clientFlags
	var o evictOptions
	cmd := &cobra.Command{
		Use:   "evict SESSION...",
		Short: "End sessions",
		Long: `End sessions, by their number in baton ls sessions, their name, or the pid of their process.
A number is a session's before it is a pid. Where several sessions have a name or pid, nothing is
done, and their numbers are listed. Calls of the session fail with SessionLost from then on. Its connection, its right to come back, its lanes and its
leases end; what it had sent is still received. What its process holds stays until the
process drops it or ends: the reply tells how much that is. Items of queues that it has
taken and not released go to other takers then. A suspended process learns of
the end when it goes on; until then all its memory stays.

--kill kills the process, so that nothing stays. Where the broker may not, because it runs as
another user than the program, this command does, if its own user may.

A session in the state "unknown" is one that a broker has taken over without finding out
whether its process lives. End it only when you know that the process is gone: what a
process still reads is given to others. Of one in the state "ended" the file is awaited
though its process is gone; evicting it gives up what it sent.`,
		GroupID: groupSteer,
		Args:    takes(1, anyNumber),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.evict(cmd.Context(), &f, args, &o)
		},
		ValidArgsFunction: a.completeSerials(&f),
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVar(&o.kill, "kill", false, "kill the processes")
	yesFlag(cmd, &o.yes)
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

// evicted is the result for one session.
type evicted struct {
	Serial uint64 `json:"serial"`
	protocol.EvictReply
}

// evictAnswer is longer than a broker waits for a client to read that it is evicted.
const evictAnswer = 10 * time.Second

// evict goes on after a session that cannot be evicted, so that the rest is done.
func (a *app) evict(ctx context.Context, f *clientFlags, sessions []string, o *evictOptions) (err error) {
	l, err := a.lookToChange(ctx, f)
	if err != nil {
		return err
	}
	serials, err := l.serialsOf(ctx, sessions)
	l.close()
	if err != nil {
		return nothingDone(err)
	}
	find := func(l *looker) (string, error) {
		what, err := l.sessionsNamed(ctx, serials)
		if o.kill {
			what = "kill the processes of, and " + what
		}
		return what, err
	}
	if err := a.confirmFound(ctx, f, o.yes, find); err != nil {
		return err
	}
	if l, err = a.lookToChange(ctx, f); err != nil {
		return err
	}
	defer l.close()
	return each(a, serials, o.json, func(serial uint64) (evicted, string, error) {
		e := evicted{Serial: serial}
		l.patient(evictAnswer)
		err := l.change(ctx, protocol.OpEvict, protocol.Evict{Serial: serial, Kill: o.kill}, &e.EvictReply, "baton ls sessions")
		if o.kill && errors.Is(err, protocol.ErrPermissionDenied) {
			err = l.killHere(ctx, &e, err)
		}
		return e, e.text(l.by), err
	})
}

// serialsOf finds the sessions that are meant by their serial, name or pid, each once. A number that no session has is
// taken for a serial, which the broker refuses.
func (l *looker) serialsOf(ctx context.Context, called []string) (serials []uint64, err error) {
	rows, err := rowsOf[broker.SessionRow](ctx, l, protocol.List{What: protocol.ListSessions})
	if err != nil {
		return nil, err
	}
	for _, text := range called {
		n, err := strconv.ParseUint(text, 10, 64)
		var meant []*broker.SessionRow
		for _, r := range rows {
			if err == nil && r.Serial == n {
				meant = []*broker.SessionRow{r} // before those of whose processes it is the pid
				break
			}
			if isSession(text, r.Name, r.Serial, r.PID) {
				meant = append(meant, r)
			}
		}
		switch {
		case len(meant) > 1:
			var list []string
			for _, r := range meant {
				list = append(list, fmt.Sprintf("%d (%s, pid %d, %s)", r.Serial, r.Name, r.PID, r.State))
			}
			return nil, &usage{cause: fmt.Errorf("%s means several sessions: %s", text, series(list)), remedy: "give the number of the one that is meant"}
		case len(meant) == 1:
			n = meant[0].Serial
		case err != nil:
			return nil, protocol.Errorf(protocol.CodeNotFound, "baton ls sessions lists them", "there is no session called %s", text)
		}
		if !slices.Contains(serials, n) {
			serials = append(serials, n)
		}
	}
	return serials, nil
}

// killHere kills the process of a session that the broker may not kill, which runs as a user of
// its own, if this process may. refusal is the broker's, and is the result where it names no
// process of this pid namespace or the kernel refuses, too.
func (l *looker) killHere(ctx context.Context, e *evicted, refusal error) error {
	var p *protocol.Error
	if !errors.As(refusal, &p) {
		return refusal
	}
	number := func(key string) uint64 {
		n, _ := p.Detail[key].(float64)
		return uint64(n)
	}
	pid, start := int(number("pid")), number("start_time")
	if pid == 0 || start == 0 || number("pid_namespace") != sys.PIDNamespace(os.Getpid()) {
		return refusal
	}
	pidfd, state := sys.FindProcess(pid, start)
	if state == sys.ProcessEnded { // meanwhile: the broker sees that now
		pidfd.Close()
		return l.change(ctx, protocol.OpEvict, protocol.Evict{Serial: e.Serial, Kill: true}, &e.EvictReply, "baton ls sessions")
	}
	if state == sys.ProcessUnknown || state == sys.ProcessLives && sys.MayKill(pidfd) != nil {
		pidfd.Close()
		return refusal
	}
	// The broker is told before, so that the session ends as any that is evicted.
	l.patient(evictAnswer)
	err := l.change(ctx, protocol.OpEvict, protocol.Evict{Serial: e.Serial, Killed: true}, nil, "baton ls sessions")
	ended := false
	if err == nil {
		err = sys.KillPidfd(pidfd)
		if ended = errors.Is(err, os.ErrProcessDone); ended {
			err = nil
		}
	}
	pidfd.Close()
	if err != nil && !errors.Is(err, protocol.ErrNotFound) {
		return err
	}
	e.Name, _ = p.Detail["name"].(string)
	e.PID, e.Killed, e.Ended, e.State = pid, !ended, ended, protocol.EvictedUnheard
	for until := time.Now().Add(evictAnswer); time.Now().Before(until); {
		l.patient(evictAnswer)
		rows, err := l.fetch(ctx, protocol.ListSessions, "")
		if err != nil {
			return fmt.Errorf("process %d has ended, and what is left of session %d is not known: %w", pid, e.Serial, err)
		}
		e.State = protocol.EvictedOver
		for _, raw := range rows {
			var r broker.SessionRow
			if err := json.Unmarshal(raw, &r); err != nil {
				return err
			}
			if r.Serial == e.Serial && r.State != "ended" {
				e.State, e.Held, e.Granted = protocol.EvictedUnheard, r.Held, r.Granted // HeldOfOthers is not known
				e.ForChildren = r.ProcessEnded
			}
			if e.ForChildren {
				e.State = protocol.EvictedClosed
				return nil
			}
		}
		if e.State == protocol.EvictedOver {
			e.Held, e.Granted = 0, 0
			return nil
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil // the kernel has not ended it yet
}

// sessionsNamed says whose sessions will end.
func (l *looker) sessionsNamed(ctx context.Context, serials []uint64) (string, error) {
	rows, err := l.fetch(ctx, protocol.ListSessions, "")
	if err != nil {
		return "", err
	}
	var who []string
	for _, raw := range rows {
		var r broker.SessionRow
		if err := json.Unmarshal(raw, &r); err != nil {
			return "", err
		}
		if slices.Contains(serials, r.Serial) {
			who = append(who, fmt.Sprintf("session %d (%s, pid %d, %s, holds %s)", r.Serial, r.Name, r.PID, r.State, size(r.Held)))
		}
	}
	if len(who) == 0 {
		return "", protocol.Errorf(protocol.CodeNotFound, "baton ls sessions lists them", "there is no session %d", serials[0])
	}
	return "end " + series(who), nil
}

func (e *evicted) text(by reached) string {
	text := fmt.Sprintf("evicted session %d (%s, pid %d)", e.Serial, e.Name, e.PID)
	if e.ForChildren || e.Ended {
		what := ": its process was killed"
		if e.Ended {
			what = ": its process had ended already"
		}
		switch {
		case e.State == protocol.EvictedOver:
			return text + what + "; nothing of it is left"
		case !e.ForChildren:
			return text + what + "; what it has stays until the broker has noticed that"
		}
		return text + what + fmt.Sprintf("; %s stay for the children that it forked, until they end: %s names them", size(e.Held), by.command("", "why", "session", strconv.FormatUint(e.Serial, 10))) + e.itemsText()
	}
	if e.Killed && e.State == protocol.EvictedOver {
		return text + ": its process was killed"
	}
	if e.Killed {
		return text + ": its process was killed and has not ended yet; what it has stays until then"
	}
	switch e.State {
	case protocol.EvictedClosed:
		return text + fmt.Sprintf(": its process holds %s, which stay until it drops them or ends", size(e.Held)) + e.itemsText()
	case protocol.EvictedUnheard:
		stays := fmt.Sprintf("%s stay until it goes on or ends", size(e.Granted+e.HeldOfOthers))
		if e.HeldOfOthers > 0 {
			stays += fmt.Sprintf(", %s that it was granted and %s that it holds of others", size(e.Granted), size(e.HeldOfOthers))
		}
		return text + ": its process does not know of it yet, so " + stays + e.itemsText()
	}
	return text + ": nothing of it is left"
}

// itemsText says which items of queues other takers do not get yet.
func (e *evicted) itemsText() string {
	switch e.Items {
	case 0:
		return ""
	case 1:
		return "; 1 item that it took and has not acknowledged goes to another taker then"
	}
	return fmt.Sprintf("; %d items that it took and has not acknowledged go to other takers then", e.Items)
}
