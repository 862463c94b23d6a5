// Package tail keeps the end of what a process writes on standard error: what it said
// last tells why it failed, and all that it says may be too much to keep.
package tail

import (
	"strings"
	"sync"
)

// Buffer keeps the last bytes that are written to it. Any goroutine.
type Buffer struct {
	limit int

	mu   sync.Mutex // guards text
	text []byte
}

// New makes a buffer that keeps at most limit bytes.
func New(limit int) *Buffer { return &Buffer{limit: limit} }

// Write takes all of p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	if over := len(b.text) - b.limit; over > 0 {
		b.text = append(b.text[:0], b.text[over:]...)
	}
	return len(p), nil
}

// String returns what is kept, without space around it.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(string(b.text))
}
