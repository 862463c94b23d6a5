package natsbridge

import (
	"fmt"
	"regexp"
	"strings"
)

// refusal is how the server says what a connection may not do. It says so on the side: a write
// that it refuses gets no answer, and ends by its time.
var refusal = regexp.MustCompile(`(?i)violation for (publish|subscription) to "([^"]+)"`)

// lackingRight says what the server does not permit.
type lackingRight struct{ what, subject, right string }

func (l *lackingRight) Error() string {
	return fmt.Sprintf("the server does not let the broker %s %s, which needs the right %s", verb(l.what), l.subject, l.right)
}

// refused notes that the server does not permit what the mirror of names needs. No answer comes to what it has refused,
// so that the visit under way ends here.
func (n *names) refused(text string) {
	m := refusal.FindStringSubmatch(text)
	if m == nil {
		return
	}
	right := rightFor(m[1], m[2])
	if right == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lacks = &lackingRight{m[1], m[2], right}
	if n.cutVisit != nil {
		n.cutVisit(n.lacks)
	}
}

func verb(what string) string {
	if strings.EqualFold(what, "publish") {
		return "publish to"
	}
	return "subscribe to"
}

// rightFor is the right that permits a subject, as docs/operations.md lists them; "": it is none
// that names need.
func rightFor(what, subject string) string {
	parts := strings.Split(subject, ".")
	switch publish := strings.EqualFold(what, "publish"); {
	case publish && parts[0] == "$KV" && len(parts) > 2:
		return "to publish $KV." + parts[1] + ".>"
	case publish && strings.HasPrefix(subject, "$JS.API."):
		return "to publish $JS.API.>"
	case !publish && parts[0] == "_INBOX":
		return "to subscribe to _INBOX.>"
	}
	return ""
}
