package broker_test

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// FuzzRequest sends any bytes as the JSON of a request of an open session. The
// broker answers, or ends that connection; it goes on in any case.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"op":"grant","bytes":4096,"chunks":1}`,
		`{"id":1,"op":"grant","bytes":18446744073709551615,"chunks":2147483647}`,
		`{"id":1,"op":"chunks","segment":0,"count":-1}`,
		`{"id":1,"op":"attach","chunk":4294967295,"serial":1}`,
		`{"id":1,"op":"peer","slot":4294967295,"serial":0}`,
		`{"id":1,"op":"segment","segment":16384,"serial":0,"write":true}`,
		`{"id":1,"op":"topic.open","kind":"topic","create":true,"depth":65536,"linger":1e308}`,
		`{"id":1,"op":"topic.open","name":"a/b","kind":"queue","create":true,"description":61440}`,
		`{"id":1,"op":"topic.write","topic":0,"topic_id":3,"offset":67108864}`,
		`{"id":1,"op":"topic.read","topic":0,"topic_id":3,"group":"g"}`,
		`{"id":1,"op":"topic.leave","topic":0,"topic_id":3,"role":"write","reader":1}`,
		`{"id":1,"op":"name.set","name":"n","refs":[{"index":524287,"serial":1,"generation":1}],"spilled":true}`,
		`{"id":1,"op":"name.set","name":"n","refs":[],"tensors":65535,"body":"AAAA"}`,
		`{"id":1,"op":"lease","refs":[{"index":0,"serial":1,"generation":1}],"seconds":1e308}`,
		`{"id":1,"op":"lease.claim","lease":9007199254740991}`,
		`{"id":1,"op":"list","what":"storages","cursor":"9007199254740991","limit":-1}`,
		`{"id":1,"op":"list","what":"leases","cursor":"9007199254740991"}`,
		`{"id":1,"op":"restore","items":[{"role":"broker","serial":0}]}`,
		`{"id":1,"op":"bye"}`,
		`{"id":18446744073709551615,"op":""}`,
		`{"op":["x"]}`,
		`null`,
	} {
		f.Add([]byte(seed))
	}
	b := serve(f, nil)
	watcher := connect(f, b.socket, "watcher")
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > protocol.MaxFrame {
			return
		}
		watcher.t = t
		p := connect(t, b.socket, "fuzz")
		raw := frame(uint32(len(data)), 0, 0, string(data))
		_, err := p.w.UnixConn.Write(raw)
		require.NoError(t, err)
		for {
			p.w.SetReadDeadline(time.Now().Add(patience))
			reply, fds, err := p.w.Read()
			wire.CloseAll(fds)
			if err != nil { // an answer to bye or to what is no JSON came before
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
				break
			}
			var e protocol.Envelope
			require.NoError(t, json.Unmarshal(reply, &e))
			if e.Event != "" {
				continue
			}
			require.True(t, e.Error != nil || len(e.OK) > 0)
			if e.Error != nil && e.Error.Code == protocol.CodeProtocol {
				continue // the connection ends
			}
			if ends(data) {
				continue
			}
			break
		}
		watcher.must(protocol.OpStatus, struct{}{}, nil)
		// The session would stay as long as this process: it may have been cut off.
		p.w.Close()
		h := helloOf("fuzz")
		h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret}
		again := &peer{t: t, w: dial(t, b.socket)}
		fds, err := again.call(protocol.OpHello, h, nil)
		wire.CloseAll(fds)
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrExpired, "it said bye")
			return
		}
		again.must(protocol.OpBye, struct{}{}, nil)
	})
}

func ends(data []byte) bool {
	var h struct{ Op string }
	return json.Unmarshal(data, &h) == nil && h.Op == protocol.OpBye
}

// FuzzLane has a session end with any bytes in its lane, its refcounts and its
// entries. The broker keeps what makes sense and goes on.
func FuzzLane(f *testing.F) {
	word := func(n byte) []byte { return append([]byte{n}, make([]byte, 7)...) }
	f.Add([]byte{}, uint64(0), uint8(0))
	f.Add(append(word(1), make([]byte, 200)...), uint64(1), uint8(1))
	f.Add(append(append(word(1), word(0)...), 2, 0, 0, 0, 1, 0, 1, 0), uint64(1<<63), uint8(9))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}, uint64(1<<52), uint8(255))
	b := serve(f, nil)
	watcher := connect(f, b.socket, "watcher")
	info := watcher.open(protocol.TopicOpenRequest{Name: "t", Kind: "topic", Create: true, Depth: ptr(uint32(2)), Description: ptr(uint32(128))})
	f.Fuzz(func(t *testing.T, data []byte, head uint64, count uint8) {
		watcher.t = t
		p := connect(t, b.socket, "fuzz")
		p.open(protocol.TopicOpenRequest{Name: "t", Kind: "topic"})
		w := p.writer(info)
		s := p.alloc(4096)
		// The storage's true name at places where a mutation may make a Ref of it.
		lane := p.file.Bytes(w.at+protocol.LaneSlotsAt, uint64(info.Slots)*uint64(info.Stride))
		copy(lane, data)
		if count&1 != 0 {
			p.file.Store64(w.at+protocol.LaneSlotsAt+protocol.SlotSize, s.Serial)
			p.file.Store64(w.at+protocol.LaneSlotsAt+protocol.SlotSize+8, s.Generation)
			p.file.Store64(w.at+protocol.LaneSlotsAt+protocol.SlotSize+16, uint64(s.Index))
		}
		copy(s.region.Bytes(0, 4096), data)
		p.file.Store64(w.at+protocol.LaneHead, head)
		p.file.Store64(protocol.SessionRefcounts+uint64(s.Index)*8, head)
		p.file.Store64(protocol.SessionEntries+uint64(s.Index)*protocol.EntrySize+protocol.EntryOffset, head*uint64(count))
		if p.bye() {
			p.file.Store64(protocol.SessionRefcounts+uint64(s.Index)*8, 0)
			require.False(t, p.bye())
		}
		watcher.must(protocol.OpList, map[string]any{"what": "topics"}, nil)
		watcher.must(protocol.OpList, map[string]any{"what": "storages"}, nil)
		require.LessOrEqual(t, b.Status().Counts.Sessions, 1)
	})
}
