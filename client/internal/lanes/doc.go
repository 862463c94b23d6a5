// Package lanes is the topics, queues and names of a session: the lanes that it writes, those of
// others that it reads, groups, and readers with their cursors. It moves references and bytes
// that describe them, and knows no tensors.
//
// A send is Begin, ReserveSlot, Publish, End, all in the writer's turn; the content is its caller's.
// A reader takes into what its caller brings. Hand-over asks no broker: while one is away the
// lanes and groups that are known serve.
package lanes
