package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

// flow is what goes through a topic or queue: which sessions send and take, and what is kept.
type flow struct {
	Senders  []flowEnd       `json:"senders"`
	Takers   []flowEnd       `json:"takers"` // readers of a topic
	LeftOut  int             `json:"left_out,omitempty"`
	Messages []*keptMessages `json:"messages"`
	// HeldUp are senders that have no room until one item is done with, and HeldUpFor for how long that has been seen.
	HeldUp    int     `json:"held_up"`
	HeldUpFor float64 `json:"held_up_seconds"`
	HeldUpBy  []*hold `json:"held_up_by,omitempty"`
}

// flowEnd is one of the sessions at either end.
type flowEnd struct {
	broker.FlowEnd
	Suspended bool `json:"suspended,omitempty"` // its process
}

// isSuspended tells whether the process of a session is, by a signal or a debugger.
func (at *attribution) isSuspended(serial uint64) bool {
	for _, s := range at.sessions {
		if s.Serial == serial {
			return s.Stopped
		}
	}
	return false
}

// ends marks the sessions that are suspended.
func (at *attribution) ends(all []broker.FlowEnd) []flowEnd {
	ends := make([]flowEnd, len(all))
	for i, e := range all {
		ends[i] = flowEnd{e, !e.Ended && at.isSuspended(e.Session)}
	}
	return ends
}

// goOn are commands by which the suspended readers that a message of a topic awaits take it, or do not any more; "": none
// is suspended.
func (at *attribution) goOn(awaits []string, readers []flowEnd) string {
	var pids, serials []string
	for _, e := range readers {
		awaited := slices.ContainsFunc(awaits, func(who string) bool {
			return who == "reader "+sessionText(e.Name, e.PID) || strings.HasPrefix(who, "group ")
		})
		if e.Suspended && awaited {
			pids, serials = append(pids, strconv.Itoa(e.PID)), append(serials, strconv.FormatUint(e.Session, 10))
		}
	}
	if len(pids) == 0 {
		return ""
	}
	return "kill -CONT " + strings.Join(pids, " ") + ", or " + at.by.command("", "evict", append(serials, "--kill")...) + ", or "
}

// hold is an item that leaves its sender no room, though fewer of its items wait than the depth.
type hold struct {
	Sender   string  `json:"sender"`
	PID      int     `json:"pid,omitempty"` // of the sender
	Sequence uint64  `json:"sequence"`
	Age      float64 `json:"age_seconds"`
	For      float64 `json:"held_up_seconds"` // as far as it has been looked at
	// Taker has the item; nil: HasIt says what is so.
	Taker     *broker.Taker `json:"taker,omitempty"`
	Suspended bool          `json:"suspended,omitempty"` // the taker's process
	HasIt     string        `json:"has_it"`
	Free      string        `json:"free,omitempty"`
}

// holdOf says which taker has an item that holds its sender up, and which command frees it.
func (at *attribution) holdOf(p *broker.PlaceRow, m *broker.PlaceMessage, c *cause) *hold {
	h := &hold{Sender: p.Sender, PID: p.PID, Sequence: m.Sequence, Age: m.Age, For: m.HoldsUpFor, Taker: m.Taker, Free: c.Free}
	switch {
	case m.Taker == nil && isClaimed(m):
		h.HasIt = "a taker that has left"
	case m.Taker == nil:
		h.HasIt = "no taker: it was given back, and waits for one"
	case m.Taker.Over:
		h.HasIt = sessionText(m.Taker.Name, m.Taker.PID) + ", whose session is over"
	default:
		h.HasIt = sessionText(m.Taker.Name, m.Taker.PID)
	}
	if m.Taker != nil {
		if h.Suspended = at.isSuspended(m.Taker.Session); h.Suspended {
			h.HasIt += ", suspended"
			h.Free = fmt.Sprintf("kill -CONT %d, or %s", m.Taker.PID, h.Free)
		}
	}
	return h
}

// keptMessages are the messages of one sender that are kept for the same reason.
type keptMessages struct {
	Messages int      `json:"messages"`
	Oldest   float64  `json:"oldest_seconds"`
	Sender   string   `json:"sender"`
	PID      int      `json:"pid,omitempty"`
	Claimed  bool     `json:"claimed,omitempty"` // a taker has them and has not released them
	Awaits   []string `json:"awaits,omitempty"`
	Ends     string   `json:"ends"`
	Free     string   `json:"free,omitempty"`
}

