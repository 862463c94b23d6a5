// Package events keeps the last things that happened at a broker: sessions that
// came and died, refusals, takeovers, names. They are what it logs, each with a kind.
//
// Ownership: a [Ring] owns its events; [Ring.Since] gives copies.
//
// Concurrency: any goroutine. A Ring takes its own lock for a moment and makes no call
// with it, so a line may be logged with the broker's mutex held.
//
// Hostile peers: texts that clients choose come printable and bounded; an event is cut
// to a bounded size, and what repeats itself is counted in one event.
//
// Death: a killed broker's events are gone. A broker that hands over gives its events along.
package events
