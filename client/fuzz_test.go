package client

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// FuzzControl answers a client with any bytes in place of a broker's frames:
// whatever comes, each call ends, nothing panics, no descriptor is left open.
func FuzzControl(f *testing.F) {
	frame := func(fds uint16, text string) []byte {
		head := make([]byte, protocol.FrameHead)
		binary.LittleEndian.PutUint32(head, uint32(len(text)))
		binary.LittleEndian.PutUint16(head[4:], fds)
		return append(head, text...)
	}
	hello := `{"id":1,"ok":{"protocol":1,"layout":1,"instance":"00","slot":1,"serial":2}}`
	for _, seed := range [][]byte{
		nil,
		frame(0, hello),
		frame(1, hello),
		frame(0, `{"id":1,"error":{"code":"TooMany","message":"full","remedy":"wait","detail":{"limit":1}}}`),
		frame(0, `{"id":0,"error":{"code":"Version","message":"other"}}`),
		frame(0, `{"id":18446744073709551615,"ok":null}`),
		frame(0, `{"id":1,"ok":[1,2]}`),
		append(frame(0, `{"event":"trim","segments":[{"segment":4294967295,"serial":1}],"lanes":[0,18446744073709551615]}`), frame(0, hello)...),
		append(frame(0, `{"event":"room"}`), frame(0, `{"event":7}`)...),
		frame(0, `[]`), frame(65535, `{}`), []byte("\xff\xff\xff\xff\x00\x00\x00\x00"), []byte("\x05\x00\x00\x00\x00\x00\x01\x00hello"),
	} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		before := openFiles(t)
		address := shortdir.New(t) + "/s"
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
		require.NoError(t, err)
		go func() {
			defer l.Close()
			u, err := l.AcceptUnix()
			if err != nil {
				return
			}
			broker := wire.New(u)
			defer broker.Close()
			for _, answer := range [][]byte{first, second} {
				if _, fds, err := broker.Read(); err != nil {
					return
				} else {
					wire.CloseAll(fds)
				}
				null, err := sys.CreateMemfd("baton-fuzz", 1)
				if err != nil {
					return
				}
				broker.WriteFrame(answer, []*sys.FD{null})
				null.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err = Connect(ctx, WithAddress(address))
		l.Close() // where it had no time to come, no process does
		if err == nil {
			t.Fatal("a session without its files")
		}
		deadline := time.Now().Add(time.Minute)
		for openFiles(t) > before {
			if time.Now().After(deadline) {
				t.Fatalf("%d files are open, %d were before", openFiles(t), before)
			}
			<-time.After(time.Millisecond)
		}
	})
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
