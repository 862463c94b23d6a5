package natsbridge

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// serverLog hands the embedded server's log to slog and keeps the first fatal
// message: the server says only there why it did not start.
type serverLog struct {
	log   *slog.Logger
	mu    sync.Mutex
	fatal string
}

func (l *serverLog) write(level slog.Level, format string, v []any) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	l.log.Log(context.Background(), level, strings.TrimSpace(fmt.Sprintf(format, v...)), "from", "nats-server")
}

// Noticef is quiet: what the server notices at start and stop is no news.
func (l *serverLog) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }

// Debugf and Tracef are not asked for, and so never called by the server.
func (l *serverLog) Debugf(format string, v ...any) { l.write(slog.LevelDebug, format, v) }

// Tracef is like Debugf.
func (l *serverLog) Tracef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }

// Warnf passes a warning on.
func (l *serverLog) Warnf(format string, v ...any) { l.write(slog.LevelWarn, format, v) }

// Errorf passes an error on.
func (l *serverLog) Errorf(format string, v ...any) { l.write(slog.LevelError, format, v) }

// Fatalf records why the server does not start; a library ends no process.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	if l.fatal == "" {
		l.fatal = strings.TrimSpace(fmt.Sprintf(format, v...))
	}
	l.mu.Unlock()
	l.write(slog.LevelError, format, v)
}

// failure is the first fatal message, empty if there was none.
func (l *serverLog) failure() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
