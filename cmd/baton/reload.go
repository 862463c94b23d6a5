package main

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/protocol"
)

// reloading is one reload: the settings that were read, and what becomes of each that is another
// one than in force.
type reloading struct {
	d      *daemon
	next   *settings.Settings
	differ []string // keys

	changed, waiting, failed []string
}

// reload applies those of the settings that were read which are others than in force and can
// change while the broker runs: also in the place of what `baton limit` has set. Settings that
// belong together are applied together, or wait together; one that cannot be applied keeps
// no other one from it.
func (d *daemon) reload(s *settings.Settings, read reloaded, level *slog.LevelVar) *settings.Settings {
	next := read.next
	if read.err != nil {
		said := []any{events.Of(events.Steered), "error", read.err}
		if remedy := remedyOf(read.err); remedy != "" {
			said = append(said, "remedy", remedy)
		}
		d.log.Error("reload: the settings are wrong and stay as they were", said...)
		return s
	}
	r := &reloading{d: d, next: next}
	for key, value := range next.Values() {
		if d.effective(key) != value {
			r.differ = append(r.differ, key)
		}
	}
	slices.SortFunc(r.differ, next.Compare)
	for _, key := range r.differ {
		if r.waits(key) {
			r.waiting = append(r.waiting, key)
		}
	}
	r.take("who may connect stays as it was", accessKeys, func() error {
		access := accessOf(next)
		return r.change(broker.Change{Access: &access}, accessKeys)
	})
	r.take("the limits stay as they were", limitKeys, func() error {
		return r.change(broker.Change{Limit: protocol.Limit{Memory: &next.Memory, SessionMemory: &next.SessionMemory,
			DeviceMemory: &next.DeviceMemory, SessionDeviceMemory: &next.SessionDeviceMemory}}, limitKeys)
	})
	r.take("the broker stays until it is ended", []string{"idle-exit"}, func() error {
		return r.change(broker.Change{IdleExit: &next.IdleExit}, []string{"idle-exit"})
	})
	r.take("the socket's mode stays as it was", []string{"socket-mode"}, func() error {
		return r.change(broker.Change{SocketMode: &next.SocketMode}, []string{"socket-mode"})
	})
	r.take("traces go on as they did", []string{"no-remote-traces"}, func() error {
		return r.change(broker.Change{NoRemoteTraces: &next.NoRemoteTraces}, []string{"no-remote-traces"})
	})
	r.takeHTTP()
	r.take("", []string{"span-timeout"}, func() error {
		if d.names != nil {
			d.names.SetTimeout(next.SpanTimeout)
		}
		return r.change(broker.Change{}, []string{"span-timeout"})
	})
	r.take("", []string{"drain-timeout", "log-level"}, func() error {
		level.Set(next.LogLevel)
		d.drain.Store(int64(next.DrainTimeout))
		return r.change(broker.Change{}, []string{"drain-timeout", "log-level"})
	})
	if len(r.waiting) > 0 {
		d.log.Warn("reload: these settings wait for a restart", events.Of(events.Steered), "settings", strings.Join(r.waiting, ", "))
	}
	warn(read.warnings, d.log)
	slices.SortFunc(r.changed, next.Compare)
	said := []any{events.Of(events.Steered), "log_level", strings.ToLower(next.LogLevel.String()), "changed", cmp.Or(strings.Join(r.changed, ", "), "nothing")}
	if len(r.failed) > 0 {
		said = append(said, "failed", strings.Join(r.failed, ", "))
	}
	d.log.Info("reloaded", said...)
	return next
}

// Settings that belong together.
var (
	accessKeys = []string{"allow-uid", "allow-group", "observe-uid", "observe-group"}
	limitKeys  = []string{"memory", "session-memory", "device-memory", "session-device-memory"}
	httpKeys   = []string{"http", "http-token-file", "http-cert", "http-key", "metrics-topics", "metrics-functions", "pprof"}
)

// waits tells whether a setting that differs waits for a restart. The mode that follows from
// --shared waits with that.
func (r *reloading) waits(key string) bool {
	if key == "socket-mode" && r.next.Source(key) == "default" && slices.Contains(r.differ, "shared") {
		return true
	}
	return !settings.CanChange(key)
}

// of are those of some settings that are to be applied.
func (r *reloading) of(keys []string) (some []string) {
	for _, key := range keys {
		if slices.Contains(r.differ, key) && !slices.Contains(r.waiting, key) {
			some = append(some, key)
		}
	}
	return some
}

// take takes settings over, where one of them differs; kept says what is so where that fails.
func (r *reloading) take(kept string, keys []string, over func() error) {
	some := r.of(keys)
	if len(some) == 0 {
		return
	}
	if err := over(); err != nil {
		r.failed = append(r.failed, some...)
		r.d.log.Error("reload: "+kept, events.Of(events.Steered), "settings", strings.Join(some, ", "), "error", protocol.Plain(err))
		return
	}
	r.changed = append(r.changed, some...)
}

// change has the broker take a change over, and notes the settings that are in force by it, which
// a broker that stands in for this one has.
func (r *reloading) change(ch broker.Change, keys []string) error {
	ch.Settings = map[string]string{}
	recorded, some := r.next.Recorded(), r.of(keys)
	for _, key := range some {
		ch.Settings[key] = ""
		if i := slices.IndexFunc(recorded, func(flag string) bool { return strings.HasPrefix(flag, "--"+key+"=") }); i >= 0 {
			ch.Settings[key] = recorded[i]
		}
	}
	if _, err := r.d.broker.Change(ch); err != nil {
		return err
	}
	values := r.next.Values()
	for _, key := range some {
		r.d.force[key] = values[key]
	}
	return nil
}

// takeHTTP has the endpoint go by the settings that were read. Files whose names are the same are
// read again.
func (r *reloading) takeHTTP() {
	d := r.d
	was := d.endpoint
	contents, err := d.changeHTTP(r.next)
	if err != nil {
		r.failed = append(r.failed, r.of(httpKeys)...)
		d.log.Error("reload: the HTTP endpoint stays as it was", events.Of(events.Steered), "settings", strings.Join(r.of(httpKeys), ", "), "error", protocol.Plain(err))
		return
	}
	r.take("", httpKeys, func() error { return r.change(broker.Change{}, httpKeys) })
	if was == nil || slices.Contains(r.changed, "http") {
		logHTTP(d.endpoint, d.log)
	}
	for key, is := range map[string]bool{"http-token-file": contents.Token, "http-cert": contents.Cert} {
		if is && !slices.Contains(r.changed, key) {
			r.changed = append(r.changed, "contents of "+key)
		}
	}
}

// changeHTTP starts the endpoint, ends it, or has it go by other settings: all of them or none.
func (d *daemon) changeHTTP(next *settings.Settings) (contents observe.Changed, err error) {
	switch {
	case next.HTTP == "":
		closeHTTP(d.endpoint)
		d.endpoint = nil
	case d.endpoint == nil && d.early != nil:
		d.endpoint, err = startHTTP(next, d.early, d.log)
	case d.endpoint != nil:
		return d.endpoint.Change(guardOf(next))
	}
	return contents, err
}

// effective is the value of a setting by which the broker goes now, as text.
func (d *daemon) effective(key string) string {
	if slices.Contains(limitKeys, key) { // which `baton limit` changes, too
		return settings.SizeText(d.broker.Setting(key))
	}
	return d.force[key]
}
