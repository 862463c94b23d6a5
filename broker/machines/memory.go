package machines

import (
	"context"

	"github.com/baton-ipc/baton/protocol"
)

// Memory is the shared memory of this host, as a session of its broker has it.
type Memory interface {
	// Hold takes a reference of the storage of a handle, by the rules of one machine, for a namespace of which the
	// storage has to be. The lease of the handle is not redeemed.
	Hold(ctx context.Context, ns string, h *protocol.Handle) (Held, error)
	// Make gives memory for a storage of another host.
	Make(ctx context.Context, ns string, bytes uint64) (Filling, error)
	// Collect finds out which memory of Make is free.
	Collect()
	// Close ends the session.
	Close()
}

// Held is a reference of a storage here.
type Held interface {
	// Bytes are those of the whole storage, until Release.
	Bytes() []byte
	// Claim redeems the lease of the handle, if it has one.
	Claim(ctx context.Context) error
	Release()
}

// Filling is memory that is filled, and read by others afterwards.
type Filling interface {
	// Bytes may be written until the first call of Handle, and not after Release.
	Bytes() []byte
	// Handle makes a handle of the memory, with a lease that is good once.
	Handle(ctx context.Context) (protocol.Handle, error)
	// Release lets the reference go. Again takes it again, if the memory is not used for something else: ErrExpired.
	Release()
	Again(ctx context.Context) error
}
