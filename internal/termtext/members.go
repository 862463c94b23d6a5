package termtext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Members gives the members of a JSON object in their order, each as "  key=value", for the end of a line. Texts
// have quotes only where they need them. What is no object gives "", a broken one the members before the break.
func Members(object json.RawMessage) string {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	var b strings.Builder
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			break
		}
		text := string(value)
		var s string
		if json.Unmarshal(value, &s) == nil {
			text = s
			if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' }) {
				text = strconv.Quote(s)
			}
		}
		fmt.Fprintf(&b, "  %s=%s", key, text)
	}
	return b.String()
}
