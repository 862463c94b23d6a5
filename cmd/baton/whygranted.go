package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

// grantedSegment is a segment of a session, and what of it any session holds.
type grantedSegment struct {
	Segment  uint32 `json:"segment"`
	Bytes    uint64 `json:"bytes"`
	Storages int    `json:"storages"` // that are held: the whole segment stays as long as there is one
	Held     uint64 `json:"held_bytes"`
}

// grantedTo finds the segments of a session. Storages are those that it has made or holds.
func (l *looker) grantedTo(ctx context.Context, session *broker.SessionRow, storages []*broker.StorageRow) ([]*grantedSegment, error) {
	rows, err := rowsOf[broker.SegmentRow](ctx, l, protocol.List{What: protocol.ListSegments, Pattern: literally(session.Name), Limit: 1024})
	if err != nil {
		return nil, err
	}
	all, at := []*grantedSegment{}, map[uint32]*grantedSegment{}
	for _, r := range rows {
		if r.OwnerSerial == session.Serial && r.State == "granted" {
			g := &grantedSegment{Segment: r.Segment, Bytes: r.Bytes}
			all, at[r.Segment] = append(all, g), g
		}
	}
	for _, s := range storages {
		if g := at[s.Segment]; g != nil && s.CreatorSerial == session.Serial {
			g.Storages++
			g.Held += s.Bytes
		}
	}
	return all, nil
}

// grantedText tells what a session was granted, what keeps it, and what would be given back.
func (a *app) grantedText(segments []*grantedSegment) string {
	var rows [][]string
	var bytes uint64
	empty := 0
	for _, g := range segments {
		if g.Storages == 0 {
			empty, bytes = empty+1, bytes+g.Bytes
			continue
		}
		rows = append(rows, []string{number(g.Segment), size(g.Bytes), strconv.Itoa(g.Storages), size(g.Held)})
	}
	text := ""
	if len(rows) > 0 {
		text = "segments that stay while a storage in them is held:\n" +
			a.table(&layout{header: []string{"segment", "bytes", "storages", "held"}, right: []string{"segment", "bytes", "storages", "held"}}, rows)
	}
	if empty > 0 {
		if text != "" {
			text += "\n"
		}
		text += fmt.Sprintf("granted, and nothing in it is held: %s in %s, which the program keeps for its next tensors; %s gives it back", size(bytes), plural(int64(empty), "segment"), a.reached.command("", "collect"))
	}
	return text
}
