package protocol

import (
	"cmp"
	"slices"
	"strings"
)

// GroupOfFunction is the name of the one group of a function.
const GroupOfFunction = "function"

// MaxConcurrency is how many calls at a time one provider may have.
const MaxConcurrency = 1024

// FunctionRegister makes a reader of the session's a provider of a function.
type FunctionRegister struct {
	TopicRef
	Reader uint64 `json:"reader"`
	// Description is JSON for callers: what is compared between providers but for "doc".
	Description string `json:"description"`
	// Concurrency is how many calls the provider takes at a time; 0: one.
	Concurrency uint32 `json:"concurrency,omitempty"`
	// Idempotent: a call that a dead provider had begun is given to another.
	Idempotent bool `json:"idempotent,omitempty"`
	// Exclusive: one process alone provides it.
	Exclusive bool `json:"exclusive,omitempty"`
	// Override ends the registrations that there are, and may bring another description.
	Override bool `json:"override,omitempty"`
	// Linger is for how many seconds the function stays listed once no session has it open; 0: not at all.
	Linger float64 `json:"linger,omitempty"`
}

// FunctionRegistered tells which registration of the function it is.
type FunctionRegistered struct {
	Registration uint32 `json:"registration"`
	// Counted: the ProviderRecord of the reader's number has memory, and may be written.
	Counted bool `json:"counted,omitempty"`
}

// FunctionFate asks what became of a provider, by the member number that a claim had. Lane and
// Message are those of a call that it had: 0 for none.
type FunctionFate struct {
	TopicRef
	Member  uint16 `json:"member"`
	Lane    uint32 `json:"lane,omitempty"`
	Message uint64 `json:"message,omitempty"`
}

// FateReply tells it. Reason is for people; Lives says that it is a provider still, NoReply of a living one that it
// got no memory for the reply.
type FateReply struct {
	PID     int    `json:"pid,omitempty"`
	Name    string `json:"name,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Lives   bool   `json:"lives,omitempty"`
	NoReply bool   `json:"no_reply,omitempty"`
	// Evicted: an operator, or a change of rights, has ended its session; its process may live.
	Evicted bool `json:"evicted,omitempty"`
	// Signal is what ended its process, Status what it exited with; both are left out where the
	// system does not tell.
	Signal int  `json:"signal,omitempty"`
	Status *int `json:"status,omitempty"`
	// Seconds is for how long the function had run for the call; left out where that is not known.
	Seconds *float64 `json:"seconds,omitempty"`
}

// FunctionByName names a function for an operator.
type FunctionByName struct {
	Name string `json:"name"`
	// Namespace is as in NameRef.
	Namespace string `json:"namespace,omitempty"`
}

// FunctionRemoved tells how many providers a removal has ended.
type FunctionRemoved struct {
	Providers int `json:"providers"`
}

// SplitFunction splits the name of a function from its version, "" where it has none.
func SplitFunction(s string) (name, version string) {
	name, version, _ = strings.Cut(s, "@")
	return name, version
}

// CheckFunction checks the name of a function, with a version or without: tokens as those of names,
// and in the version dots as well. Every refusal has CodeInvalid.
func CheckFunction(s string) error {
	name, version, has := strings.Cut(s, "@")
	if err := CheckName(name); err != nil {
		return err
	}
	if len(s) > MaxName {
		return Errorf(CodeInvalid, "use a shorter one", "the function %q has a name of %d bytes, at most %d fit", s, len(s), MaxName)
	}
	for _, part := range strings.Split(version, ".") {
		if has && !isToken(part) {
			return Errorf(CodeInvalid, "use tokens of A-Z a-z 0-9 _ - joined by dots", "the function %s has the version %q", name, version)
		}
	}
	return nil
}

// CompareVersions orders versions of a function as semantic versions are ordered: part for part at dots, numbers as
// numbers and before what is none; what follows the first - makes it a pre-release, which is older than the version
// before the -. "" is the oldest.
func CompareVersions(a, b string) int {
	if a == "" || b == "" {
		return cmp.Compare(len(a), len(b))
	}
	release, pre, isPre := strings.Cut(a, "-")
	other, otherPre, isOtherPre := strings.Cut(b, "-")
	if c := compareParts(release, other); c != 0 {
		return c
	}
	switch {
	case isPre && isOtherPre:
		return compareParts(pre, otherPre)
	case isPre:
		return -1
	case isOtherPre:
		return 1
	}
	return 0
}

// compareParts compares texts part for part at dots. Of numbers that are equal the one with more digits is the larger,
// so that no two texts are equal.
func compareParts(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		switch isNumber, isOther := isDigits(a), isDigits(b); {
		case isNumber && isOther:
			n, m := strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
			return cmp.Or(cmp.Compare(len(n), len(m)), strings.Compare(n, m), cmp.Compare(len(a), len(b)))
		case isNumber && b != "":
			return -1
		case isOther && a != "":
			return 1
		}
		return strings.Compare(a, b)
	})
}

func isDigits(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c < '0' || c > '9' })
}
