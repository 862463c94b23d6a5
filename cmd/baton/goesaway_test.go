package main_test

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// endsFirst is a socket at which so many connections end once something has come, as at a broker that hands over
// at that moment; then they lead to the broker.
func (p *place) endsFirst(n int32) (address string, came *atomic.Int32) {
	p.t.Helper()
	path := p.file("before.sock")
	l, err := net.Listen("unix", path)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { l.Close() })
	came = &atomic.Int32{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if came.Add(1) <= n {
				c.Read(make([]byte, 1<<16))
				c.Close()
				continue
			}
			b, err := net.Dial("unix", p.socket())
			if err != nil {
				c.Close()
				continue
			}
			go func() {
				io.Copy(b, c)
				b.(*net.UnixConn).CloseWrite()
			}()
			go func() {
				io.Copy(c, b)
				c.Close()
				b.Close()
			}()
		}
	}()
	return "unix:" + path, came
}

// While a broker replaces another one, commands that look are answered by the next one.
func TestCommandsAskTheNextBrokerWhereOneGoesAway(t *testing.T) {
	p := newPlace(t)
	p.serve()
	for _, args := range [][]string{{"ping"}, {"status"}, {"ls", "sessions"}, {"events"}} {
		address, came := p.endsFirst(2)
		p.must(append(args, "--address", address)...)
		assert.EqualValues(t, 3, came.Load(), "%v", args)
		require.NoError(t, os.Remove(p.file("before.sock")))
	}
}

// One that changes something is not asked for twice.
func TestACommandThatMayHaveBeenReadIsNotRepeated(t *testing.T) {
	p := newPlace(t)
	p.serve()
	address, came := p.endsFirst(1)
	p.baton("collect", "--address", address).fails(t, 4, "what was asked for may have been done", "look with")
	assert.EqualValues(t, 1, came.Load())
}
