package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/baton-ipc/baton/cmd/baton/internal/hosts"
	"github.com/baton-ipc/baton/cmd/baton/internal/natscalls"
	"github.com/baton-ipc/baton/protocol"
)

// mostReasons is how many reasons a table has, each in a row of its own.
const mostReasons = 20

// moreThings are what reasons are for, where a row stands for many.
var moreThings = map[string]string{whyMessage: "topic, queue or function", whyName: "name", whyLease: "lease", whyHeld: "program", whyUnread: "file that cannot be read yet"}

// sumUp has the first reasons as they are, and sums up those beyond mostReasons by why they hold: as
// many rows as there are such reasons. left is how many are summed up.
func sumUp(reasons []*reason) (shown []*reason, left int) {
	if len(reasons) <= mostReasons {
		return reasons, 0
	}
	shown = reasons[:mostReasons:mostReasons]
	var rest []*reason
	things := map[*reason]int{}
	for _, r := range reasons[mostReasons:] {
		var sum *reason
		for _, s := range rest {
			if s.Why == r.Why {
				sum = s
			}
		}
		if sum == nil {
			sum = &reason{Why: r.Why, Holder: r.Holder, Slot: r.Slot, PID: r.PID, Ends: r.Ends, of: map[uint32]uint64{}}
			rest = append(rest, sum)
		}
		things[sum]++
		sum.Counts += r.Counts
		maps.Copy(sum.of, r.of)
		if sum.Slot != r.Slot {
			sum.Holder, sum.PID = "several", 0
		}
		if sum.Ends != r.Ends {
			sum.Ends = "see --json"
		}
	}
	for _, sum := range rest {
		sum.Storages = len(sum.of)
		for _, bytes := range sum.of {
			sum.Bytes += bytes
		}
		sum.What = fmt.Sprintf("%s more, each a %s", number(things[sum]), moreThings[sum.Why])
	}
	return append(shown, rest...), len(reasons) - mostReasons
}

// reasonTable draws reasons, those of most bytes first.
func (a *app) reasonTable(reasons []*reason) string {
	reasons, left := sumUp(reasons)
	var rows [][]string
	for _, r := range reasons {
		holder := sessionText(r.Holder, r.PID)
		what := r.What
		if len(r.Awaits) > 0 {
			what += ", for " + few(r.Awaits)
		}
		rows = append(rows, []string{size(r.Bytes), number(r.Storages), strconv.FormatUint(r.Counts, 10), holder, what, r.Ends, r.Free})
	}
	text := a.table(&layout{[]string{"bytes", "storages", "counts", "holder", "for", "ends", "or"},
		[]string{"bytes", "storages", "counts"}, []string{"ends", "for", "holder"}, []string{"counts", "storages"}, "or"}, rows)
	if left > 0 {
		text += fmt.Sprintf("\n%s more are summed up: --json has each, with the command that ends it", number(left))
	}
	return text
}

// ownIdleTime is how long a session is kept, unused, that a broker has of itself.
func ownIdleTime(name string) string {
	most := hosts.IdleTime
	if name == natscalls.SessionName {
		most = natscalls.IdleTime
	}
	return seconds(most.Seconds())
}

// process is the broker's, as it knows itself.
func (l *looker) process(ctx context.Context) (int, error) {
	var ping protocol.PingReply
	err := l.Broker(ctx, protocol.OpPing, nil, &ping)
	return ping.PID, err
}
