// Package top shows what a broker's sessions, topics and names do: rates between two looks at
// its listings.
//
// Ownership: a [Screen] owns nothing but what it was given to look with.
//
// Concurrency: one goroutine uses a value of this package; the terminal library has its own.
//
// Hostile peers: names come from clients; they were made printable by the broker, and are cut
// to the terminal's width. Counts that a client writes of itself may be lies; they bound nothing.
package top
