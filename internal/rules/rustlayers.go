package rules

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// rustCrate is a crate whose layers are kept.
type rustCrate struct {
	src    string
	layers []rustLayer
}

var rustCrates = []rustCrate{{src: "rust/src/", layers: rustLayers}, {src: "python/src/", layers: extensionLayers}}

// extensionLayers is the order of the layers of the Python extension. Python's classes stand below
// what makes them of arrays, and have their methods where all is known.
var extensionLayers = []rustLayer{
	{name: "base"},
	{name: "objects", uses: []string{"base"}},
	{name: "arrays", uses: []string{"objects", "base"}},
	{name: "views", uses: []string{"arrays", "objects", "base"}},
	{name: "value", uses: []string{"views", "arrays", "objects", "base"}},
	{name: "face", uses: []string{"value", "views", "arrays", "objects", "base"}, extends: []string{"objects"}},
}

// rustLayer is one layer of the crate: a folder or a file of its sources, without
// the suffix, and the layers that its code may name.
type rustLayer struct {
	name string
	uses []string
	// extends: the layers whose types it may give methods. What programs see of a
	// type may stand where the whole is known; what the crate itself calls may not.
	extends []string
}

// rustBase is what any layer of the crate may name: the system, the layouts, and
// what is made of numbers alone.
var rustBase = []string{"error", "layout", "sys", "sync", "owners", "turnstile", "crash_point", "panics", "table", "dims", "dtype"}

// rustMechanics are what a layer that knows a session may name besides.
var rustMechanics = append([]string{"deadline", "turns", "message", "shm", "ledger", "wire", "cuda", "handle", "dlpack/types"}, rustBase...)

// rustLayers is the order of the crate's layers, from the bottom. The picture of
// docs/architecture.md is the same.
var rustLayers = []rustLayer{
	{name: "error"},
	{name: "layout"},
	{name: "sync", uses: []string{"sys"}},
	{name: "owners", uses: []string{"sync"}},
	{name: "turnstile", uses: []string{"error", "sync"}},
	{name: "crash_point"},
	{name: "panics"},
	{name: "table"},
	{name: "sys", uses: []string{"error"}},
	{name: "dims"},
	{name: "dtype", uses: []string{"dims", "error", "layout"}},
	{name: "deadline", uses: []string{"error"}},
	{name: "turns", uses: []string{"deadline", "error", "sys", "turnstile"}},
	{name: "handle", uses: []string{"error", "layout"}},
	{name: "dlpack/types", uses: []string{"dtype"}},
	{name: "message", uses: rustBase},
	{name: "wire", uses: rustBase},
	{name: "cuda", uses: append([]string{"shm"}, rustBase...)},
	{name: "shm", uses: append([]string{"cuda", "message"}, rustBase...)},
	{name: "ledger", uses: append([]string{"message", "shm", "turns"}, rustBase...)},
	{name: "waits", uses: append([]string{"shm"}, rustBase...)},
	{name: "link", uses: append([]string{"waits"}, rustMechanics...)},
	{name: "memory", uses: append([]string{"link"}, rustMechanics...)},
	{name: "holding", uses: append([]string{"memory", "link", "waits"}, rustMechanics...)},
	{name: "devices", uses: append([]string{"holding", "memory"}, rustMechanics...)},
	{name: "tensor", uses: append([]string{"devices", "holding", "memory"}, rustMechanics...)},
	{name: "value", uses: append([]string{"tensor", "holding", "memory"}, rustMechanics...)},
	{name: "lanes", uses: append([]string{"value", "tensor", "devices", "holding", "memory", "link", "waits"}, rustMechanics...)},
	{name: "functions", uses: append([]string{"lanes", "value", "tensor", "holding", "memory", "link", "waits"}, rustMechanics...), extends: []string{"value"}},
	{name: "session", uses: append([]string{"functions", "lanes", "value", "tensor", "devices", "holding", "memory", "link", "waits"}, rustMechanics...), extends: []string{"tensor"}},
	{name: "dlpack", uses: append([]string{"session", "value", "tensor", "devices", "holding", "memory"}, rustMechanics...), extends: []string{"session", "value", "tensor"}},
	{name: "ndarray", uses: append([]string{"session", "tensor"}, rustBase...), extends: []string{"session", "tensor"}},
	{name: "step", uses: append([]string{"ledger", "message", "shm"}, rustBase...)},
}

