package client

import (
	"time"
)

// compareEvery is how often a client that maps anything of others compares it with the
// broker's records, although no event asks for it: an event may be lost with a
// connection.
const compareEvery = 5 * time.Second

// compare finds what the broker has taken back: segments that are mapped here and
// recorded no more, lanes that were left and are listed no more, and the files of
// sessions that are over. A broker that is away takes nothing back.
func (c *Client) compare() {
	if c.link.isAway() {
		return
	}
	p := c.pages
	var gone []uint64
	c.mu.Lock()
	for serial, e := range c.segments {
		if !e.own && p.segmentSerial(e.Index) != serial {
			gone = append(gone, serial)
		}
	}
	c.mu.Unlock()
	p.lanes.compare(p.listed)
	c.trim(gone)
	c.forgetEnded()
	c.handOverOwed()
	for _, t := range c.got.forgetDeleted() {
		t.close()
	}
}
