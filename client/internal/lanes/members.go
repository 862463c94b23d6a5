package lanes

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// members are the sessions that take part in a topic.
type members struct {
	Senders  []*sessionfiles.Lane
	Readers  int    // sessions
	LastLeft string // name of the session that left last, "" while none has
}

// Members tells which sessions take part, as the broker's page says.
func (t *Topic) Members(ctx context.Context) (m members, err error) {
	if err := t.set.life.Ended(); err != nil {
		return m, err
	}
	v, err := t.lanesNow(ctx)
	if err != nil {
		return m, err
	}
	return members{v.lanes, t.record.Readers(), t.record.LastLeft()}, t.listed()
}

// count tells how many take part, as the broker's page says: lanes of sessions that go on, and
// sessions that read.
func (t *Topic) count() (writers, readers int, lastLeft string) {
	for _, l := range t.record.Lanes() {
		if l.State == protocol.LaneLive {
			writers++
		}
	}
	return writers, t.record.Readers(), t.record.LastLeft()
}