// rustTests are files of the crate that only its tests build and that are of no layer.
var rustTests = regexp.MustCompile(`(^|/)(any_bytes|loom_models|vectors|\w+_test|\w+_loom)(\.rs|/|$)`)

var (
	rustComment = regexp.MustCompile(`//.*`)
	// rustText is what is no code: what begins first takes its end with it.
	rustText     = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/|\bb?r##".*?"##|\bb?r#".*?"#|\bb?r"[^"]*"|"(?:\\.|[^"\\])*"|'(?:\\(?:u\{\w+\}|x\w\w|.)|[^\\'\n])'`)
	rustPath     = regexp.MustCompile(`\b(?:crate|super)::(?:super::)*`)
	rustName     = regexp.MustCompile(`^\w+`)
	rustRoot     = regexp.MustCompile(`(?m)^pub use ([a-z_]+)::(?:\{([^}]*)\}|(\w+));`)
	rustType     = regexp.MustCompile(`(?m)^(?:pub(?:\([a-z]+\))? )?(?:struct|enum|union|trait) (\w+)`)
	rustImpl     = regexp.MustCompile(`(?m)^(?:unsafe )?impl(?:<[^{]*?>)? ([^{]*?)\s*(?:where[^{]*)?\{`)
	rustLastWord = regexp.MustCompile(`(\w+)(?:<.*)?$`)
)

// rustCode gives a source without comments, strings and characters, on the same lines.
func rustCode(text string) string {
	return rustText.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) + " " })
}

// rustFile is a source file of the crate: its module, as names from the root, and its code.
type rustFile struct {
	file   *File
	module []string
	code   string
}

func (c rustCrate) files(t *Tree) []rustFile {
	var out []rustFile
	for _, f := range t.Files {
		name, ours := strings.CutPrefix(f.Name, c.src)
		if !ours || path.Ext(name) != ".rs" || name == "lib.rs" || rustTests.MatchString(name) {
			continue
		}
		module := strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, ".rs"), "/mod"), "/")
		out = append(out, rustFile{f, module, rustCode(f.Text)})
	}
	return out
}

// layerOf gives the layer of a module: the longest that it is, or lies in.
func (c rustCrate) layerOf(module string) *rustLayer {
	var found *rustLayer
	for i, l := range c.layers {
		if within(module, l.name) && (found == nil || len(l.name) > len(found.name)) {
			found = &c.layers[i]
		}
	}
	return found
}

// rustUses gives the modules that code names by crate:: and super::, with their lines:
// of a group in braces each of its members.
func (f rustFile) rustUses(root map[string]string) []importEdge {
	var out []importEdge
	for _, at := range rustPath.FindAllStringIndex(f.code, -1) {
		var base []string // of crate:: the root
		if head := f.code[at[0]:at[1]]; strings.HasPrefix(head, "super") {
			up := min(strings.Count(head, "super::"), len(f.module))
			base = f.module[:len(f.module)-up]
		} else if strings.Contains(head, "super") {
			continue
		}
		line := 1 + strings.Count(f.code[:at[0]], "\n")
		for _, member := range rustMembers(f.code[at[1]:]) {
			names := append(slices.Clone(base), member...)
			if len(names) == 0 {
				continue
			}
			if to, known := root[names[0]]; known && len(base) == 0 {
				names[0] = to // what lib.rs shows is of the layer that it is from
			}
			out = append(out, importEdge{strings.Join(names, "/"), f.file, line})
		}
	}
	return out
}

// rustMembers gives the first names of the paths behind crate:: or super::, two of each
// at most: one path, or the paths of a group.
func rustMembers(rest string) [][]string {
	if !strings.HasPrefix(rest, "{") {
		name := rustName.FindString(rest)
		if name == "" {
			return nil
		}
		second := ""
		if behind, more := strings.CutPrefix(rest[len(name):], "::"); more {
			second = rustName.FindString(behind)
		}
		if second == "" {
			return [][]string{{name}}
		}
		return [][]string{{name, second}}
	}
	var out [][]string
	depth, begin := 0, 1
	for i, c := range rest {
		switch {
		case c == '{':
			depth++
			continue
		case c == '}':
			depth--
		}
		if depth == 0 || (depth == 1 && c == ',') {
			out = append(out, rustMembers(strings.TrimSpace(rest[begin:i]))...)
			begin = i + 1
		}
		if depth == 0 {
			break
		}
	}
	return out
}

