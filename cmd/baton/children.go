package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
)

// children are the processes for which a session keeps memory: its process has forked them, they could not count what
// they inherited, and have its memory mapped until they end or exec. The broker knows that there are some, and this
// command looks in /proc which.
type children struct {
	Children []child `json:"children,omitempty"`
	// Unseen are processes that this user may not look at, and that may be such children.
	Unseen int `json:"unseen_processes,omitempty"`
}

// child is one of them.
type child struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
}

// childrenOf finds the children of a session's process; nil: it keeps nothing for any.
func childrenOf(s *broker.SessionRow) *children {
	if s.ProgramFile == nil {
		return nil
	}
	pids, unseen, err := sys.ProcessesMapping(sys.FileID{Dev: s.ProgramFile.Device, Ino: s.ProgramFile.Inode})
	if err != nil {
		return &children{Unseen: 1}
	}
	c := &children{Unseen: unseen}
	for _, pid := range pids {
		if pid != s.PID {
			c.Children = append(c.Children, child{pid, sys.CommandLine(pid)})
		}
	}
	if len(c.Children) == 0 && !s.ForChildren { // a fork is under way, and its child may still count
		return nil
	}
	return c
}

// end is the command that ends them; "": none is known.
func (c *children) end() string {
	if c == nil || len(c.Children) == 0 {
		return ""
	}
	words := []string{"kill"}
	for _, child := range c.Children {
		words = append(words, strconv.Itoa(child.PID))
	}
	return strings.Join(words, " ")
}

// lacks says why there may be more of them than were found; "": all processes were looked at.
func (c *children) lacks() string {
	if c.Unseen > 0 {
		text := fmt.Sprintf("there may be more: %s of the processes here cannot be looked at by this user", number(c.Unseen))
		if os.Getuid() != 0 {
			text += "; root sees them"
		}
		return text
	}
	if len(c.Children) == 0 {
		return "none is seen from here: look in the container or pod of the program"
	}
	return ""
}

// childrenText lists the children of a session's process.
func (a *app) childrenText(c *children) string {
	var rows [][]string
	for _, child := range c.Children {
		rows = append(rows, []string{strconv.Itoa(child.PID), child.Command, "kill " + strconv.Itoa(child.PID)})
	}
	text := " none found"
	if len(rows) > 0 {
		text = "\n" + a.table(&layout{header: []string{"pid", "command", "ends it"}, right: []string{"pid"}, weak: []string{"command"}}, rows)
	}
	text = "forked children that have its memory mapped:" + text
	if lacks := c.lacks(); lacks != "" {
		text += "\n" + lacks
	}
	return text
}

// childrenIn finds the children of the process of a session in a slot, once for each.
func (at *attribution) childrenIn(slot uint32) *children {
	c, known := at.children[slot]
	if s := at.sessions[slot]; !known && s != nil {
		c = childrenOf(s)
		at.children[slot] = c
	}
	return c
}

// reason is the reason for which a session counts a storage that children of its process may read.
func (c *children) reason(s *broker.SessionRow) reason {
	r := reason{Why: whyHeld, What: "the program or children made by fork", Ends: "when the program and its forked children let go of it, or end", Free: c.end()}
	if s.ProcessEnded {
		r.What, r.Ends = "children made by fork", "when these children end, or are replaced by exec"
	}
	if len(c.Children) > 0 {
		var pids []string
		for _, child := range c.Children {
			pids = append(pids, strconv.Itoa(child.PID))
		}
		r.What += " (pid " + few(pids) + ")"
	}
	return r
}