// flow finds what goes through a topic, and the storages that its messages name.
func (at *attribution) flow(ctx context.Context, l *looker, topic *broker.TopicRow) (*flow, []uint32, error) {
	f := &flow{Senders: []flowEnd{}, Takers: []flowEnd{}, Messages: []*keptMessages{}, HeldUp: topic.HeldUp, HeldUpFor: topic.HeldUpFor}
	row, err := l.flowOf(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	if row != nil {
		f.Senders, f.Takers, f.LeftOut = at.ends(row.Writers), at.ends(row.Readers), row.More
	}
	var storages []uint32
	sums := map[string]*keptMessages{}
	for _, p := range at.places {
		if p.ID != topic.ID {
			continue
		}
		for i := range p.Messages {
			m := &p.Messages[i]
			c := at.causeOf(p, m)
			if m.HoldsUp {
				f.HeldUpBy = append(f.HeldUpBy, at.holdOf(p, m, c))
			}
			key := fmt.Sprintf("%d %s %d %s %q", p.Slot, p.Sender, p.PID, c.Ends, m.Awaits)
			sum := sums[key]
			if sum == nil {
				if p.Kind == protocol.KindTopic && len(m.Awaits) > 0 && c.Free != "" {
					c.Free = at.goOn(m.Awaits, f.Takers) + c.Free
				}
				sum = &keptMessages{Sender: p.Sender, PID: p.PID, Claimed: isClaimed(m), Awaits: m.Awaits, Ends: c.Ends, Free: c.Free}
				sums[key] = sum
				f.Messages = append(f.Messages, sum)
			}
			sum.Messages++
			sum.Oldest = max(sum.Oldest, m.Age)
			storages = append(storages, m.Storages...)
		}
	}
	slices.SortStableFunc(f.Messages, func(a, b *keptMessages) int { return cmp.Compare(b.Messages, a.Messages) })
	slices.Sort(storages)
	return f, slices.Compact(storages), nil
}

// flowOf gets the sessions that send to a topic and that take from it; nil: the topic has gone meanwhile.
func (l *looker) flowOf(ctx context.Context, topic *broker.TopicRow) (*broker.FlowRow, error) {
	rows, err := rowsOf[broker.FlowRow](ctx, l, protocol.List{What: protocol.ListFlows, Namespace: topic.Namespace})
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if r.ID == topic.ID {
			return r, nil
		}
	}
	return nil, nil
}

// noTakers says of a queue what its list of takers does not.
const noTakers = "none: no session takes its items"

// printFlow prints what goes through a topic or queue. In a lossless topic messages are kept that no reader will get.
func (a *app) printFlow(kind string, lossless bool, f *flow) error {
	takers, none, received := "takers", noTakers, []string{"taken"}
	if kind == protocol.KindTopic {
		takers, none, received = "readers", "none", []string{"taken", "lost"}
	}
	for _, end := range []struct {
		title, none string
		ends        []flowEnd
		counts      []string
	}{{"senders", "none", f.Senders, []string{"sent"}}, {takers, none, f.Takers, received}} {
		text := " " + end.none
		if len(end.ends) > 0 {
			var rows [][]string
			for i := range end.ends {
				e := &end.ends[i]
				row := []string{number(e.Session), e.Name, number(e.PID)}
				if e.Suspended {
					row[1] += ", suspended"
				}
				if e.Ended {
					row[0], row[2] = "ended", "-"
				}
				for _, count := range end.counts {
					row = append(row, number(map[string]uint64{"sent": e.Sent, "taken": e.Taken, "lost": e.Lost}[count]))
				}
				rows = append(rows, row)
			}
			header := append([]string{"session", "name", "pid"}, end.counts...)
			text = "\n" + a.table(&layout{header: header, right: append([]string{"session", "pid"}, end.counts...), weak: []string{"name"}}, rows)
		}
		if err := a.println(end.title + ":" + text); err != nil {
			return err
		}
	}
	if f.LeftOut > 0 {
		if err := a.println(fmt.Sprintf("and %d more that moved less", f.LeftOut)); err != nil {
			return err
		}
	}
	if len(f.HeldUpBy) > 0 {
		if err := a.printHolds(f.HeldUpBy); err != nil {
			return err
		}
	}
	text := " none"
	if len(f.Messages) > 0 {
		var rows [][]string
		for _, m := range f.Messages {
			sender := sessionText(m.Sender, m.PID)
			awaits := few(m.Awaits)
			if lossless && len(m.Awaits) == 0 {
				awaits = "no reader"
			}
			rows = append(rows, []string{strconv.Itoa(m.Messages), seconds(m.Oldest), sender, awaits, m.Ends, m.Free})
		}
		text = "\n" + a.table(&layout{[]string{"messages", "oldest", "sender", "for", "ends", "or"},
			[]string{"messages", "oldest"}, []string{"ends", "for", "sender"}, []string{"oldest"}, "or"}, rows)
	}
	return a.println("messages that are kept:" + text)
}

// printHolds prints which items leave their senders no room.
func (a *app) printHolds(holds []*hold) error {
	var rows [][]string
	for _, h := range holds {
		rows = append(rows, []string{sessionText(h.Sender, h.PID), number(h.Sequence), seconds(h.Age), "at least " + seconds(h.For), h.HasIt, h.Free})
	}
	if err := a.say(fmt.Sprintf("held up: no room for %s until one item is done with, though fewer items of that sender wait than the depth:", plural(int64(len(holds)), "sender"))); err != nil {
		return err
	}
	return a.println(a.table(&layout{[]string{"sender", "item", "sent ago", "held up", "has it", "or"},
		[]string{"item", "sent ago"}, []string{"has it", "sender"}, []string{"sent ago"}, "or"}, rows))
}
