package main

import (
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
)

// reload reads the settings again and takes over those that have changed and can change while
// the broker runs. What `baton limit` has set stays unless the setting has changed since.
func (d *daemon) reload(s *settings.Settings, level *slog.LevelVar) *settings.Settings {
	next, err := s.Reload(os.Getenv)
	var contents observe.Changed
	if err == nil {
		contents, err = d.takeOver(s, next)
	}
	if err != nil {
		d.log.Error("reload: the settings are wrong and stay as they were", events.Of(events.Steered), "error", err)
		return s
	}
	level.Set(next.LogLevel)
	d.drain.Store(int64(next.DrainTimeout))
	var changed, waiting []string
	for _, key := range s.Changed(next) {
		if canChange(s, key) {
			changed = append(changed, key)
		} else {
			waiting = append(waiting, key)
		}
	}
	// Files whose names are the same are reported where their content is another.
	if key := "http-token-file"; contents.Token && !slices.Contains(changed, key) {
		changed = append(changed, "contents of "+key)
	}
	if key := "http-cert"; contents.Cert && !slices.Contains(changed, key) {
		changed = append(changed, "contents of "+key)
	}
	if len(waiting) > 0 {
		d.log.Warn("reload: these settings wait for a restart", events.Of(events.Steered), "settings", strings.Join(waiting, ", "))
	}
	d.log.Info("reloaded", events.Of(events.Steered), "log_level", strings.ToLower(next.LogLevel.String()), "changed", strings.Join(changed, ", "))
	return next
}

// canChange tells whether a setting can change now: plain HTTP does not become TLS.
func canChange(s *settings.Settings, key string) bool {
	if key == "http-cert" || key == "http-key" {
		return s.HTTPCert != ""
	}
	return settings.CanChange(key)
}

// takeOver has the broker and its endpoint take new settings over, or none of them.
func (d *daemon) takeOver(s, next *settings.Settings) (contents observe.Changed, err error) {
	if d.endpoint != nil {
		token, err := settings.ReadToken(next.HTTPToken)
		if err != nil {
			return contents, err
		}
		cert, key := next.HTTPCert, next.HTTPKey
		if s.HTTPCert == "" {
			cert, key = "", ""
		}
		if contents, err = d.endpoint.Reload(token, cert, key); err != nil {
			return contents, err
		}
	}
	_, err = d.broker.Change(changeOf(s, next))
	return contents, err
}

// changeOf is what changes for a broker from some settings to others.
func changeOf(s, next *settings.Settings) broker.Change {
	ch := broker.Change{Settings: map[string]string{}}
	recorded := next.Recorded()
	for _, key := range s.Changed(next) {
		if !canChange(s, key) {
			continue
		}
		switch key {
		case "memory":
			ch.Memory = &next.Memory
		case "session-memory":
			ch.SessionMemory = &next.SessionMemory
		case "device-memory":
			ch.DeviceMemory = &next.DeviceMemory
		case "session-device-memory":
			ch.SessionDeviceMemory = &next.SessionDeviceMemory
		case "idle-exit":
			ch.IdleExit = &next.IdleExit
		case "allow-uid", "allow-group", "observe-uid", "observe-group":
			access := accessOf(next)
			ch.Access = &access
		case "socket-mode":
			ch.SocketMode = &next.SocketMode
		}
		ch.Settings[key] = ""
		if i := slices.IndexFunc(recorded, func(flag string) bool { return strings.HasPrefix(flag, "--"+key+"=") }); i >= 0 {
			ch.Settings[key] = recorded[i]
		}
	}
	return ch
}
