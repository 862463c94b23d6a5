package session

import (
	"context"
	"sync"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// keepers are the closed clients that still hold something: one for each instance.
// What others hold that are closed later is counted in the keeper's refcounts, so that
// their slots come free; see docs/decisions/0009-closed-sessions.md.
var keepers = struct {
	mu sync.Mutex // held across calls to the broker; taken first
	of map[string]*Session
}{of: map[string]*Session{}}

// keep makes the client its instance's keeper, or moves what it holds to the one
// there is. It tells whether the session is over then.
func (e *ending) keep(ctx context.Context) (over bool, err error) {
	s := e.s
	s.Memory.Reap()
	keepers.mu.Lock()
	defer keepers.mu.Unlock()
	k := keepers.of[s.Files.Instance]
	if k == nil {
		keepers.of[s.Files.Instance], e.kept = s, true
	}
	s.Memory.LetGo()
	if k != nil && k != s {
		if err := k.Memory.TakeOver(ctx, s.Memory, k.Link.AskNow); err != nil {
			return false, err
		}
		if err := k.Link.AskNow(ctx, protocol.OpBye, nil, nil); err != nil {
			return false, err // its own goroutine finds out why
		}
		crashpoint.At("keeper-told")
		// Now, since many may be closed before its own goroutine looks.
		k.Memory.LetGo()
	}
	held, err := e.bye(ctx)
	return err == nil && !held, err
}

// leave ends being a keeper.
func (e *ending) leave() {
	if e.kept {
		keepers.mu.Lock()
		delete(keepers.of, e.s.Files.Instance)
		keepers.mu.Unlock()
	}
}
