package rules

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	inBackquotes = regexp.MustCompile("`([^`]+)`")
	// fileName is what a table's first column may name a file or a folder by: with a slash, or an
	// extension of the project's sources. Names of methods, flags and commands are no such.
	fileName   = regexp.MustCompile(`^[\w.-]+(?:/[\w.-]+)*/?$`)
	sourceName = regexp.MustCompile(`\.(?:go|rs|py|pyi|pth|c|cc|h|hpp|md|json|toml|sh)$`)
)

// CheckReadmes fails on a file or folder that the first column of a table in a README names and
// that is not there. A path is one below the README's folder, the root, or the folder of a
// path before it in the same row.
func CheckReadmes(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		if path.Base(f.Name) != "README.md" {
			continue
		}
		for i, line := range strings.Split(f.Text, "\n") {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			first, _, _ := strings.Cut(line[1:], "|")
			folders := []string{f.Dir(), "."}
			for _, m := range inBackquotes.FindAllStringSubmatch(first, -1) {
				name := m[1]
				if !fileName.MatchString(name) || !strings.Contains(name, "/") && !sourceName.MatchString(name) {
					continue
				}
				at := slices.IndexFunc(folders, func(folder string) bool { return t.has(path.Join(folder, name)) })
				if at < 0 {
					out = append(out, Violation{f.Name, i + 1, "there is no " + name + ": name what has taken its place"})
					continue
				}
				folders = append(folders, path.Dir(path.Join(folders[at], name)))
			}
		}
	}
	return sorted(out)
}
