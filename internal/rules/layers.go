package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// layer says what the code below one folder may know of the project. Packages
// below the same folder may always import each other.
type layer struct {
	dir string
	// only: if not nil, the packages of ours that may be imported, and no others.
	only []string
	// never: packages of ours that must not be reached, not even through others.
	never []string
	// instead: what code does that seems to need more.
	instead string
}

// mechanics are what any part of the broker may know.
var mechanics = []string{"broker/events", "handles", "shm", "protocol", "internal/sys", "internal/crashpoint"}

var layers = []layer{
	{dir: "internal/sys", only: []string{}},
	{dir: "internal/crashpoint", only: []string{}},
	{dir: "protocol", only: []string{}},
	{dir: "shm", only: []string{"protocol", "internal/sys", "internal/crashpoint"}},
	{dir: "internal/ranges", only: []string{}},
	{dir: "internal/sparse", only: []string{}},
	{dir: "handles", only: []string{"shm", "protocol", "internal/sys", "internal/crashpoint", "internal/ranges", "internal/sparse"}},
	{dir: "dlpack", only: []string{"protocol", "internal/sys"}},
	{dir: "broker/takeover", only: []string{"broker/record", "handles", "shm", "protocol"}},
	{dir: "broker/record", only: []string{"handles", "shm", "protocol", "internal/crashpoint"}},
	{dir: "broker/alarm", only: []string{}},
	{dir: "broker/events", only: []string{"protocol"}},
	{dir: "broker/sessionfiles", only: append([]string{"broker/record"}, mechanics...)},
	{dir: "broker/memory", only: append([]string{"broker/sessionfiles", "broker/record", "broker/alarm"}, mechanics...)},
	{dir: "broker/topics", only: append([]string{"broker/memory", "broker/sessionfiles", "broker/record", "broker/alarm"}, mechanics...)},
	{dir: "broker/leases", only: append([]string{"broker/memory", "broker/sessionfiles", "broker/record", "broker/alarm"}, mechanics...)},
	{dir: "broker/parttest", only: append([]string{"broker/memory", "broker/sessionfiles", "broker/record", "broker/alarm"}, mechanics...)},
	{dir: "broker/machines", only: []string{"protocol", "internal/lasting"},
		instead: "it has shared memory by the interface Memory, which cmd/baton/internal/hosts fills in, and NATS by Connection"},
	{dir: "broker", never: []string{"client", "dlpack", "cudaipc"}},
	{dir: "client/internal/fault", only: []string{"protocol"}, instead: upward},
	{dir: "client/internal/turn", only: []string{"client/internal/fault"}, instead: upward},
	{dir: "client/internal/life", only: []string{"client/internal/fault", "protocol"}, instead: upward},
	{dir: "client/internal/link", only: []string{"client/internal/life", "client/internal/turn", "client/internal/fault",
		"protocol", "internal/wire", "internal/address", "internal/reach", "internal/statefile", "internal/sys", "internal/typed"}, instead: upward},
	{dir: "client/internal/sessionfiles", only: parts(), instead: upward},
	{dir: "client/internal/waits", only: parts("sessionfiles", "life"), instead: upward},
	{dir: "client/internal/gpu", only: parts("sessionfiles", "life", "fault"), instead: upward},
	{dir: "client/internal/parttest", only: parts("waits", "sessionfiles", "life"), instead: "what a test needs beside them stands in the test"},
	{dir: "client/internal/memory", only: parts("gpu", "waits", "sessionfiles", "life", "turn", "fault"), instead: upward},
	{dir: "client/internal/devices", only: parts("memory", "gpu", "sessionfiles", "life", "fault"), instead: upward},
	{dir: "client/internal/lanes", only: parts("memory", "waits", "sessionfiles", "life", "turn", "fault"), instead: upward},
	{dir: "client/internal/session", only: parts("lanes", "devices", "memory", "gpu", "waits", "sessionfiles", "link", "life", "fault"), instead: upward},
	{dir: "client/internal/signature", only: []string{"protocol"}, instead: upward},
	{dir: "client", never: []string{"broker", "cudaipc"}},
	{dir: "cmd/baton", never: []string{"bench"}, instead: "what measures stands in cmd/baton-bench, so that the program that serves is without it"},
	{dir: "cudaipc", only: []string{"client", "dlpack", "protocol", "internal/sys"}},
}

