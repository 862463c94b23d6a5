package client

import (
	"testing"

	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/session"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/stretchr/testify/require"
)

func TestTensorOfAnotherBrokerIsRefusedAndNamed(t *testing.T) {
	c := &Client{s: &session.Session{Files: &sessionfiles.Files{Instance: "a0", Serial: 3}}}
	other := &Client{s: &session.Session{Files: &sessionfiles.Files{Instance: "b1", Serial: 3}}}
	err := c.notOurs(&Tensor{c: other, held: &memory.Holding{}}, "x/0")
	require.EqualError(t, err, `baton: tensor "x/0" belongs to another session: to 3 of broker b1, and this is 3 of broker a0 (copy its elements into this session: Alloc a tensor there, and copy from Slice to Slice)`)
	require.ErrorContains(t, c.notOurs(&Tensor{}, ""), "the tensor belongs to no session")
}
