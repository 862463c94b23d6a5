package client

import (
	"context"

	"github.com/baton-ipc/baton/protocol"
)

// members are the sessions that take part in a topic.
type members struct {
	senders  []*lane
	readers  int    // sessions
	lastLeft string // name of the session that left last, "" while none has
}

func (t *topic) members(ctx context.Context) (m members, err error) {
	if err := t.set.life.ended(); err != nil {
		return m, err
	}
	v, err := t.lanesNow(ctx)
	if err != nil {
		return m, err
	}
	return members{v.lanes, t.record.readers(), t.record.lastLeft()}, t.listed()
}

// count tells how many take part, as the broker's page says: lanes of sessions that go on, and
// sessions that read.
func (t *topic) count() (writers, readers int, lastLeft string) {
	for _, l := range t.record.lanes() {
		if l.state == protocol.LaneLive {
			writers++
		}
	}
	return writers, t.record.readers(), t.record.lastLeft()
}
