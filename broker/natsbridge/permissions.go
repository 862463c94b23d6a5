package natsbridge

import (
	"slices"
	"strings"
)

// Parts of a broker that need rights on an operator's server.
const (
	PartBroker    = "broker"    // each broker
	PartFunctions = "functions" // --nats-functions
	PartHosts     = "hosts"     // --span
)

// Permission is a right that a broker needs on an operator's server.
type Permission struct {
	Part    string `json:"part"`
	Publish bool   `json:"publish"` // else to subscribe
	// Subject has <namespace> for each namespace of names and topics, or of other hosts, and <instance> for the broker's.
	Subject string `json:"subject"`
	For     string `json:"for"`
	// Optional: without it the broker goes without what it is for.
	Optional bool `json:"optional"`
}

// rightToNames permits a broker to mirror the names of a namespace.
const rightToNames = "$KV.baton-<namespace>.>"

// Permissions are all rights that a broker may need. The tables in docs/operations.md and docs/machines.md have these, and what
// `baton nats permissions` prints is made of them.
var Permissions = []Permission{
	{PartBroker, true, "baton.<namespace>.>", "messages of topics, and questions to other brokers", false},
	{PartBroker, true, rightToNames, "names", false},
	{PartBroker, true, "$JS.API.>", "buckets of JetStream", false},
	{PartBroker, true, "_INBOX.>", "answers; allow_responses will do", false},
	{PartBroker, false, "_INBOX.>", "answers to the broker's questions", false},
	{PartBroker, false, "$SRV.>", "the list of services of NATS", true},
	{PartBroker, false, "baton.<namespace>.host.<instance>.>", "names that are too large for a message, and whether the broker is there", true},
	{PartFunctions, false, "baton.<namespace>.call.>", "calls of functions", false},
	{PartHosts, true, "baton.<namespace>.host.>", "questions to other hosts, and bytes over NATS", false},
	{PartHosts, true, "$KV.baton-hosts.<instance>", "this host's entry in the directory of hosts", false},
	{PartHosts, true, "$KV.baton-span-<namespace>.>", "names of several hosts", false},
	{PartHosts, true, "$JS.FC.KV_baton-hosts.>", "a list of many hosts", false},
	{PartHosts, true, "$JS.API.>", "the directory of hosts", false},
	{PartHosts, true, "_INBOX.>", "answers, and bytes over NATS", false},
	{PartHosts, false, "_INBOX.>", "answers, and bytes over NATS", false},
	{PartHosts, false, "baton.<namespace>.host.<instance>.>", "questions of other hosts", false},
}

// Needs says what a broker does.
type Needs struct {
	// Names are the namespaces of its names, topics and functions, and Span those that other hosts reach. "*": all.
	Names, Span []string
	Functions   bool
	// Instance of the broker; "": any.
	Instance string
}

// Allow are subjects that a user may publish or subscribe to, as in nats-server's configuration.
type Allow struct {
	Allow []string `json:"allow"`
}

// UserPermissions are those of a user, as in nats-server's configuration.
type UserPermissions struct {
	Publish   Allow `json:"publish"`
	Subscribe Allow `json:"subscribe"`
}

// Grant makes the permissions of a broker's user, and tells what each subject is for.
func (n *Needs) Grant() (u UserPermissions, why map[string][]string) {
	why = map[string][]string{}
	for _, p := range Permissions {
		namespaces := n.Names
		switch p.Part {
		case PartFunctions:
			if !n.Functions {
				continue
			}
		case PartHosts:
			namespaces = n.Span
		}
		list, verb := &u.Subscribe.Allow, "subscribe "
		if p.Publish {
			list, verb = &u.Publish.Allow, "publish "
		}
		for _, ns := range namespaces {
			if p.Subject == rightToNames && ns != "*" && checkNamespace(ns) != nil {
				continue // its names are not mirrored: the bucket is for hosts
			}
			s := subjectFor(p.Subject, ns, n.Instance)
			if !slices.Contains(*list, s) {
				*list = append(*list, s)
			}
			if !slices.Contains(why[verb+s], p.For) {
				why[verb+s] = append(why[verb+s], p.For)
			}
		}
	}
	return u, why
}

// subjectFor fills in a subject. A * stands for a whole part of one alone, so that it takes all buckets.
func subjectFor(subject, ns, instance string) string {
	if instance == "" {
		instance = "*"
	}
	if ns == "*" {
		subject = strings.NewReplacer("baton-<namespace>", "*", "baton-span-<namespace>", "*").Replace(subject)
	}
	return strings.NewReplacer("<namespace>", ns, "<instance>", instance).Replace(subject)
}
