package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// pair returns two connected ends.
func pair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(shortdir.New(t), "s"), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	a, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	b, err := l.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return New(a), New(b)
}

func TestFramesKeepTheirBytesAndTheirDescriptors(t *testing.T) {
	a, b := pair(t)
	sent := make(chan error, 1)
	go func() {
		for i := 1; i <= 20; i++ {
			var fds []*sys.FD
			for k := 0; k < i%4; k++ {
				fd, err := sys.CreateMemfd("baton-wire", int64(4096*i+k))
				if err != nil {
					sent <- err
					return
				}
				fds = append(fds, fd)
			}
			err := a.Write(map[string]any{"i": i, "pad": string(bytes.Repeat([]byte{'x'}, i*5000))}, fds...)
			CloseAll(fds)
			if err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := 1; i <= 20; i++ {
		data, fds, err := b.Read()
		require.NoError(t, err)
		var got struct{ I int }
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, i, got.I)
		require.Len(t, fds, i%4)
		for k, fd := range fds {
			size, _, err := fd.Stat()
			require.NoError(t, err)
			require.EqualValues(t, 4096*i+k, size, "descriptors stay with their frame, in order")
		}
		CloseAll(fds)
	}
	require.NoError(t, <-sent)
}

func frame(n uint32, fds, zero uint16, body string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, n)
	b = binary.LittleEndian.AppendUint16(b, fds)
	b = binary.LittleEndian.AppendUint16(b, zero)
	return append(b, body...)
}

func TestReadRefusesFramesThatLie(t *testing.T) {
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"gigabyte":             {frame(1<<30, 0, 0, "{}"), protocol.ErrProtocol},
		"too many descriptors": {frame(2, 65, 0, "{}"), protocol.ErrProtocol},
		"missing descriptors":  {frame(2, 1, 0, "{}"), protocol.ErrProtocol},
		"reserved field":       {frame(2, 0, 1, "{}"), protocol.ErrProtocol},
		"half a head":          {frame(2, 0, 0, "{}")[:5], io.ErrUnexpectedEOF},
		"half a body":          {frame(9, 0, 0, "{}"), io.ErrUnexpectedEOF},
		"nothing":              {nil, io.EOF},
	} {
		a, b := pair(t)
		_, err := a.UnixConn.Write(c.bytes)
		require.NoError(t, err)
		a.Close()
		_, _, err = b.Read()
		require.ErrorIs(t, err, c.want, name)
		if name == "reserved field" {
			require.ErrorContains(t, err, name)
		}
	}
}

func TestDescriptorsThatNoFrameAnnouncesEndTheConnection(t *testing.T) {
	a, b := pair(t)
	fd, err := sys.CreateMemfd("baton-wire", 4096)
	require.NoError(t, err)
	defer fd.Close()
	ns := make([]int, 100)
	for i := range ns {
		ns[i] = fd.Int()
	}
	go func() {
		for i := 0; i < 4; i++ {
			a.WriteMsgUnix(frame(2, 0, 0, "{}"), sys.PassFDs(ns), nil)
		}
		a.Close()
	}()
	for err = nil; err == nil; {
		_, _, err = b.Read()
	}
	require.ErrorIs(t, err, protocol.ErrProtocol)
	require.Empty(t, b.fds, "and are closed")
}

func FuzzRead(f *testing.F) {
	f.Add(frame(2, 0, 0, "{}"))
	f.Add(frame(1<<31, 3, 0, "{}"))
	f.Add(frame(0, 0, 0, ""))
	f.Add(append(frame(2, 0, 0, "{}"), 1, 2, 3))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 60<<10 {
			return // more than a socket takes without a reader
		}
		a, b := pair(t)
		if _, err := a.UnixConn.Write(data); err != nil {
			t.Skip(err)
		}
		a.Close()
		for total := 0; ; {
			got, fds, err := b.Read()
			if err != nil {
				return
			}
			if total += protocol.FrameHead + len(got); total > len(data) || len(fds) > 0 {
				t.Fatalf("read %d bytes and %d descriptors out of %d bytes", total, len(fds), len(data))
			}
		}
	})
}

func TestStrangerCannotMakeThisEndKeepMuch(t *testing.T) {
	a, far := pair(t)
	b := NewStranger(far.UnixConn)
	var head [protocol.FrameHead]byte
	binary.LittleEndian.PutUint32(head[:], strangeFrame+1)
	_, err := a.UnixConn.Write(head[:])
	require.NoError(t, err)
	_, _, err = b.Read()
	require.ErrorContains(t, err, "at most 32768 are taken")
	require.LessOrEqual(t, len(b.buf), 64<<10)
}

func TestDescriptorsOfAStrangerAreNotKept(t *testing.T) {
	a, far := pair(t)
	b := NewStranger(far.UnixConn)
	fd, err := sys.CreateMemfd("baton-wire", 4096)
	require.NoError(t, err)
	defer fd.Close()
	many := make([]*sys.FD, 60)
	for i := range many {
		many[i] = fd
	}
	require.NoError(t, a.Write(struct{}{}, many...))
	_, _, err = b.Read()
	require.ErrorIs(t, err, protocol.ErrTooMany, "the kernel drops what there is no room for")
	require.LessOrEqual(t, len(b.fds), strangeFDs+1)
	b.Discard()
}

func TestRoomForALongFrameIsMadeAsItComesAndGivenBack(t *testing.T) {
	a, b := pair(t)
	var head [protocol.FrameHead]byte
	binary.LittleEndian.PutUint32(head[:], protocol.MaxFrame)
	_, err := a.UnixConn.Write(head[:])
	require.NoError(t, err)
	long := append([]byte(`{"pad":"`), bytes.Repeat([]byte{'x'}, protocol.MaxFrame-10)...)
	long = append(long, `"}`...)
	sent := make(chan error, 1)
	go func() {
		_, err := a.UnixConn.Write(long)
		if err == nil {
			err = a.Write(struct{}{})
		}
		sent <- err
	}()
	data, _, err := b.Read()
	require.NoError(t, err)
	require.Equal(t, long, data)
	data, _, err = b.Read()
	require.NoError(t, err)
	require.Equal(t, "{}", string(data))
	require.NoError(t, <-sent)
	go a.Write(struct{}{})
	_, _, err = b.Read()
	require.NoError(t, err)
	require.LessOrEqual(t, len(b.buf), 4*usual)
}
