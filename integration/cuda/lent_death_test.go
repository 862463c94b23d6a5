package cuda

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/baton-ipc/baton/internal/testkit"
)

// The driver refuses a dead process's memory before the broker reports the death, here
// long before, because it is suspended: a session that opens the memory waits for its word.
func TestOwnerOfLentMemoryDiesWhileTheBrokerStands(t *testing.T) {
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		owner, borrower := m.speak(t, languages[0]), m.speak(t, l)
		owner.do(command{"do": "lend", "queue": "q", "bytes": 300_000, "seed": 3, "count": 3})
		borrower.do(command{"do": "take", "queue": "q", "count": 3, "unread": true})
		m.Process().Stop()
		owner.Kill()
		borrower.Tell(command{"do": "held"})
		time.Sleep(longerThanABorrowerWaits)
		m.Process().Cont()
		var a answer
		borrower.Next(&a)
		assert.Equal(t, "Expired", a.Code, "%s", a.Message+a.Broken)
		borrower.do(command{"do": "release"})
		borrower.Done()
		m.empty(t)
	})
}

// longerThanABorrowerWaits for the news of a death once the broker has answered. A shorter
// time would let a client pass that does not ask the broker first.
const longerThanABorrowerWaits = 2500 * time.Millisecond

// What no session took before its owner ended is lost. A later item says how much was, when the
// dead owner's lane has gone.
func TestLentMessagesOfADeadOwnerArePassedOver(t *testing.T) {
	couples(t, func(t *testing.T, m machine, owner, taker *speaker) {
		taker.do(command{"do": "take", "queue": "q", "count": 0}) // keeps the queue
		owner.do(command{"do": "lend", "queue": "q", "seed": 3, "count": 3})
		owner.Kill()
		testkit.Gone(t, m.Broker, owner.PID())
		next, lost := m.speak(t, languages[0]), 0.0
		testkit.Until(t, "all that was lost is told", func() (bool, string) {
			next.do(command{"do": "put", "queue": "q", "seed": 9})
			told := taker.do(command{"do": "take", "queue": "q", "unread": true})
			for _, n := range told {
				lost += n.(float64)
			}
			assert.Equal(t, numbers(9, 1), taker.do(command{"do": "held"}))
			taker.do(command{"do": "release"})
			return lost == 3, fmt.Sprint(lost)
		})
		taker.Done()
		next.Done()
		m.empty(t)
	})
}
