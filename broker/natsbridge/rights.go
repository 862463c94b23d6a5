package natsbridge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/micro"
)

// lackingRight says what the server does not permit.
type lackingRight struct {
	publish bool   // else to subscribe
	subject string // of the refused message or subscription
	right   string // the subjects of the right that permits it, as docs/operations.md lists them
	effect  string // what the broker goes without
}

func (l *lackingRight) Error() string {
	verb := "subscribe to"
	if l.publish {
		verb = "publish to"
	}
	return fmt.Sprintf("the server does not let the broker %s %s, which needs the right to %s", verb, l.subject, l.name())
}

// name is the right as people grant it.
func (l *lackingRight) name() string {
	if l.publish {
		return "publish " + l.right
	}
	return "subscribe to " + l.right
}

// answer tells whether what is refused are answers, each of which has a subject of its own.
func (l *lackingRight) answer() bool { return l.publish && l.effect == noAnswers }

// kept is the subject that is remembered.
func (l *lackingRight) kept() string {
	if l.answer() {
		return l.right
	}
	return l.subject
}

// forNames tells whether names are not mirrored without the right.
func (l *lackingRight) forNames() bool {
	return l.publish && (strings.HasPrefix(l.right, "$KV.") || l.right == rightToAPI) || l.forReplies()
}

// forReplies tells whether no answer comes without the right.
func (l *lackingRight) forReplies() bool { return !l.publish && l.right == rightToReplies }

const (
	rightToAPI     = "$JS.API.>"
	rightToReplies = "_INBOX.>"
	// rightToCalls permits to answer calls of functions.
	rightToCalls = "baton.*.call.>"
	rightToList  = micro.APIPrefix + ".>"

	noNames   = "names are not mirrored"
	noAnswers = "answers do not arrive: of functions that are called over NATS, and of names that are too large for a message"
)

// rightToHost permits a broker to answer in all namespaces.
func rightToHost(instance string) string { return "baton.*.host." + instance + ".>" }

// hostsBucket is the directory of hosts, of broker/machines.
const hostsBucket = "baton-hosts"

// spanBucket begins the buckets of names that span hosts, of broker/machines/names.
const spanBucket = "baton-span-"

// betweenHosts tells whether a subject of a host is of what hosts ask each other.
func betweenHosts(parts []string) bool {
	return len(parts) == 5 && slices.Contains([]string{"fetch", "ping", "data", "name"}, parts[4])
}

// rightFor is the right that permits a subject.
func rightFor(publish bool, subject string) *lackingRight {
	parts := strings.Split(subject, ".")
	third := ""
	if parts[0] == "baton" && len(parts) > 3 {
		third = parts[2]
	}
	right := func(right, effect string) *lackingRight { return &lackingRight{publish, subject, right, effect} }
	switch {
	case publish && strings.HasPrefix(subject, "$KV."+hostsBucket+"."):
		return right(subject, "this host is not in the directory of hosts")
	case publish && strings.HasPrefix(subject, "$KV."+spanBucket):
		return right("$KV."+parts[1]+".>", "names of namespace "+strings.TrimPrefix(parts[1], spanBucket)+" are not set")
	case publish && parts[0] == "$KV" && len(parts) > 2:
		return right("$KV."+parts[1]+".>", "names of namespace "+strings.TrimPrefix(parts[1], "baton-")+" are not mirrored")
	case publish && strings.HasPrefix(subject, "$JS.API."):
		return right(rightToAPI, noNames)
	case publish && strings.HasPrefix(subject, "$JS.FC.KV_"+hostsBucket+"."):
		return right("$JS.FC.KV_"+hostsBucket+".>", "a list of many hosts ends early")
	case publish && third == "host" && betweenHosts(parts):
		return right("baton."+parts[1]+".host.>", "tensors and names of other hosts are not opened")
	case publish && third == "host":
		return right("baton."+parts[1]+".>", "other brokers are not asked whether they are there")
	case publish && parts[0] == "baton":
		return right("baton."+parts[1]+".>", "messages of topics are not published")
	case publish:
		return right(parts[0]+".>", noAnswers)
	case parts[0] == "_INBOX":
		return right(rightToReplies, noNames)
	case parts[0] == micro.APIPrefix:
		return right(rightToList, "the broker is not listed among the services of NATS")
	case third == "host" && betweenHosts(parts):
		return right("baton."+parts[1]+".host."+parts[3]+".>", "other hosts do not reach this one")
	case third == "host":
		return right(rightToHost(parts[3]), "the broker does not answer for its names: those that are too large for a message cannot be read")
	case third == "call":
		return right(rightToCalls, "functions are not called over NATS")
	}
	return right(subject, "the broker gets nothing that is sent there")
}
