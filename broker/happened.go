package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// opEvents gives the events, also while the broker waits for the previous broker's clients.
func (b *Broker) opEvents(_ *session, data []byte) (any, []*sys.FD, error) {
	var r protocol.Events
	if err := decode(data, &r); err != nil {
		return nil, nil, err
	}
	return b.cfg.Events.Since(r.After, r.Limit), nil, nil
}

// eventsTogether is how long an answer to a follower waits for further events, so that many come at once.
const eventsTogether = 100 * time.Millisecond

// awaitEvents waits for what a follower asks for. The end of the connection, which comes with the end of the broker, is
// held up by the answer, and ends the wait.
func (c *conn) awaitEvents(data []byte) {
	var r protocol.Events
	if c.session != nil || json.Unmarshal(data, &r) != nil || !(r.Wait > 0) {
		return
	}
	late := time.NewTimer(time.Duration(min(r.Wait, protocol.MostEventsWait) * float64(time.Second)))
	defer late.Stop()
	select {
	case <-c.b.cfg.Events.Next(r.After):
	case <-late.C:
		return
	case <-c.stop:
		return
	}
	select {
	case <-time.After(eventsTogether):
	case <-c.stop:
	}
}

// mostMissing bounds how many sessions a line names.
const mostMissing = 16

// noteTakeover logs that this broker took over from another one, if it did.
func (b *Broker) noteTakeover() {
	sessions := b.liveSessions()
	if sessions == 0 && b.succession == nil {
		return // none to report: a new instance, or one whose clients have all ended
	}
	from := "a broker that had ended"
	if b.succession != nil {
		from = "a living broker"
	}
	b.takeover = &TakeoverStatus{From: from, Seconds: time.Since(b.started).Seconds(), Sessions: sessions}
	b.log.Info("took over", events.Of(events.Takeover), "from", from, "took", time.Since(b.started), "sessions", sessions)
	b.clock.After(b.cfg.RecoverWait, b.noteMissing)
}

// neverBack tells whether no client comes back for a session, which an operator has ended: its process may live on
// and hold memory.
func (s *session) neverBack() bool {
	return s.returnless || s.evicted && s.state == protocol.SessionClosed
}

// noteMissing logs the sessions that are not back in time.
func (b *Broker) noteMissing() {
	var missing []string
	n := 0
	for _, s := range b.used() {
		if s == nil || !s.absent || s.ended || s.neverBack() {
			continue
		}
		if n++; n <= mostMissing {
			missing = append(missing, fmt.Sprintf("%s (session %d, pid %d)", s.Name, s.Serial, s.PID))
		}
	}
	b.takeover.Missing = n
	if n > 0 {
		b.log.Warn("sessions are not back", events.Of(events.Takeover), "missing", n, "names", strings.Join(missing, ", "))
	}
}

// noteEnd logs what an ended session had: what it held, by its refcounts; how much of what it sent
// the broker keeps for others; its memory, which is freed once nothing there is held.
func (b *Broker) noteEnd(s *session, granted uint64, ended memory.Ended) {
	kind, level := events.Death, slog.LevelInfo
	if s.left {
		kind = events.Session
	} else {
		b.deaths++
	}
	kept := b.topics.KeptOf(s.SessionFile)
	if ended.Bytes == 0 && granted == 0 && kept.Messages == 0 {
		level = slog.LevelDebug // it left nothing
	}
	b.log.Log(context.Background(), level, "session ended", events.Of(kind), "serial", s.Serial, "name", s.Name, "pid", s.PID,
		"uid", s.uid, "lasted", time.Since(s.connectedAt).Round(time.Millisecond), "held_storages", ended.Storages, "held_bytes", ended.Bytes,
		"kept_messages", kept.Messages, "kept_lanes", kept.Lanes, "memory_bytes", granted)
}
