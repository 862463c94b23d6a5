package langs

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

const (
	known  = 3   // the seed of a tensor of which there is a handle
	secret = 100 // of those that were never given away
)

// opened counts the handles like a true one that open something in a driver's session.
// None opens a tensor of the secret seeds.
func opened(d *driver, like protocol.Handle) (n int) {
	h := like
	h.Lease = nil
	for h.Generation = 1; h.Generation < 3; h.Generation++ {
		for h.Offset = 0; h.Offset < 8*protocol.Alignment; h.Offset += protocol.Alignment {
			first := like.Index / protocol.ChunkIndices * protocol.ChunkIndices
			for h.Index = first; h.Index < first+protocol.ChunkIndices; h.Index++ {
				if a := d.try(command{"do": "open", "handle": h, "seed": known}); a.Code == "" {
					require.Empty(d.t, a.Broken, "%v opens what was never given away", h)
					n++
				}
			}
		}
	}
	return n
}

// A tensor that was never sent, named or exported as a handle is opened by no handle, in
// its owner's session and in another, whatever the languages of both. Once there is a
// handle it can be opened.
func TestTensorThatWasGivenToNobodyIsOpenedByNoHandle(t *testing.T) {
	for _, owner := range everyLanguage(t) {
		for _, other := range everyLanguage(t) {
			if owner.name == "go" && other.name == "go" {
				continue // package client has these
			}
			t.Run(owner.name+" from "+other.name, func(t *testing.T) {
				b := testkit.StartBroker(t)
				from, to := start(t, b, owner), start(t, b, other)
				var like protocol.Handle
				made := from.do(command{"do": "handle", "seed": known, "words": 4})
				require.NoError(t, json.Unmarshal(made.Handle, &like))
				from.do(command{"do": "hoard", "seed": secret, "count": 5, "words": 4})
				require.Equal(t, 1, opened(to, like))
				require.Equal(t, 1, opened(from, like))
				from.do(command{"do": "handle", "seed": known, "words": 4})
				require.Equal(t, 2, opened(to, like), "as soon as there is a handle of another one")
				from.Done()
				to.Done()
			})
		}
	}
}
