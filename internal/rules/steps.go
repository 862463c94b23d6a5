package rules

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// Step is one step of a model: its name, what the code does at that place, and
// where it stands in the model. A step that a model takes at several places is
// described at each of them in the same words.
type Step struct {
	Name string
	What string
	File string
	Line int
}

// Mark is one MODEL comment in the Go tree: the step it names, the file, the
// function around it ("" outside one) and the line of code that it belongs to.
type Mark struct {
	Step     string
	File     string
	Line     int
	Function string
	Code     string
}

var (
	stepText = regexp.MustCompile(`\bSTEP\s+(\S+?):\s+(.*?)\s*$`)
	markText = regexp.MustCompile(`\bMODEL((?:[\s,]+[^\s,:<>]+:[^\s,:<>]+)+)`)
	stepName = regexp.MustCompile(`^([a-z]+):[a-z][a-z0-9-]*$`)
	asmText  = regexp.MustCompile(`^TEXT\s+(\S+?)\(SB\)`)
)

// Steps gives the steps of all models in the order of the files. Besides, it
// reports names that are malformed, of another model than the file, or
// described twice in different words.
func Steps(t *Tree) ([]Step, []Violation) {
	var steps []Step
	var out []Violation
	what := map[string]string{}
	for _, f := range t.Files {
		model, isModel := strings.CutSuffix(path.Base(f.Name), ".pml")
		if !isModel {
			continue
		}
		for _, c := range comments(f) {
			if !strings.Contains(c.text, "STEP ") {
				continue
			}
			m := stepText.FindStringSubmatch(c.text)
			if m == nil {
				out = append(out, Violation{f.Name, c.line, "write /* STEP " + model + ":name: what the code does */ on one line"})
				continue
			}
			name := stepName.FindStringSubmatch(m[1])
			if name == nil || name[1] != model {
				out = append(out, Violation{f.Name, c.line, fmt.Sprintf("step %q: the name must be %s:, then small letters, digits and -", m[1], model)})
				continue
			}
			before, again := what[m[1]]
			switch {
			case !again:
				what[m[1]] = m[2]
				steps = append(steps, Step{m[1], m[2], f.Name, c.line})
			case before != m[2]:
				out = append(out, Violation{f.Name, c.line, "step " + m[1] + " is described in other words elsewhere"})
			}
		}
	}
	return steps, out
}

// Marks gives the MODEL comments of the Go tree, assembly included and tests
// left out. Besides, it reports marks after which no code stands.
func Marks(t *Tree) ([]Mark, []Violation) {
	var marks []Mark
	var out []Violation
	for _, f := range t.Files {
		if f.Test() || (f.Go == nil && path.Ext(f.Name) != ".s") {
			continue
		}
		lines := strings.Split(f.Text, "\n")
		for _, c := range comments(f) {
			m := markText.FindStringSubmatch(c.text)
			if m == nil {
				continue
			}
			at := codeLine(lines, c.line)
			if at == 0 {
				out = append(out, Violation{f.Name, c.line, "no code stands at or below this MODEL comment"})
				continue
			}
			for _, name := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
				marks = append(marks, Mark{name, f.Name, c.line, functionAt(f, lines, at), code(lines[at-1])})
			}
		}
	}
	return marks, out
}

// codeLine gives the number of the first line from line on that holds code, 0 if
// there is none. A comment at the end of a line of code belongs to that line.
func codeLine(lines []string, line int) int {
	for i := line; i <= len(lines); i++ {
		if code(lines[i-1]) != "" {
			return i
		}
	}
	return 0
}

// code gives a line without its // comment and the space around it.
func code(line string) string {
	before, _, _ := strings.Cut(line, "//")
	return strings.TrimSpace(before)
}

// functionAt names the function around a line: Name or Type.Name.
func functionAt(f *File, lines []string, line int) string {
	if f.Go == nil {
		for i := min(line, len(lines)); i > 0; i-- {
			if m := asmText.FindStringSubmatch(lines[i-1]); m != nil {
				return strings.TrimPrefix(m[1], "·")
			}
		}
		return ""
	}
	for _, decl := range f.Go.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || line < f.Line(fn.Pos()) || line > f.Line(fn.End()) {
			continue
		}
		if fn.Recv != nil && len(fn.Recv.List) == 1 {
			return receiver(fn.Recv.List[0].Type) + "." + fn.Name.Name
		}
		return fn.Name.Name
	}
	return ""
}

// receiver names the type of a method's receiver.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// CheckSteps fails on a step of a model without a MODEL comment in the Go tree,
// and on a MODEL comment that names no step.
func CheckSteps(t *Tree) []Violation {
	steps, out := Steps(t)
	marks, bad := Marks(t)
	out = append(out, bad...)
	if len(steps) == 0 {
		out = append(out, Violation{"models", 0, "no STEP comment found: the models are gone"})
	}
	known, marked := map[string]bool{}, map[string]bool{}
	for _, m := range marks {
		marked[m.Step] = true
	}
	for _, s := range steps {
		known[s.Name] = true
		if !marked[s.Name] {
			out = append(out, Violation{s.File, s.Line, "step " + s.Name + " has no line of code: mark it with the comment MODEL " + s.Name})
		}
	}
	for _, m := range marks {
		if !known[m.Step] {
			out = append(out, Violation{m.File, m.Line, "MODEL " + m.Step + ": no model has this step"})
		}
	}
	return out
}
