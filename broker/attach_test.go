package broker_test

import (
	"testing"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// attachChunk asks for the chunk of a storage, with its file.
func attachChunk(s storage) protocol.AttachChunk {
	return protocol.AttachChunk{Chunk: s.grant.Chunks[0].Chunk, Serial: s.Serial, File: true}
}

func TestManyChunksAreAttachedAtOnceWithTheirFiles(t *testing.T) {
	b := serve(t, nil)
	reader := connect(t, b.socket, "reader")
	var owners []*peer
	var storages []storage
	for range 3 {
		p := connect(t, b.socket, "owner")
		owners, storages = append(owners, p), append(storages, p.alloc(4096))
	}
	gone := attachChunk(storages[1])
	gone.Serial += 1000
	unread := attachChunk(storages[2])
	unread.File = false
	var ok protocol.AttachReply
	fds, err := reader.call(protocol.OpAttach, protocol.Attach{Chunks: []protocol.AttachChunk{attachChunk(storages[0]), gone, unread, attachChunk(storages[1])}}, &ok)
	require.NoError(t, err)
	require.Len(t, ok.Chunks, 4)
	require.Equal(t, protocol.CodeExpired, ok.Chunks[1].Error.Code, "one that is gone does not keep the client from the others")
	require.Len(t, fds, 2)
	for i, k := range map[int]int{0: 0, 2: 2, 3: 1} {
		require.Nil(t, ok.Chunks[i].Error)
		require.Equal(t, owners[k].hello.Serial, ok.Chunks[i].OwnerSerial)
		require.Equal(t, storages[k].grant.SegmentSerial, ok.Chunks[i].SegmentSerial)
	}
	require.Zero(t, ok.Chunks[2].Bytes, "its file was not asked for")
	for i, fd := range fds {
		k := []int{0, 1}[i]
		size, _, err := fd.Stat()
		require.NoError(t, err)
		require.EqualValues(t, storages[k].grant.Bytes, size)
		_, err = sys.Map(fd, protocol.PageBytes, true)
		require.Error(t, err, "for reading alone")
		require.NoError(t, fd.Close())
	}
}
