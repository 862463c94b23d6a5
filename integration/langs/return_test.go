package langs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// A broker frees what a client gives back and dies before it has answered. The client asks
// the next broker, which does not know that memory any more: it is not allocated from again.
func TestMemoryWhoseReturnWasNotAnsweredIsNotUsedAgain(t *testing.T) {
	for _, l := range everyLanguage(t) {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.CrashPoint = "broker-free-record" })
			d, other := start(t, b, l), start(t, b, languages[0])
			d.do(command{"do": "hoard", "seed": 1, "count": 3})
			d.do(command{"do": "release"})
			d.ask(command{"do": "collect"})
			b.Crashed()
			b.Restart()
			var a answer
			d.Next(&a)
			require.Empty(t, a.Code+a.Broken, a.Message)
			d.do(command{"do": "set", "name": "w", "seed": nameSeed})
			other.do(command{"do": "get", "name": "w", "seed": nameSeed})
			d.do(command{"do": "delete", "name": "w"})
			leave(t, b, d, other)
		})
	}
}

// A name whose deletion was carried out and not answered is deleted: the next broker does not
// find it. One that was never set is not found.
func TestDeletionWhoseAnswerWasLostIsDone(t *testing.T) {
	for _, l := range everyLanguage(t) {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.CrashPoint = "broker-name-deleted" })
			d := start(t, b, l)
			d.do(command{"do": "set", "name": "w", "seed": nameSeed})
			d.ask(command{"do": "delete", "name": "w"})
			b.Crashed()
			b.Restart()
			var a answer
			d.Next(&a)
			require.Empty(t, a.Code+a.Broken, a.Message)
			d.ask(command{"do": "delete", "name": "w"})
			a = answer{}
			d.Next(&a)
			require.Equal(t, "NotFound", a.Code)
			leave(t, b, d)
		})
	}
}

// A process that is suspended while brokers change keeps its session and all that it holds,
// though no other process has the broker file.
func TestWhoStandsStillAloneWhileBrokersChangeKeepsItsSession(t *testing.T) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			d := start(t, b, l)
			d.do(command{"do": "set", "name": "w", "seed": nameSeed})
			d.do(command{"do": "put", "queue": "q", "redeliver": true, "seed": 40, "count": 1})
			d.do(command{"do": "hoard", "seed": 60, "count": 3})
			d.Stop()
			b.Kill()
			b.Restart()
			c := b.Connect() // when the broker waits for no session any more
			require.NoError(t, c.Close())
			d.Cont()
			d.do(command{"do": "check"})
			d.do(command{"do": "get", "name": "w", "seed": nameSeed})
			d.do(command{"do": "take", "queue": "q", "redeliver": true})
			d.do(command{"do": "hoard", "seed": 80, "count": 3})
			d.do(command{"do": "check"})
			d.do(command{"do": "delete", "name": "w"})
			leave(t, b, d)
		})
	}
}
