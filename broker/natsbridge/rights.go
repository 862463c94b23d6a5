package natsbridge

import (
	"fmt"
	"regexp"
	"strings"
)

// refusal is how the server says what a connection may not do. It says so on the side: a write
// that it refuses gets no answer, and ends by its time.
var refusal = regexp.MustCompile(`(?i)violation for (publish|subscription) to "([^"]+)"`)

// refused notes that the server does not permit what the mirror of names needs: it is why the next
// attempts fail.
func (n *names) refused(text string) {
	m := refusal.FindStringSubmatch(text)
	if m == nil {
		return
	}
	lacks := rightFor(m[1], m[2])
	if lacks == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lacks = fmt.Sprintf("the server does not let the broker %s %s, which needs the right %s", verb(m[1]), m[2], lacks)
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