// upward is how a part of the client asks for something of a part above it.
const upward = "what a part of the client needs of one above it, it declares as an interface, which session fills in"

// parts are these parts of the client, and what each of them may know beside them.
func parts(names ...string) []string {
	all := []string{"handles", "shm", "protocol", "dlpack", "internal/sys", "internal/wire", "internal/crashpoint", "internal/sparse", "internal/ranges"}
	for _, n := range names {
		all = append(all, "client/internal/"+n)
	}
	return all
}

// importEdge is one import of a package of ours: the folder imported and where.
type importEdge struct {
	to   string
	file *File
	line int
}

// ownImports maps each folder to the folders of ours that its code imports.
// Tests may know more than the code they test, so their imports do not count.
func ownImports(t *Tree) map[string][]importEdge {
	edges := map[string][]importEdge{}
	for _, f := range t.GoFiles() {
		if f.Test() {
			continue
		}
		for _, spec := range f.Go.Imports {
			to, ours := strings.CutPrefix(importPath(spec.Path.Value), module+"/")
			if ours {
				edges[f.Dir()] = append(edges[f.Dir()], importEdge{to, f, f.Line(spec.Pos())})
			}
		}
	}
	return edges
}

// importPath takes the quotes off an import path that the parser accepted.
func importPath(literal string) string {
	p, err := strconv.Unquote(literal)
	if err != nil {
		return literal
	}
	return p
}

// CheckLayers fails on an import that the layers table does not allow.
func CheckLayers(t *Tree) []Violation {
	edges := ownImports(t)
	var out []Violation
	for _, l := range layers {
		for dir, imports := range edges {
			if !within(dir, l.dir) {
				continue
			}
			for _, e := range imports {
				if l.only != nil && !within(e.to, l.dir) && !withinAny(e.to, l.only) {
					what := fmt.Sprintf("%s must not import %s: of this project it may import %s", l.dir, e.to, listOrNothing(l.only))
					if l.instead != "" {
						what += "; " + l.instead
					}
					out = append(out, Violation{e.file.Name, e.line, what})
				}
				if way := reach(edges, e.to, l.never, map[string]bool{}); way != nil {
					out = append(out, Violation{e.file.Name, e.line, fmt.Sprintf(
						"%s must not reach %s: %s", l.dir, way[len(way)-1], strings.Join(append([]string{dir}, way...), " → "))})
				}
			}
		}
	}
	return sorted(out)
}

// reach gives a chain of imports from dir into one of targets,
// or nil. seen keeps a ring of imports from never ending.
func reach(edges map[string][]importEdge, dir string, targets []string, seen map[string]bool) []string {
	if withinAny(dir, targets) {
		return []string{dir}
	}
	if seen[dir] {
		return nil
	}
	seen[dir] = true
	for _, e := range edges[dir] {
		if way := reach(edges, e.to, targets, seen); way != nil {
			return append([]string{dir}, way...)
		}
	}
	return nil
}

func listOrNothing(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// sorted orders violations by place, so that output does not depend on map order.
func sorted(vs []Violation) []Violation {
	slices.SortFunc(vs, func(a, b Violation) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return strings.Compare(a.What, b.What)
	})
	return vs
}

// CheckBinaryDependencies takes the import paths of everything that cmd/baton
// is linked from (go list -deps) and fails on what would make the binary dynamic.
func CheckBinaryDependencies(paths []string) []Violation {
	var out []Violation
	for _, p := range paths {
		switch {
		case within(p, "github.com/ebitengine/purego"):
			out = append(out, Violation{"cmd/baton", 0, "depends on " + p + ", which makes the binary dynamic: keep purego out of what cmd/baton imports"})
		case p == "runtime/cgo":
			out = append(out, Violation{"cmd/baton", 0, "depends on runtime/cgo: the binary must build without cgo"})
		}
	}
	return out
}
