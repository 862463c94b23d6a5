// Command delays makes races likely: it writes a copy of the project's code in
// which every lock, atomic, channel operation, system call and start of a
// goroutine has a pause before and after it, and the file that has the go
// command take the copies for the sources (go test -overlay). Of the Rust crate
// it writes such a copy too, with a pause before each step, and what has cargo
// take it. At run time the pauses of a few places, chosen by BATON_DELAYS, are
// long, those of the others short and seldom; without it there are none.
// `make test-delays` runs tests so, build/delays/run any command.
//
// It reads the project's sources and writes below one folder. Nothing imports it.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed pause.go.txt
var pause []byte

// dirs hold the code that gets pauses: patterns of folders.
var dirs = []string{"broker", "broker/*", "client", "cmd/baton", "cudaipc", "dlpack", "handles", "internal/sys", "internal/wire", "shm"}

func main() {
	out := flag.String("o", "build/delays", "the folder to write")
	flag.Parse()
	places, err := write(*out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "delays:", err)
		os.Exit(1)
	}
	fmt.Printf("%d pauses\n", places)
}

// write makes the copies and overlay.json, and returns how many pauses there are.
func write(out string) (int, error) {
	out, err := filepath.Abs(out)
	if err != nil {
		return 0, err
	}
	root, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	replace := map[string]string{}
	overlay := func(file string, data []byte) error {
		to := filepath.Join(out, file+".txt") // no part of ./... itself
		replace[filepath.Join(root, file)] = to
		return put(to, data)
	}
	if err := overlay("internal/delays/pause/pause.go", pause); err != nil {
		return 0, err
	}
	places, err := writeRust(out)
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			return 0, fmt.Errorf("no Go files in %s: run it in the project's folder", dir)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			src, err := os.ReadFile(file)
			if err != nil {
				return 0, err
			}
			woven, n, err := weave(file, src, places)
			if err != nil {
				return 0, err
			}
			if n == 0 {
				continue
			}
			places += n
			if err := overlay(file, woven); err != nil {
				return 0, err
			}
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return 0, err
	}
	return places, put(filepath.Join(out, "overlay.json"), data)
}

// put writes a file, unless it is as it shall be: cargo builds what is newer anew.
func put(file string, data []byte) error {
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o700)
}

// steps are the names of functions and methods around which a pause may show a
// race: what synchronizes, and what takes a mapping or a descriptor away.
var steps = []string{
	"Lock", "Unlock", "RLock", "RUnlock", "TryLock", "Load", "Store", "CompareAndSwap", "Swap", "Add", "And", "Or",
	"Load32", "Load64", "Store32", "Store64", "Add64", "CompareAndSwap32", "CompareAndSwap64", "Fence",
	"Take", "Drop", "Count", "take", "end", "Wait", "Wake", "Done", "Do", "Stop", "Reset", "AfterFunc", "AddCleanup",
	"Close", "Unmap", "Map", "Mmap", "Munmap", "Discard", "close", "Dup", "Read", "Write", "WriteSome",
	"Pread", "Pwrite", "Fallocate", "Ftruncate", "Sendmsg", "Recvmsg", "Futex", "Kill", "Poll", "Control",
}

// weaver finds the places of one file and what is written there.
type weaver struct {
	fset  *token.FileSet
	first int // the number of the next place
	count int
	edits []edit
}

type edit struct {
	at   int
	text string
}

// weave returns a source with pauses, on the lines where the code stood before.
func weave(name string, src []byte, first int) ([]byte, int, error) {
	w := &weaver{fset: token.NewFileSet(), first: first}
	file, err := parser.ParseFile(w.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, 0, err
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil || f.Doc != nil && slices.ContainsFunc(f.Doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:") }) {
			continue // the compiler wants something particular of it
		}
		ast.Inspect(f.Body, w.visit)
	}
	if w.count == 0 {
		return src, 0, nil
	}
	w.insert(file.Name.End(), `; import delays "github.com/baton-ipc/baton/internal/delays/pause"`)
	slices.SortStableFunc(w.edits, func(a, b edit) int { return a.at - b.at })
	var out bytes.Buffer
	done := 0
	for _, e := range w.edits {
		out.Write(src[done:e.at])
		out.WriteString(e.text)
		done = e.at
	}
	out.Write(src[done:])
	return out.Bytes(), w.count, nil
}

func (w *weaver) insert(pos token.Pos, text string) {
	w.edits = append(w.edits, edit{w.fset.Position(pos).Offset, text})
}

// call is the text of one pause.
func (w *weaver) call() string {
	w.count++
	return fmt.Sprintf("delays.At(%d)", w.first+w.count-1)
}

func (w *weaver) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BlockStmt:
		w.list(n.List)
	case *ast.CaseClause:
		w.list(n.Body)
	case *ast.CommClause:
		w.list(n.Body)
		w.insert(n.Colon+1, " "+w.call()+"; ")
	case *ast.GoStmt:
		if f, ok := n.Call.Fun.(*ast.FuncLit); ok {
			w.insert(f.Body.Lbrace+1, " "+w.call()+"; ")
		}
	}
	return true
}

// list puts pauses around the statements that have a step in them.
func (w *weaver) list(stmts []ast.Stmt) {
	for _, s := range stmts {
		if !step(s) {
			continue
		}
		switch s.(type) {
		case *ast.DeferStmt:
			w.insert(s.Pos(), "defer "+w.call()+"; ") // runs after what is put off
		case *ast.ExprStmt, *ast.AssignStmt, *ast.SendStmt, *ast.GoStmt, *ast.IncDecStmt, *ast.DeclStmt:
			w.insert(s.Pos(), w.call()+"; ")
			w.insert(s.End(), "; "+w.call())
		default:
			w.insert(s.Pos(), w.call()+"; ")
		}
	}
}

// step tells whether a statement itself, without the blocks in it, has a step.
func step(s ast.Stmt) bool {
	found := false
	switch s.(type) {
	case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt:
		return true
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause, *ast.LabeledStmt:
		return false
	}
	ast.Inspect(s, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt, *ast.FuncLit:
			return false
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		case *ast.CallExpr:
			name := ""
			switch f := n.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
				if x, ok := f.X.(*ast.Ident); ok && x.Name == "unix" {
					found = true
				}
			}
			found = found || slices.Contains(steps, name)
		}
		return !found
	})
	return found
}
