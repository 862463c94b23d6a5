package rules

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	architecturePage = "docs/architecture.md"
	mapHead          = "| Go | Rust |"
)

var mapFolder = regexp.MustCompile("^`([a-z_]+)`(?:: (.*))?$")

// CheckMap compares the map of the two clients in docs/architecture.md with their files: each
// that it names is there, and each file of a part of the Go client or a layer of the Rust crate
// is named, or its part is as a whole.
func CheckMap(t *Tree) []Violation {
	page := t.File(architecturePage)
	if page == nil {
		return nil
	}
	var out []Violation
	named, whole := map[string]bool{}, map[string]bool{}
	inside := false
	for i, line := range strings.Split(page.Text, "\n") {
		switch {
		case strings.HasPrefix(line, mapHead):
			inside = true
			continue
		case !strings.HasPrefix(line, "|"):
			inside = false
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !inside || len(cells) != 2 || strings.HasPrefix(line, "|---") {
			continue
		}
		for column, cell := range cells {
			folders := []string{"client/internal", "rust/src"}
			for _, name := range mapNames(cell, folders[column], []string{"client", "rust/src"}[column]) {
				named[name] = true
				whole[name] = whole[name] || path.Ext(name) == "" && strings.Contains("; "+cell+";", "; `"+path.Base(name)+"`;")
				if !t.has(name) {
					out = append(out, Violation{page.Name, i + 1, "there is no " + name + " any more: name what has taken its place"})
				}
			}
		}
	}
	if len(named) == 0 {
		return []Violation{{page.Name, 0, "it has no map of the Go and the Rust client (" + mapHead + ")"}}
	}
	for _, folder := range t.folders() {
		isPart := path.Dir(folder) == "client/internal" && path.Base(folder) != "parttest" && path.Base(folder) != "fault"
		isLayer := path.Dir(folder) == "rust/src" && slices.Contains(rustMapped, path.Base(folder))
		if (isPart || isLayer) && !named[folder] {
			out = append(out, Violation{page.Name, 0, fmt.Sprintf("the map of the clients lacks %s", folder)})
		}
	}
	for _, f := range t.Files {
		if isMapped(f.Name) && !named[f.Name] && !whole[f.Dir()] {
			out = append(out, Violation{page.Name, 0, fmt.Sprintf("the map of the clients lacks %s: name it beside what does the same in the other one", f.Name)})
		}
	}
	return sorted(out)
}

// isMapped tells whether a file belongs into the map: it is no test, and has more than what a part
// or a layer consists of.
func isMapped(name string) bool {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	switch {
	case slices.Contains([]string{"doc.go", "mod.rs", "tests.rs", "fixture.rs"}, base) || strings.HasSuffix(base, "_test.go"):
		return false
	case path.Ext(base) == ".go":
		return dir == "client" || path.Dir(dir) == "client/internal" && path.Base(dir) != "parttest"
	}
	return path.Ext(base) == ".rs" && path.Dir(dir) == "rust/src" && slices.Contains(rustMapped, path.Base(dir))
}

// rustMapped are the layers of the crate that a session is made of.
var rustMapped = []string{"waits", "link", "memory", "holding", "devices", "tensor", "value", "lanes", "functions", "session"}

// mapNames gives the files and folders that a cell of the map names: of `a`: b.go, c.go those of
// the part a, of d.go one beside the parts.
func mapNames(cell, parts, beside string) []string {
	var out []string
	if strings.HasPrefix(cell, "(") {
		return nil // why there are none
	}
	for group := range strings.SplitSeq(cell, "; ") {
		folder, files := beside, group
		if m := mapFolder.FindStringSubmatch(group); m != nil {
			folder, files = path.Join(parts, m[1]), m[2]
			out = append(out, folder)
		} else if strings.HasPrefix(group, "`") {
			for name := range strings.SplitSeq(group, ", ") {
				out = append(out, path.Join(parts, strings.Trim(name, "`")))
			}
			continue
		}
		for name := range strings.SplitSeq(files, ", ") {
			if name = strings.TrimPrefix(name, beside+"/"); name != "" {
				out = append(out, path.Join(folder, name))
			}
		}
	}
	return out
}

// folders gives the folders that have files.
func (t *Tree) folders() []string {
	var out []string
	for _, f := range t.Files {
		for dir := path.Dir(f.Name); dir != "." && !slices.Contains(out, dir); dir = path.Dir(dir) {
			out = append(out, dir)
		}
	}
	return out
}

// has tells whether there is a file or a folder of the name.
func (t *Tree) has(name string) bool {
	return slices.ContainsFunc(t.Files, func(f *File) bool { return f.Name == name || strings.HasPrefix(f.Name, name+"/") })
}
