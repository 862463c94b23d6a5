package rules

import (
	"fmt"
	"regexp"
	"strings"
)

const memoryOrderPage = "docs/memory-order.md"

var (
	syncMark = regexp.MustCompile(`\bSYNC\s+([^\s:<>]+):`)
	syncName = regexp.MustCompile(`^[a-z0-9][a-z0-9._/-]*$`)
)

// CheckSync reads the comments "SYNC <name>: what is visible to whom" that stand
// at each atomic on a shared page. A name must stand at two places at least,
// the ends of the pair, and in docs/memory-order.md, between backquotes.
func CheckSync(t *Tree) []Violation {
	type use struct {
		file  *File
		line  int
		count int
	}
	uses := map[string]*use{}
	var out []Violation
	for _, f := range t.Files {
		if testSource(f.Name) {
			continue
		}
		for _, c := range comments(f) {
			for _, m := range syncMark.FindAllStringSubmatch(c.text, -1) {
				name := m[1]
				switch {
				case !syncName.MatchString(name):
					out = append(out, Violation{f.Name, c.line, fmt.Sprintf("SYNC name %q: use small letters, digits and - . / _", name)})
				case uses[name] == nil:
					uses[name] = &use{f, c.line, 1}
				default:
					uses[name].count++
				}
			}
		}
	}
	page := ""
	if f := t.File(memoryOrderPage); f != nil {
		page = f.Text
	}
	for name, u := range uses {
		if u.count < 2 {
			out = append(out, Violation{u.file.Name, u.line, "SYNC " + name + " has one end only: name the atomic that it pairs with, with the same SYNC name there"})
		}
		if strings.Count("\n"+page, "\n| `"+name+"` |") > 1 {
			out = append(out, Violation{memoryOrderPage, 0, "the pair " + name + " has two rows: make them one"})
		}
		if !strings.Contains(page, "`"+name+"`") {
			out = append(out, Violation{u.file.Name, u.line, "SYNC " + name + " is missing in " + memoryOrderPage + " (as `" + name + "`)"})
		}
	}
	return sorted(out)
}
