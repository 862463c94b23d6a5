package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

// flow is what goes through a topic or queue: which sessions send and take, and what is kept.
type flow struct {
	Senders  []broker.FlowEnd `json:"senders"`
	Takers   []broker.FlowEnd `json:"takers"` // readers of a topic
	LeftOut  int              `json:"left_out,omitempty"`
	Messages []*keptMessages  `json:"messages"`
	// HeldUp are senders that wait until a taker acknowledges one item, and HeldUpFor for how long that has been seen.
	HeldUp    int     `json:"held_up"`
	HeldUpFor float64 `json:"held_up_seconds"`
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
	f := &flow{Senders: []broker.FlowEnd{}, Takers: []broker.FlowEnd{}, Messages: []*keptMessages{}, HeldUp: topic.HeldUp, HeldUpFor: topic.HeldUpFor}
	row, err := l.flowOf(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	if row != nil {
		f.Senders, f.Takers, f.LeftOut = row.Writers, row.Readers, row.More
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
			key := fmt.Sprintf("%d %s %d %s %q", p.Slot, p.Sender, p.PID, c.Ends, m.Awaits)
			sum := sums[key]
			if sum == nil {
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
	takers, none := "takers", noTakers
	if kind == protocol.KindTopic {
		takers, none = "readers", "none"
	}
	for _, end := range []struct {
		title, count, none string
		ends               []broker.FlowEnd
		of                 func(*broker.FlowEnd) uint64
	}{
		{"senders", "sent", "none", f.Senders, func(e *broker.FlowEnd) uint64 { return e.Sent }},
		{takers, "taken", none, f.Takers, func(e *broker.FlowEnd) uint64 { return e.Taken }},
	} {
		text := " " + end.none
		if len(end.ends) > 0 {
			var rows [][]string
			for i := range end.ends {
				e := &end.ends[i]
				session, pid := number(e.Session), number(e.PID)
				if e.Ended {
					session, pid = "ended", "-"
				}
				rows = append(rows, []string{session, e.Name, pid, number(end.of(e))})
			}
			text = "\n" + a.table(&layout{header: []string{"session", "name", "pid", end.count}, right: []string{"session", "pid", end.count}, weak: []string{"name"}}, rows)
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
	if f.HeldUp > 0 {
		if err := a.say(fmt.Sprintf("held up: %s of the senders, until a taker releases the oldest item that it has", number(f.HeldUp))); err != nil {
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
