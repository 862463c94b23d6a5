package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/logqueue"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newStatusCommand) }

// statusReply is a broker's status as clients read it.
type statusReply struct {
	broker.Status
	Extra struct {
		NATS  *natsStatus      `json:"nats,omitempty"`
		Hosts *machines.Status `json:"hosts,omitempty"`
		Names []names.Status   `json:"names,omitempty"`
		Log   *logqueue.Status `json:"log,omitempty"`
	} `json:"extra"`
}

func newStatusCommand(a *app) *cobra.Command {
	var f clientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell how the broker is",
		Long: `Tell how the broker is: memory, NATS, and how much there is of what, without the
session of this command. Status 4 if none runs; this starts none.`,
		GroupID: groupLook,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.status(cmd.Context(), &f, asJSON)
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// askStatus asks a command's broker how it is.
func (a *app) askStatus(ctx context.Context, f *clientFlags) (*statusReply, error) {
	l, err := a.look(ctx, f)
	if err != nil {
		return nil, err
	}
	defer l.close()
	var raw json.RawMessage
	if err := l.Broker(ctx, protocol.OpStatus, nil, &raw); err != nil {
		return nil, err
	}
	var s statusReply
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "the status cannot be read: %w", err)
	}
	return &s, nil
}

func (a *app) status(ctx context.Context, f *clientFlags, asJSON bool) (err error) {
	s, err := a.askStatus(ctx, f)
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(s)
	}
	return a.println(a.pairs(s.pairs(a.reached)))
}

func (s *statusReply) pairs(by reached) [][2]string {
	broker := fmt.Sprintf("pid %d, version %s", s.PID, s.Version)
	if s.Host != "" {
		broker += ", on " + s.Host
	}
	rows := [][2]string{
		{"broker", broker},
		{"socket", s.Socket},
		{"instance", s.Instance},
		{"up", termtext.Duration(time.Duration(s.Uptime * float64(time.Second)))},
	}
	if s.Taking {
		rows = append(rows, [2]string{"state", "taking over from the previous broker"})
	}
	m := s.Memory
	granted := size(m.Granted) + " of " + size(m.Limit)
	if m.Orphans > 0 {
		granted += ", " + size(m.Orphans) + " of ended owners"
	}
	if m.Lanes > 0 {
		granted += ", and " + size(m.Lanes) + " in lanes"
	}
	held := size(m.Held)
	if m.ForChildren > 0 {
		held += ", " + size(m.ForChildren) + " by sessions that keep it for children of a fork"
	}
	rows = append(rows, [2]string{"memory granted", granted}, [2]string{"memory held", held}, [2]string{"memory left to take", size(m.Left)})
	if m.SessionLimit > 0 {
		rows = append(rows, [2]string{"limit of a session", size(m.SessionLimit)})
	}
	for _, d := range s.Devices {
		on := size(d.Granted)
		if d.Limit > 0 {
			on += " of " + size(d.Limit)
		}
		if d.Orphans > 0 {
			on += ", " + size(d.Orphans) + " of ended owners"
		}
		on += ", " + size(d.Held) + " held"
		rows = append(rows, [2]string{"memory on " + d.Device, on})
	}
	if m.Dir != "" {
		rows = append(rows, [2]string{"memory in", m.Dir})
	}
	n := s.Counts
	sessions := number(n.Sessions)
	if n.Disconnected > 0 {
		sessions += fmt.Sprintf(" (%d disconnected)", n.Disconnected)
	}
	if n.Unknown > 0 {
		sessions += fmt.Sprintf(", %d unknown: see %s, %s", n.Unknown, by.command("", "ls", "sessions"), by.command("", "evict"))
	}
	if n.Closed > 0 {
		sessions += fmt.Sprintf(" (%d closed: each ends once its process holds nothing of it)", n.Closed)
	}
	if n.Evicted > 0 {
		sessions += fmt.Sprintf(" (%d evicted: each ends once its process holds nothing of it)", n.Evicted)
	}
	if n.ForChildren > 0 {
		sessions += fmt.Sprintf(" (%d hold memory for children of a fork)", n.ForChildren)
	}
	rows = append(rows,
		[2]string{"sessions", sessions},
		[2]string{"names", number(n.Names)},
		[2]string{"topics", number(n.Topics)},
		[2]string{"queues", number(n.Queues)},
		[2]string{"functions", number(n.Functions)},
		[2]string{"storages held", number(n.Storages)},
		[2]string{"segments", number(n.Segments)},
		[2]string{"leases", number(n.Leases)})
	if s.Files.Limit > 0 {
		short := ""
		if s.Files.Short {
			short = ", and it keeps the rest for sessions that have few: sessions or memory were refused, and may be again"
		}
		rows = append(rows, [2]string{"open files", fmt.Sprintf("%d of %d", s.Files.Open, s.Files.Limit) + short})
	}
	if u := s.Unread; u.Waiting > 0 || u.GivenUp > 0 {
		text := number(u.Waiting)
		if u.Waiting > 0 {
			text += fmt.Sprintf(" (the oldest for %s; %s may be given up where memory is refused)", seconds(u.Oldest), number(u.MayGo))
		}
		if u.GivenUp > 0 {
			text += fmt.Sprintf(", %s given up", number(u.GivenUp))
		}
		rows = append(rows, [2]string{"unread pickles", text})
	}
	if n.AdoptedLanes > 0 {
		rows = append(rows, [2]string{"lanes of ended senders", number(n.AdoptedLanes)})
	}
	if l := s.Extra.Log; l != nil && *l != (logqueue.Status{}) {
		rows = append(rows, [2]string{"log", l.String()})
	}
	if s.Extra.NATS != nil {
		rows = append(rows, s.Extra.NATS.pairs()...)
	}
	if s.Extra.Hosts != nil {
		rows = append(rows, hostPairs(s.Extra.Hosts)...)
		rows = append(rows, namePairs(s.Extra.Names)...)
	}
	return rows
}

func (n *natsStatus) pairs() [][2]string {
	if n.Status == nil {
		if n.Error != "" {
			return [][2]string{{"NATS", "does not run: " + n.Error}}
		}
		return [][2]string{{"NATS", natsOff}}
	}
	state := n.Mode + ", not connected"
	if n.Connected {
		state = n.Mode + ", connected"
	}
	rows := [][2]string{{"NATS", state + " " + n.URL}}
	if !n.Connected && n.LastError != "" {
		rows = append(rows, [2]string{"NATS says", n.LastError})
	}
	tuples := termtext.Count(int64(min(n.Published, 1<<62))) + " published"
	if n.Dropped > 0 {
		tuples += ", " + termtext.Count(int64(min(n.Dropped, 1<<62))) + " dropped"
	}
	rows = append(rows, [2]string{"tuples on NATS", tuples})
	if n.Names.State != natsbridge.NamesUnused {
		names := n.Names.String()
		if n.Names.Error != "" {
			names = strings.Join([]string{names, n.Names.Error}, ": ")
		}
		rows = append(rows, [2]string{"names on NATS", names})
		for _, o := range n.Names.Owners {
			rows = append(rows, [2]string{"keys of others", fmt.Sprintf("%d of %s: %s", o.Keys, &o, strings.Join(o.Names, ", "))})
		}
	}
	if n.Functions != nil {
		rows = append(rows, [2]string{"functions on NATS", number(*n.Functions)})
	}
	if n.Service != "" {
		rows = append(rows, [2]string{"service on NATS", "refused: " + n.Service})
	}
	for _, r := range n.Refused {
		rows = append(rows, [2]string{"refused by NATS", r.String()})
	}
	return rows
}
