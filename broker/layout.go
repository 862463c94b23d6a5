package broker

import "github.com/baton-ipc/baton/protocol"

// rowPart is where a chunk's words stand in a session file, and their bytes.
func rowPart(chunk uint32) (at, bytes int64) {
	const n = protocol.ChunkIndices * protocol.RowWordSize
	return protocol.SessionRow + int64(chunk)*n, n
}

// entryPart is where a chunk's entries stand in a session file, and their bytes.
func entryPart(chunk uint32) (at, bytes int64) {
	const n = protocol.ChunkIndices * protocol.EntrySize
	return protocol.SessionEntries + int64(chunk)*n, n
}
