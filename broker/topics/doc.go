// Package topics is the broker's part for topics, queues and names: their records,
// lanes, groups and readers. It adopts what ended sessions have sent, and drops it when no
// reader needs it any more.
//
// Ownership: [Topics] owns the files of groups until they end or [Topics.Close].
// Lanes lie in the files of sessions, which they keep. What names and adopted
// lanes name is counted in the broker's refcounts.
//
// Concurrency: all of it is called with the broker's mutex held. [Watcher] and
// [Client] are called with it as well.
//
// Hostile peers: a session writes its own lanes and the claims of the groups that it
// joined. What stands there is copied once and checked; nonsense spoils these alone.
//
// Death: a session leaves in three steps, [Topics.Leave], [Topics.DropNames] and
// [Topics.Finish]. Its lanes are adopted before the memory empties its refcounts.
package topics
