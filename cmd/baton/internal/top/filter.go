package top

import (
	"os/user"
	"strconv"
	"strings"
	"sync"

	"github.com/baton-ipc/baton/broker"
)

// userNames are the names of users that were looked up: uint32 → string, "" where there is none.
var userNames sync.Map

// UserName is the name of a user on this machine; "": it has none. Each is looked up once.
func UserName(uid uint32) string {
	if name, known := userNames.Load(uid); known {
		return name.(string)
	}
	name := ""
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		name = u.Username
	}
	userNames.Store(uid, name)
	return name
}

// Each of these is what a filter looks at in a row: what it is called, its namespace, and the program, process, user
// and container behind it, as far as the row has them.

func topicWords(r *broker.TopicRow) []string {
	return []string{TopicName(r), r.Namespace, r.Creator}
}

func nameWords(r *broker.NameRow) []string { return []string{r.Name, r.Namespace, r.Setter} }

func sessionWords(r *broker.SessionRow) []string {
	return append(process(r.Name, r.PID, r.UID), r.Namespace, r.Command, r.Container)
}

func functionWords(r *broker.FunctionRow) []string {
	words := []string{r.Name, r.Namespace, UserName(r.UID)}
	for i := range r.Providers {
		p := &r.Providers[i]
		words = append(words, process(p.Name, p.PID, p.UID)...)
	}
	return words
}

// process is a program, the number of its process, and its user by name and as "uid 1000": the bare number would be
// in many a pid.
func process(program string, pid int, uid uint32) []string {
	return []string{program, strconv.Itoa(pid), UserName(uid), "uid " + strconv.FormatUint(uint64(uid), 10)}
}

// passes tells whether one of the words has the filter in it; case does not matter.
func passes(words []string, filter string) bool {
	if filter == "" {
		return true
	}
	filter = strings.ToLower(filter)
	for _, w := range words {
		if strings.Contains(strings.ToLower(w), filter) {
			return true
		}
	}
	return false
}
