package broker

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/protocol"
)

// Change is what a broker takes over while it runs; nil leaves a setting as it is. A lower
// quota takes nothing away: new grants are refused until less is granted.
type Change struct {
	protocol.Limit
	IdleExit   *time.Duration
	Access     *Access // also of connections and sessions that are there
	SocketMode *os.FileMode
	// NoRemoteTraces is as in Config.
	NoRemoteTraces *bool
	// Settings are flags that replace those of the same name in Config.Settings, "" for none, by
	// name. Those of the quotas follow by themselves.
	Settings map[string]string
}

// leastMemory is the smallest first grant of a session.
const leastMemory = 64 << 10

// Change carries a change out, all of it or nothing. Errors: ErrInvalid for quotas that do
// not fit together. Any goroutine.
func (b *Broker) Change(ch Change) (protocol.LimitReply, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.change(&ch)
}

// mayLimit lets all users look at the quotas, and owners change them.
func mayLimit(c *conn, r *protocol.Limit) error {
	if *r == (protocol.Limit{}) {
		return nil
	}
	return c.owns(protocol.OpLimit)
}

// asksLimits tells whether a request asks for the quotas, and changes none.
func asksLimits(data []byte) bool {
	var r protocol.Limit
	return decode(data, &r) == nil && r == (protocol.Limit{})
}

func (c *conn) limit(r *protocol.Limit) (any, error) {
	reply, err := c.b.change(&Change{Limit: *r})
	if err == nil && *r != (protocol.Limit{}) {
		c.b.log.Info("limits changed", events.Of(events.Steered), "memory", reply.Memory, "session_memory", reply.SessionMemory, "device_memory", reply.DeviceMemory,
			"session_device_memory", reply.SessionDeviceMemory, "granted", reply.Granted, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	}
	return reply, err
}

func (b *Broker) change(ch *Change) (protocol.LimitReply, error) {
	limits := []struct {
		key  string
		from *uint64
		to   *uint64
	}{
		{"memory", ch.Memory, &b.cfg.Memory}, {"session-memory", ch.SessionMemory, &b.cfg.SessionMemory},
		{"device-memory", ch.DeviceMemory, &b.cfg.DeviceMemory}, {"session-device-memory", ch.SessionDeviceMemory, &b.cfg.SessionDeviceMemory},
	}
	var next [4]uint64
	for i, l := range limits {
		next[i] = *l.to
		if l.from != nil {
			next[i] = *l.from
		}
	}
	asked := next // the default fits whatever the rest is, as at the start
	if ch.Memory != nil && *ch.Memory == 0 {
		var err error
		if next[0], err = DefaultMemory(b.cfg.ReadMemory); err != nil {
			return protocol.LimitReply{}, err
		}
	}
	for i := 0; i < len(limits); i += 2 { // what is not changed stays as the start allowed it
		if limits[i].from == nil && limits[i+1].from == nil {
			asked[i], asked[i+1] = 0, 0
		}
	}
	if err := checkLimits(asked); err != nil {
		return protocol.LimitReply{}, err
	}
	changed := false
	for i, l := range limits {
		if l.from == nil {
			continue
		}
		changed = true
		*l.to = next[i]
		flag := ""
		if *l.from != 0 {
			flag = fmt.Sprintf("--%s=%d", l.key, *l.from)
		}
		b.noteSetting(l.key, flag)
	}
	if changed {
		b.memory.SetLimits(next[0], next[1], next[2], next[3])
	}
	if ch.IdleExit != nil {
		b.cfg.IdleExit = *ch.IdleExit
		b.idle.Cancel()
		b.idle = nil
		b.checkIdle()
	}
	if ch.Access != nil {
		b.cfg.Access = *ch.Access
		b.access.Store(ch.Access)
		b.enforce(ch.Access)
	}
	if ch.SocketMode != nil {
		b.cfg.SocketMode = *ch.SocketMode
		if b.ownsSocket() && !b.activated { // else its mode is the service manager's
			if err := os.Chmod(b.cfg.Socket, *ch.SocketMode); err != nil {
				b.log.Error("the socket keeps its mode", "error", err)
			}
		}
	}
	if ch.NoRemoteTraces != nil {
		b.cfg.NoRemoteTraces = *ch.NoRemoteTraces
		b.topics.NoTraces(*ch.NoRemoteTraces)
	}
	for key, flag := range ch.Settings {
		b.noteSetting(key, flag)
		changed = true
	}
	if changed && b.begun && !b.closing {
		if err := b.writeState(); err != nil {
			b.log.Error("cannot write the state file: a broker that a program starts after this one has the former settings", "error", err)
		}
	}
	use := b.memory.Use()
	return protocol.LimitReply{Memory: next[0], SessionMemory: next[1], DeviceMemory: next[2], SessionDeviceMemory: next[3],
		Granted: use.Granted, Lanes: use.Lanes}, nil
}

// checkLimits refuses quotas that do not fit together: of all memory, of a session's, and the
// same on devices.
func checkLimits(n [4]uint64) error {
	for i, what := range []string{"memory", "session_memory"} {
		if n[i] != 0 && n[i] < leastMemory {
			return protocol.Errorf(protocol.CodeInvalid, "give more", "nothing fits into a %s of %d bytes: a session takes %d at first", what, n[i], leastMemory)
		}
	}
	for i, what := range []string{"", " on a device"} {
		if all, one := n[2*i], n[2*i+1]; all != 0 && one > all {
			return protocol.Errorf(protocol.CodeInvalid, "change both limits, or give the session less",
				"one session might have more%s (%d bytes) than all together (%d)", what, one, all)
		}
	}
	return nil
}

// Setting is the value of a flag among the settings of this broker, as they are now: "" where there
// is none. Any goroutine.
func (b *Broker) Setting(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, flag := range b.cfg.Settings {
		if value, is := strings.CutPrefix(flag, "--"+key+"="); is {
			return value
		}
	}
	return ""
}

// noteSetting changes one of the settings for a broker that stands in for this one.
func (b *Broker) noteSetting(key, flag string) {
	b.cfg.Settings = slices.DeleteFunc(slices.Clone(b.cfg.Settings), func(s string) bool { return strings.HasPrefix(s, "--"+key+"=") })
	if flag != "" {
		b.cfg.Settings = append(b.cfg.Settings, flag)
	}
}
