package rules

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxLines is the length at which a source file must be split.
const maxLines = 600

var sourceSuffixes = []string{".go", ".rs", ".py", ".pyi", ".c", ".h", ".cpp", ".hpp", ".s", ".sh", ".pml"}

var generated = regexp.MustCompile(`(?m)^(//|#|/\*|;) Code generated .* DO NOT EDIT\.`)

// CheckSize fails on source files over 600 lines that are neither tests nor
// generated, nor data of tests, which others may have written.
func CheckSize(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		if !slices.Contains(sourceSuffixes, path.Ext(f.Name)) || testSource(f.Name) || strings.Contains("/"+f.Name, "/testdata/") || generated.MatchString(f.Text) {
			continue
		}
		if n := strings.Count(f.Text, "\n"); n > maxLines {
			out = append(out, Violation{f.Name, n, fmt.Sprintf("%d lines: over %d, split it by concept", n, maxLines)})
		}
	}
	return out
}

// unmerged finds the lines that a merge leaves where two sides differ.
var unmerged = regexp.MustCompile(`(?m)^(?:<{7}|>{7}) `)

// CheckMerged fails on a file with both sides of a merge.
func CheckMerged(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		if at := unmerged.FindStringIndex(f.Text); at != nil {
			out = append(out, Violation{f.Name, 1 + strings.Count(f.Text[:at[0]], "\n"), "both sides of a merge stand here: keep one"})
		}
	}
	return out
}

// testSource says whether a source file of any language is test code.
func testSource(name string) bool {
	base := path.Base(name)
	return strings.HasSuffix(base, "_test.go") || strings.HasSuffix(base, "_test.py") ||
		strings.HasPrefix(base, "test_") || strings.Contains("/"+name, "/tests/")
}

// CheckPackageComments fails on a Go package where no file has a package comment.
func CheckPackageComments(t *Tree) []Violation {
	first := map[string]*File{}
	documented := map[string]bool{}
	for _, f := range t.GoFiles() {
		if first[f.Dir()] == nil {
			first[f.Dir()] = f
		}
		if f.Go.Doc != nil && strings.TrimSpace(f.Go.Doc.Text()) != "" {
			documented[f.Dir()] = true
		}
	}
	var out []Violation
	for dir, f := range first {
		if !documented[dir] {
			out = append(out, Violation{f.Name, 0, fmt.Sprintf("package %s has no package comment: write %s/doc.go", f.Go.Name.Name, dir)})
		}
	}
	return sorted(out)
}

// machinePaths match paths that exist on one developer's machine only. The
// pattern is put together from pieces so that this file does not match it.
var machinePaths = regexp.MustCompile(
	`(?:^|[^\w.~}$*-])(/(?:` + "work|farm|root" + `)/|/(?:` + "home|Users" + `)/[\w.-]+/)`)

// placeholders are home folders that stand for any user's.
var placeholders = regexp.MustCompile(`/(user|you|USER|me)/$`)

// CheckPaths fails on an absolute path of a developer's machine in any file.
// Lock files are left out: they are written by tools.
func CheckPaths(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		if strings.HasSuffix(f.Name, ".lock") || path.Base(f.Name) == "go.sum" {
			continue
		}
		for i, line := range strings.Split(f.Text, "\n") {
			for _, m := range machinePaths.FindAllStringSubmatch(line, -1) {
				if !placeholders.MatchString(m[1]) {
					out = append(out, Violation{f.Name, i + 1, "names " + m[1] + ", a path of one machine: make it relative or a setting"})
				}
			}
		}
	}
	return out
}
