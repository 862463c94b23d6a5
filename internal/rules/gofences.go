package rules

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
)

// goFence is a call of shm.Fence in Go.
type goFence struct{ file, function string }

func (f goFence) key() string { return fmt.Sprintf("`%s` `%s`", f.file, f.function) }

// goFenceRow matches a row of the table of Go's fences: where, how many, the pair, what finds its absence.
var goFenceRow = regexp.MustCompile("^\\| `([^`]+\\.go)` `([^`]+)` \\| (\\d+) \\| `([a-z-]+)` \\| (.+) \\|$")

// modelRun matches a run of a model in it.
var modelRun = regexp.MustCompile("`([a-z]+ -D[^`]+)`")

// CheckGoFences compares the table of Go's fences in docs/memory-order.md with the code. On amd64 no test finds one that is
// missing: the atomics around it are full fences there. So a fence goes, or comes, only together with its row.
func CheckGoFences(t *Tree) []Violation {
	found, lines := map[goFence]int{}, map[goFence]int{}
	var out []Violation
	for _, f := range t.Files {
		if f.Go == nil || strings.HasSuffix(f.Name, "_test.go") {
			continue
		}
		for _, d := range f.Go.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && isFence(call.Fun, f.Go.Name.Name) {
					at := goFence{f.Name, functionName(fn)}
					found[at]++
					lines[at] = f.Set.Position(call.Pos()).Line
				}
				return true
			})
		}
	}
	page := t.File(memoryOrderPage)
	if page == nil {
		return nil
	}
	for n, line := range strings.Split(page.Text, "\n") {
		m := goFenceRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at := goFence{m[1], m[2]}
		switch count := fmt.Sprint(found[at]); {
		case found[at] == 0:
			out = append(out, Violation{page.Name, n + 1, "no such fence in the code, or a second row for it: " + at.key()})
		case count != m[3]:
			out = append(out, Violation{at.file, lines[at], fmt.Sprintf("%s has %s fences, in %s %s: change what is wrong, after it was thought over for arm64", at.function, count, page.Name, m[3])})
		}
		delete(found, at)
		for _, run := range modelRun.FindAllStringSubmatch(m[5], -1) {
			if runs := t.File("models/runs"); runs == nil || !strings.Contains(runs.Text+"\n", " "+run[1]+"\n") {
				out = append(out, Violation{page.Name, n + 1, "models/runs has no run " + run[1]})
			}
		}
	}
	for at, count := range found {
		out = append(out, Violation{at.file, lines[at], fmt.Sprintf("this fence is missing in %s: add the row | %s | %d | its pair | what finds out that it is missing |", page.Name, at.key(), count)})
	}
	return sorted(out)
}

func isFence(f ast.Expr, pkg string) bool {
	switch f := f.(type) {
	case *ast.SelectorExpr:
		x, ok := f.X.(*ast.Ident)
		return ok && x.Name == "shm" && f.Sel.Name == "Fence"
	case *ast.Ident:
		return pkg == "shm" && f.Name == "Fence"
	}
	return false
}

// functionName is the name of a function, of a method with its type.
func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}
