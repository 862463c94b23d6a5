package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/sys"
)

// attend does what a service manager expects while the broker serves: reload at
// HUP, signs of life for the watchdog, and word of the coming end. It waits for no file: settings
// are read beside it, and taken over here once they were. A HUP meanwhile is one more reload.
func (d *daemon) attend(ctx context.Context, s *settings.Settings, level *slog.LevelVar, hup <-chan os.Signal, ended <-chan struct{}) {
	var watchdog <-chan time.Time
	if every, err := sd.SdWatchdogEnabled(false); err != nil {
		d.log.Warn("the watchdog's interval cannot be read", "error", err)
	} else if every > 0 {
		tick := time.NewTicker(every / 2)
		defer tick.Stop()
		watchdog = tick.C
	}
	told := false
	stopping := func() {
		if !told {
			notify(d.log, sd.SdNotifyStopping)
		}
		told = true
	}
	var reading *rereading // nil: no reload is under way
	number, again := 0, false
	reload := func() {
		number++
		notify(d.log, sd.SdNotifyReloading+fmt.Sprintf("\nMONOTONIC_USEC=%d", sys.Monotonic()/1000))
		reading = reread(s, number)
	}
	var opening <-chan time.Time // nil: no endpoint is lacking
	if d.early != nil && d.endpoint == nil && s.HTTP != "" {
		tick := time.NewTicker(httpPause)
		defer tick.Stop()
		opening = tick.C
	}
	done, quit := ctx.Done(), d.broker.Quit()
	for {
		select {
		case <-opening:
			if d.openHTTP(s) {
				opening = nil
			}
		case <-hup:
			if reading == nil {
				reload()
				continue
			}
			again = true
			d.log.Info("reload: the settings are read once more when the reload that is under way has ended", append(reading.where(), events.Of(events.Steered))...)
		case r := <-reading.read():
			reading = nil
			s = d.reload(s, r, level)
			notify(d.log, sd.SdNotifyReady)
			if again {
				again = false
				reload()
			}
		case <-reading.late():
			d.log.Warn("reload: a file is not read yet, and the settings stay as they were until then: look at the file system that it lies on", append(reading.where(), events.Of(events.Steered))...)
		case <-watchdog:
			if err := observe.Healthy(ctx, d.broker.Alive); err != nil && ctx.Err() == nil {
				d.log.Error("no sign of life for the watchdog", "error", err)
				continue
			}
			notify(d.log, sd.SdNotifyWatchdog)
		case <-done:
			d.log.Info("ending: a signal asks for it")
			stopping()
			done = nil
		case <-quit:
			stopping()
			quit = nil
		case <-ended:
			stopping()
			return
		}
	}
}

func notify(log *slog.Logger, state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		log.Warn("cannot notify the service manager", "error", err)
	}
}

// rereading is settings that are being read again, each file of which may take its time.
type rereading struct {
	number int // of the reload, from 1 on
	began  time.Time
	result chan reloaded
	slow   <-chan time.Time
	file   atomic.Pointer[namedFile] // that is read now: the goroutine that reads stores it, the one that attends loads it for the log
}

type namedFile struct{ key, path string }

// reloaded is what was read, and what is hardly meant of it.
type reloaded struct {
	next     *settings.Settings
	warnings []string
	err      error
}

// slowFile is how long files may take until the log says which one does.
const slowFile = 3 * time.Second

// reread begins to read settings again.
func reread(s *settings.Settings, number int) *rereading {
	r := &rereading{number: number, began: time.Now(), result: make(chan reloaded, 1), slow: time.After(slowFile)}
	go func() { // it goes on for as long as a file system gives no answer, also beyond the broker's end
		next, err := s.Reload(os.Getenv, func(key, path string) { r.file.Store(&namedFile{key, path}) })
		out := reloaded{next: next, err: err}
		if err == nil {
			out.warnings = warnings(next)
		}
		r.result <- out
	}()
	return r
}

// read gives what was read; nil of nothing.
func (r *rereading) read() <-chan reloaded {
	if r == nil {
		return nil
	}
	return r.result
}

// late ends once, where the files take long; nil of nothing.
func (r *rereading) late() <-chan time.Time {
	if r == nil {
		return nil
	}
	return r.slow
}

// where says, for the log, which reload it is, and at which file.
func (r *rereading) where() []any {
	said := []any{"reload", r.number, "since", time.Since(r.began)}
	if f := r.file.Load(); f != nil {
		said = append(said, "setting", f.key, "file", f.path)
	}
	return said
}