// rustRootNames maps what lib.rs shows of modules to the modules.
func (c rustCrate) rootNames(t *Tree) map[string]string {
	out := map[string]string{}
	lib := t.File(c.src + "lib.rs")
	if lib == nil {
		return out
	}
	for _, m := range rustRoot.FindAllStringSubmatch(lib.Text, -1) {
		for name := range strings.SplitSeq(m[2]+m[3], ",") {
			if name = strings.TrimSpace(name); name != "" {
				out[name] = m[1]
			}
		}
	}
	return out
}

// CheckRustLayers fails where a layer of a Rust crate, or a test of it, names one that
// it may not, where a type has methods in another layer than its own, and where a source file is
// of no layer.
func CheckRustLayers(t *Tree) []Violation {
	var out []Violation
	for _, c := range rustCrates {
		out = append(out, c.check(t)...)
	}
	return sorted(out)
}

func (c rustCrate) check(t *Tree) []Violation {
	var out []Violation
	root, files := c.rootNames(t), c.files(t)
	types := map[string][]string{} // the layers that define a type of the name
	for _, f := range files {
		l := c.layerOf(strings.Join(f.module, "/"))
		if l == nil {
			out = append(out, Violation{f.file.Name, 0, "it is of no layer: put it into one, or add a layer to the table of rustlayers.go"})
			continue
		}
		for _, m := range rustType.FindAllStringSubmatch(f.code, -1) {
			if !slices.Contains(types[m[1]], l.name) {
				types[m[1]] = append(types[m[1]], l.name)
			}
		}
		seen := map[string]bool{}
		for _, e := range f.rustUses(root) {
			to := c.layerOf(e.to)
			if to == nil || to == l || slices.Contains(l.uses, to.name) || seen[fmt.Sprint(e.line, to.name)] {
				continue
			}
			seen[fmt.Sprint(e.line, to.name)] = true
			out = append(out, Violation{f.file.Name, e.line, fmt.Sprintf(
				"layer %s must not name %s, which stands above it: it may name %s. Declare a small trait here that the layer above implements, or put the code there",
				l.name, to.name, listOrNothing(l.uses))})
		}
	}
	for _, f := range files {
		l := c.layerOf(strings.Join(f.module, "/"))
		if l == nil {
			continue
		}
		for _, m := range rustImpl.FindAllStringSubmatchIndex(f.code, -1) {
			head := f.code[m[2]:m[3]]
			name := rustLastWord.FindStringSubmatch(head)
			if strings.Contains(head, " for ") || name == nil {
				continue
			}
			of := types[name[1]]
			if len(of) == 0 || slices.Contains(of, l.name) || slices.ContainsFunc(of, func(o string) bool { return slices.Contains(l.extends, o) }) {
				continue
			}
			out = append(out, Violation{f.file.Name, 1 + strings.Count(f.code[:m[0]], "\n"), fmt.Sprintf(
				"layer %s gives %s methods, a type of %s: a type has its methods in one layer. Write functions, a type of this layer that has the other, or a trait",
				l.name, name[1], strings.Join(of, ", "))})
		}
	}
	return append(out, c.checkCircles(files)...)
}

// checkCircles finds files that name each other, directly or through others.
func (c rustCrate) checkCircles(files []rustFile) []Violation {
	names := map[string]rustFile{}
	for _, f := range files {
		names[strings.Join(f.module, "/")] = f
	}
	uses := map[string][]importEdge{}
	for name, f := range names {
		for _, e := range f.rustUses(nil) {
			for to := e.to; to != "." && to != name; to = path.Dir(to) {
				if _, is := names[to]; is {
					uses[name] = append(uses[name], importEdge{to, f.file, e.line})
					break
				}
			}
		}
	}
	var out []Violation
	for name, edges := range uses {
		for _, e := range edges {
			if reaches(uses, e.to, name, map[string]bool{}) {
				out = append(out, Violation{e.file.Name, e.line, fmt.Sprintf("%s and %s name each other, directly or through others: put what both need into a file below them", name, e.to)})
			}
		}
	}
	return out
}

// reaches tells whether one file names another, directly or through others.
func reaches(uses map[string][]importEdge, from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	return slices.ContainsFunc(uses[from], func(e importEdge) bool { return reaches(uses, e.to, to, seen) })
}
