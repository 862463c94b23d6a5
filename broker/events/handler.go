package events

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/baton-ipc/baton/protocol"
)

// kindKey is the attribute of a log line that says which kind of event it is.
const kindKey = "event"

// LeftOut is the attribute with the number of lines of the same text that were not written before a line. Its event counts
// them.
const LeftOut = "left_out"

// Of gives a log line its kind. A line below the level INFO is an event only if it has a kind.
func Of(kind string) slog.Attr { return slog.String(kindKey, kind) }

// handler keeps log lines as events, and passes on those that the next handler wants.
type handler struct {
	ring  *Ring
	next  slog.Handler
	attrs []slog.Attr // of With
}

// Handler makes a handler that keeps lines as events, whichever of them the next handler wants.
func (r *Ring) Handler(next slog.Handler) slog.Handler { return &handler{ring: r, next: next} }

func (h *handler) Enabled(context.Context, slog.Level) bool { return true }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.ring, h.next.WithAttrs(attrs), slices.Concat(h.attrs, attrs)}
}

// WithGroup is of no use here: an event's details have one level.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.ring, h.next.WithGroup(name), h.attrs}
}

func (h *handler) Handle(ctx context.Context, line slog.Record) error {
	kind, times := "", 1
	var details bytes.Buffer
	add := func(a slog.Attr) bool {
		if a.Key == kindKey && a.Value.Kind() == slog.KindString {
			kind = a.Value.String()
		} else if a.Key == LeftOut && a.Value.Kind() == slog.KindInt64 {
			times += int(a.Value.Int64())
		} else {
			appendDetail(&details, a)
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	if line.Level < slog.LevelInfo {
		kind = "" // only a line that names its own kind is an event at any level
	}
	line.Attrs(add)
	if kind == "" && line.Level >= slog.LevelInfo {
		kind = Broker
	}
	if kind != "" {
		e := protocol.Event{At: line.Time, Level: strings.ToLower(line.Level.String()), Kind: kind, Text: cut(line.Message, mostText)}
		if times > 1 {
			e.Times, e.Until = times, &e.At
		}
		if details.Len() > 0 {
			e.Details = append(details.Bytes(), '}')
		}
		h.ring.add(e)
	}
	if !h.next.Enabled(ctx, line.Level) {
		return nil
	}
	return h.next.Handle(ctx, line)
}

// appendDetail writes one more member of an object, if there is room for it.
func appendDetail(to *bytes.Buffer, a slog.Attr) {
	v := a.Value.Resolve()
	var value any
	switch v.Kind() {
	case slog.KindInt64, slog.KindUint64, slog.KindFloat64, slog.KindBool:
		value = v.Any()
	case slog.KindDuration:
		value = v.Duration().Round(time.Microsecond).String()
	default:
		if err, is := v.Any().(error); is {
			value = cut(err.Error(), mostDetails/2)
		} else {
			value = cut(fmt.Sprint(v.Any()), mostDetails/2)
		}
	}
	data, err := json.Marshal(value)
	key, _ := json.Marshal(a.Key)
	if err != nil || to.Len()+len(key)+len(data)+2 > mostDetails {
		return
	}
	if to.Len() == 0 {
		to.WriteByte('{')
	} else {
		to.WriteByte(',')
	}
	to.Write(key)
	to.WriteByte(':')
	to.Write(data)
}

// cut shortens a text, between characters.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}
