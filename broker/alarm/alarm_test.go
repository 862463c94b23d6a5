package alarm_test

import (
	"sync"
	"testing"
	"time"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/stretchr/testify/require"
)

func TestAlarmRunsWithTheMutexHeld(t *testing.T) {
	var mu sync.Mutex
	held := make(chan bool)
	mu.Lock()
	alarm.NewClock(&mu).After(0, func() { held <- !mu.TryLock() })
	mu.Unlock()
	require.True(t, <-held)
}

// TestCancelledAlarmDoesNotRun cancels while the alarm, which is due, waits for the
// mutex. A later alarm tells that it had its turn.
func TestCancelledAlarmDoesNotRun(t *testing.T) {
	for name, cancel := range map[string]func(*alarm.Alarm, *alarm.Clock){
		"cancelled": func(a *alarm.Alarm, _ *alarm.Clock) { a.Cancel() },
		"stopped":   func(_ *alarm.Alarm, c *alarm.Clock) { c.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			var mu waited
			mu.waiting = make(chan struct{})
			c := alarm.NewClock(&mu)
			mu.Mutex.Lock()
			a := c.After(0, func() { t.Error("it ran") })
			<-mu.waiting
			cancel(a, c)
			mu.Mutex.Unlock()
			<-mu.waiting // it has had the mutex
		})
	}
}

// waited is a mutex that tells when it is waited for, and when it is given back.
type waited struct {
	sync.Mutex
	waiting chan struct{}
}

func (w *waited) Lock() {
	w.waiting <- struct{}{}
	w.Mutex.Lock()
}

func (w *waited) Unlock() {
	w.Mutex.Unlock()
	w.waiting <- struct{}{}
}

func TestNoAlarmCanBeCancelled(t *testing.T) {
	var none *alarm.Alarm
	none.Cancel()
	alarm.NewClock(&sync.Mutex{}).After(time.Hour, func() {}).Cancel()
}
