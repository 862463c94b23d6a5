package rules

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

const sysDir = "internal/sys"

// unsafeDirs may hold unsafe, in files named *_unsafe.go and in their tests.
// internal/sys is among them because a futex call and an mmap take addresses.
var unsafeDirs = []string{"shm", "dlpack", "cudaipc", "client", sysDir}

// unsafeFreeDirs may use unsafe in any file: glue to C and nothing else.
var unsafeFreeDirs = []string{"dlpack/cabi"}

// cgoDir is the name of a folder that drives C code for tests. It is the only
// place for cgo, and only tests may import it.
const cgoDir = "cdriver"

// eachImport calls fn for every import of every Go file, tests included.
func eachImport(t *Tree, fn func(f *File, line int, path, name string)) {
	for _, f := range t.GoFiles() {
		for _, spec := range f.Go.Imports {
			name := ""
			if spec.Name != nil {
				name = spec.Name.Name
			}
			fn(f, f.Line(spec.Pos()), importPath(spec.Path.Value), name)
		}
	}
}

// CheckUnix fails where a file outside internal/sys imports x/sys/unix.
func CheckUnix(t *Tree) []Violation {
	var out []Violation
	eachImport(t, func(f *File, line int, p, _ string) {
		if p == "golang.org/x/sys/unix" && !within(f.Dir(), sysDir) {
			out = append(out, Violation{f.Name, line, "golang.org/x/sys/unix belongs to internal/sys alone: add what is missing there"})
		}
	})
	return out
}

// CheckUnsafe fails on an import of unsafe outside the files meant for it.
func CheckUnsafe(t *Tree) []Violation {
	var out []Violation
	eachImport(t, func(f *File, line int, p, _ string) {
		if p != "unsafe" || withinAny(f.Dir(), unsafeFreeDirs) {
			return
		}
		named := strings.HasSuffix(f.Name, "_unsafe.go") || f.Test()
		if !named || !withinAny(f.Dir(), unsafeDirs) {
			out = append(out, Violation{f.Name, line, fmt.Sprintf(
				"unsafe belongs in files *_unsafe.go (and tests) of %s", strings.Join(unsafeDirs, ", "))})
		}
	})
	return out
}

// CheckCgo fails on cgo outside a folder named cdriver, and on code other than
// tests that imports such a folder.
func CheckCgo(t *Tree) []Violation {
	var out []Violation
	eachImport(t, func(f *File, line int, p, _ string) {
		switch {
		case p == "C" && path.Base(f.Dir()) != cgoDir:
			out = append(out, Violation{f.Name, line, "cgo belongs in a folder named " + cgoDir + ", which only tests import: the product builds without cgo"})
		case path.Base(p) == cgoDir && !f.Test():
			out = append(out, Violation{f.Name, line, p + " drives C code for tests: only _test.go files may import it"})
		}
	})
	return out
}

// syscallTypes are the types of package syscall that code outside internal/sys
// meets: in errors, in os/exec, in file information and network connections.
var syscallTypes = []string{
	"Errno", "Signal", "SysProcAttr", "Credential", "WaitStatus", "Rusage", "Stat_t", "Conn", "RawConn",
}

var syscallConstant = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)

// CheckSyscall fails where code outside internal/sys uses more of package
// syscall than its constants (SIGTERM, ENOENT, O_CLOEXEC…, but no SYS_ number)
// and the types listed above. What calls the kernel belongs to internal/sys.
func CheckSyscall(t *Tree) []Violation {
	var out []Violation
	eachImport(t, func(f *File, line int, p, name string) {
		if p != "syscall" || within(f.Dir(), sysDir) {
			return
		}
		if name == "." || name == "_" {
			out = append(out, Violation{f.Name, line, "import syscall by its name, so that its uses can be seen"})
			return
		}
		if name == "" {
			name = "syscall"
		}
		ast.Inspect(f.Go, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			// A local variable of the same name is resolved by the parser, a package is not.
			id, ok := sel.X.(*ast.Ident)
			if !ok || id.Name != name || id.Obj != nil {
				return true
			}
			used := sel.Sel.Name
			constant := syscallConstant.MatchString(used) && !strings.HasPrefix(used, "SYS_")
			if !constant && !slices.Contains(syscallTypes, used) {
				out = append(out, Violation{f.Name, f.Line(sel.Pos()), fmt.Sprintf(
					"syscall.%s: calls to the kernel belong to internal/sys; elsewhere only constants and %s", used, strings.Join(syscallTypes, ", "))})
			}
			return true
		})
	})
	return out
}
