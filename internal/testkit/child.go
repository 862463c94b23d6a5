package testkit

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/baton-ipc/baton/client"
)

// Child is a role's side of its process: what it was told and what it tells.
type Child struct {
	ctx   context.Context
	lines chan []byte
	mu    sync.Mutex // one line at a time
}

func newChild() *Child {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Child{ctx: ctx, lines: make(chan []byte, 1024)}
	go func() {
		defer cancel()
		defer close(c.lines)
		in := bufio.NewScanner(os.Stdin)
		in.Buffer(nil, 4<<20)
		for in.Scan() {
			c.lines <- append([]byte(nil), in.Bytes()...)
		}
	}()
	return c
}

// Context ends when the parent wants no more of this child, or has died.
func (c *Child) Context() context.Context { return c.ctx }

// Config decodes what the parent gave to Start.
func (c *Child) Config(v any) error {
	if err := json.Unmarshal([]byte(os.Getenv(envConfig)), v); err != nil {
		return fmt.Errorf("configuration of the role: %w", err)
	}
	return nil
}

// Say sends a value to the parent, as one line of JSON. Any goroutine.
func (c *Child) Say(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = os.Stdout.Write(append(line, '\n'))
	return err
}

// Hear waits for the parent's next line and decodes it; io.EOF when the parent
// wants no more.
func (c *Child) Hear(v any) error {
	line, ok := <-c.lines
	if !ok {
		return io.EOF
	}
	return json.Unmarshal(line, v)
}

// TryHear is Hear for when there may be nothing: then it returns false.
func (c *Child) TryHear(v any) (bool, error) {
	select {
	case line, ok := <-c.lines:
		if !ok {
			return false, io.EOF
		}
		return true, json.Unmarshal(line, v)
	default:
		return false, nil
	}
}

// Connect opens a session with the test's broker.
func (c *Child) Connect(opts ...client.Option) (*client.Client, error) {
	return client.Connect(c.ctx, opts...)
}
