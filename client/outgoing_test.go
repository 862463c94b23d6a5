package client

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTensorOfAnotherBrokerIsRefusedAndNamed(t *testing.T) {
	c := &Client{s: &session{pages: &pages{instance: "a0", serial: 3}}}
	other := &Client{s: &session{pages: &pages{instance: "b1", serial: 3}}}
	err := c.notOurs(&Tensor{c: other, held: &holding{}}, "x/0")
	require.EqualError(t, err, `baton: tensor "x/0" belongs to another session: to 3 of broker b1, and this is 3 of broker a0 (copy its elements into this session)`)
	require.ErrorContains(t, c.notOurs(&Tensor{}, ""), "the tensor belongs to no session")
}
