package cuda

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/baton-ipc/baton/internal/testkit"
)

// lenders are two Python processes, one of which has lent three tensors to the other.
func lenders(t *testing.T) (m machine, owner, borrower *speaker) {
	t.Helper()
	standinOnly(t)
	py := languages[2]
	py.with(t)
	m = start(t, 1)
	owner, borrower = m.speak(t, py), m.speak(t, py)
	owner.do(command{"do": "lend", "queue": "q", "bytes": 300_000, "seed": 3, "count": 3})
	assert.Equal(t, numbers(3, 3), borrower.do(command{"do": "take", "queue": "q", "count": 3, "hold": true}))
	return m, owner, borrower
}

// The driver's stand-in ends an owner who frees what a borrower has open.
func TestOwnerFreesWhatNobodyBorrowsAnyMore(t *testing.T) {
	m, owner, borrower := lenders(t)
	owner.Tell(command{"do": "free"})
	assert.Equal(t, numbers(3, 3), borrower.do(command{"do": "held"}))
	borrower.do(command{"do": "release"})
	var a answer
	owner.Next(&a)
	assert.Empty(t, a.Message+a.Broken)
	owner.Done()
	borrower.Done()
	m.empty(t)
}

func TestBorrowerIsKilled(t *testing.T) {
	m, owner, borrower := lenders(t)
	borrower.Kill()
	owner.do(command{"do": "free"})
	owner.Done()
	m.empty(t)
}

// ownerIsKilled ends the owner: what the borrower holds is Expired then, and leaves nothing.
func ownerIsKilled(t *testing.T, m machine, owner, borrower *speaker) {
	t.Helper()
	owner.Kill()
	testkit.Gone(t, m.Broker, owner.PID())
	assert.Equal(t, "Expired", borrower.try(command{"do": "held"}).Code)
	borrower.do(command{"do": "release"})
	borrower.Done()
	m.empty(t)
}

func TestOwnerOfBorrowedMemoryIsKilled(t *testing.T) {
	m, owner, borrower := lenders(t)
	ownerIsKilled(t, m, owner, borrower)
}

func TestBorrowedMemoryOutlivesTheBroker(t *testing.T) {
	m, owner, borrower := lenders(t)
	m.Kill()
	m.Restart()
	assert.Equal(t, numbers(3, 3), borrower.do(command{"do": "held"}))
	owner.do(command{"do": "lend", "queue": "q", "seed": 9})
	assert.Equal(t, numbers(9, 1), borrower.do(command{"do": "take", "queue": "q"}))
	ownerIsKilled(t, m, owner, borrower)
}
