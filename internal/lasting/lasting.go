// Package lasting logs once what lasts, and not each time that it is met: a full directory, a
// file that cannot be made again. It imports no other package of this module.
package lasting

import "log/slog"

// Trouble is one such state of affairs. The zero value is none. Its user sees to it that one
// goroutine notes at a time.
type Trouble struct{ text string }

// Note logs err with a message, as an error, unless the trouble is known with the same text. nil
// ends the trouble, so that the next one is logged again.
func (t *Trouble) Note(log *slog.Logger, message string, err error, args ...any) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != t.text {
		log.Error(message, append(args, "error", err)...)
	}
	t.text = text
}
