package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// module is the import path of the project.
const module = "github.com/baton-ipc/baton"

// Violation is one place that breaks a rule. Line is 0 where the whole file,
// or its absence, is meant.
type Violation struct {
	File string
	Line int
	What string
}

// String gives the violation in the form file:line: what, which editors follow.
func (v Violation) String() string {
	if v.Line == 0 {
		return v.File + ": " + v.What
	}
	return fmt.Sprintf("%s:%d: %s", v.File, v.Line, v.What)
}

// Rule is one rule of the tree.
type Rule struct {
	Name  string
	Check func(*Tree) []Violation
}

// All lists every rule that reads nothing but the tree. [CheckBinaryDependencies]
// stands apart because it needs the output of the go command.
var All = []Rule{
	{"layers", CheckLayers},
	{"parts", CheckParts},
	{"rust-layers", CheckRustLayers},
	{"unix", CheckUnix},
	{"syscall", CheckSyscall},
	{"unsafe", CheckUnsafe},
	{"cgo", CheckCgo},
	{"sync", CheckSync},
	{"orders", CheckOrders},
	{"go-fences", CheckGoFences},
	{"map", CheckMap},
	{"steps", CheckSteps},
	{"model-table", CheckModelTable},
	{"model-runs", CheckModelRuns},
	{"size", CheckSize},
	{"merged", CheckMerged},
	{"package-comment", CheckPackageComments},
	{"version", CheckVersion},
	{"paths", CheckPaths},
	{"words", CheckWords},
	{"readmes", CheckReadmes},
}

// File is one text file of the tree. Name is its path below the root, with
// slashes. For Go files Go and Set hold the parsed source, else they are nil.
type File struct {
	Name string
	Text string
	Go   *ast.File
	Set  *token.FileSet
}

// Dir is the folder of the file below the root, "." for the root.
func (f *File) Dir() string { return path.Dir(f.Name) }

// Test says whether the file is Go test code.
func (f *File) Test() bool { return strings.HasSuffix(f.Name, "_test.go") }

// Line gives the line number of a position in a Go file.
func (f *File) Line(p token.Pos) int { return f.Set.Position(p).Line }

// Tree is a snapshot of the project's text files in the order of their names.
type Tree struct {
	Files []*File
}

// skipDirs are folders of build outputs and foreign files, skipped wherever
// they stand. bin is skipped at the root only: Rust keeps sources in src/bin.
var skipDirs = []string{
	".git", ".venv", "__pycache__", "dist", "node_modules", "target", "vendor",
}

// Load reads every text file of fsys. It fails when a file cannot be read or a
// Go file does not parse. Go files below a testdata folder stay unparsed.
func Load(fsys fs.FS) (*Tree, error) {
	tree := &Tree{}
	set := token.NewFileSet()
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("walk %s: %w", name, err)
		}
		if entry.IsDir() {
			if slices.Contains(skipDirs, entry.Name()) || name == "bin" || name == "build" {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || name == ".git" { // a file in a second working tree
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if bytes.IndexByte(data[:min(len(data), 8192)], 0) >= 0 {
			return nil
		}
		file := &File{Name: name, Text: string(data)}
		if strings.HasSuffix(name, ".go") && !strings.Contains("/"+name, "/testdata/") {
			file.Set = set
			file.Go, err = parser.ParseFile(set, name, data, parser.ParseComments)
			if err != nil {
				return fmt.Errorf("parse %s: %w", name, err)
			}
		}
		tree.Files = append(tree.Files, file)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return tree, nil
}

// File gives the file of that name, or nil.
func (t *Tree) File(name string) *File {
	for _, f := range t.Files {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// GoFiles gives the parsed Go files, tests included.
func (t *Tree) GoFiles() []*File {
	var out []*File
	for _, f := range t.Files {
		if f.Go != nil {
			out = append(out, f)
		}
	}
	return out
}

// within says whether folder dir is top or lies below it.
func within(dir, top string) bool {
	return dir == top || strings.HasPrefix(dir, top+"/")
}

// withinAny says whether dir is one of tops or lies below one.
func withinAny(dir string, tops []string) bool {
	return slices.ContainsFunc(tops, func(top string) bool { return within(dir, top) })
}
