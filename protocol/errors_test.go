package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// errorNames is one failure in all languages. The status in C is its place in
// the list, so none is ever removed or put between others.
type errorNames struct {
	Code        string   `json:"code"`
	Go          string   `json:"go"`
	Rust        string   `json:"rust"`
	Python      string   `json:"python"`
	PythonBases []string `json:"python_bases"`
	C           string   `json:"c"`
	CValue      int      `json:"c_value"`
	Remedy      string   `json:"remedy"`
}

func listedErrors(t *testing.T) []errorNames {
	t.Helper()
	text, err := os.ReadFile("testdata/errors.json")
	require.NoError(t, err)
	var f struct {
		Errors []errorNames `json:"errors"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&f))
	require.NotEmpty(t, f.Errors)
	return f.Errors
}

func knownCodes(t *testing.T) []string {
	var out []string
	for _, e := range listedErrors(t) {
		out = append(out, e.Code)
	}
	return out
}

// stringConstants gives the exported text constants of a source file by name.
func stringConstants(t *testing.T, file string) map[string]string {
	t.Helper()
	out := map[string]string{}
	eachValue(t, file, token.CONST, func(name string, value ast.Expr) {
		if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.STRING && ast.IsExported(name) {
			text, err := strconv.Unquote(lit.Value)
			require.NoError(t, err)
			out[name] = text
		}
	})
	require.NotEmpty(t, out)
	return out
}

func eachValue(t *testing.T, file string, tok token.Token, fn func(name string, value ast.Expr)) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != tok {
			continue
		}
		for _, s := range g.Specs {
			spec := s.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if i < len(spec.Values) {
					fn(name.Name, spec.Values[i])
				}
			}
		}
	}
}

// sentinels gives the code constant that each sentinel of errors.go is made of.
func sentinels(t *testing.T) map[string]string {
	out := map[string]string{}
	eachValue(t, "errors.go", token.VAR, func(name string, value ast.Expr) {
		if !strings.HasPrefix(name, "Err") {
			return
		}
		for _, element := range value.(*ast.UnaryExpr).X.(*ast.CompositeLit).Elts {
			if field := element.(*ast.KeyValueExpr); field.Key.(*ast.Ident).Name == "Code" {
				out[name] = field.Value.(*ast.Ident).Name
			}
		}
	})
	return out
}

func TestListOfErrorsIsThatOfTheCode(t *testing.T) {
	codes := stringConstants(t, "errors.go")
	inGo := map[string]string{} // sentinel by code
	for sentinel, constant := range sentinels(t) {
		require.Contains(t, codes, constant, sentinel)
		assert.NotContains(t, inGo, codes[constant], "two sentinels of one code")
		inGo[codes[constant]] = sentinel
	}
	assert.Len(t, inGo, len(codes), "each code has a sentinel")
	inList := map[string]string{}
	for _, e := range listedErrors(t) {
		inList[e.Code] = e.Go
	}
	assert.Equal(t, inGo, inList, "testdata/errors.json lists the codes of errors.go, and no others")
}

func TestErrorsHaveOneNameInEachLanguage(t *testing.T) {
	camel := regexp.MustCompile(`([a-z])([A-Z])`)
	seen := map[string]bool{}
	classes := []string{"Error", "ConnectionError", "MemoryError", "ValueError", "KeyError", "TimeoutError", "BufferError",
		"PermissionError", "NotImplementedError", "queue.Empty", "queue.Full"}
	for i, e := range listedErrors(t) {
		assert.Equal(t, "Code::"+e.Code, e.Rust)
		inC := "BATON_" + strings.ToUpper(camel.ReplaceAllString(e.Code, "${1}_$2"))
		if inC == "BATON_VERSION" {
			inC = "BATON_VERSION_MISMATCH" // in C the other one is the version of the header
		}
		assert.Equal(t, inC, e.C)
		assert.Equal(t, i+1, e.CValue, "0 is BATON_OK; numbers stay")
		assert.Equal(t, e.Code, strings.TrimSuffix(e.Python, "Error"), "the code, with Error after what is no error's name by itself")
		assert.NotEmpty(t, e.Remedy, e.Code)
		require.NotEmpty(t, e.PythonBases, e.Code)
		for _, base := range e.PythonBases {
			assert.True(t, slices.Contains(classes, base), "%s is below %s, which is no class before it", e.Python, base)
		}
		classes = append(classes, e.Python)
		for _, name := range []string{e.Go, e.Rust, e.Python, e.C} {
			assert.False(t, seen[name], "%s stands for two errors", name)
			seen[name] = true
		}
	}
}

func TestErrorMatchesByCodeHoweverItCame(t *testing.T) {
	made := protocol.Errorf(protocol.CodeFull, "wait", "queue %q is full", "work").With("depth", 64)
	text, err := json.Marshal(made)
	require.NoError(t, err)
	var crossed *protocol.Error
	require.NoError(t, json.Unmarshal(text, &crossed))
	for _, e := range []error{made, crossed, fmt.Errorf("put: %w", crossed)} {
		assert.ErrorIs(t, e, protocol.ErrFull)
		assert.ErrorIs(t, e, protocol.ErrTimeout, "Full is a timeout")
		assert.NotErrorIs(t, e, protocol.ErrEmpty)
		assert.NotErrorIs(t, e, fs.ErrNotExist)
		var typed *protocol.Error
		require.True(t, errors.As(e, &typed))
		assert.Contains(t, typed.Detail, "depth")
	}
	assert.NotErrorIs(t, protocol.ErrTimeout, protocol.ErrFull, "a timeout need not be Full")
	assert.Equal(t, `baton: queue "work" is full (wait)`, made.Error())
	assert.Equal(t, "baton: timed out", protocol.ErrTimeout.Error())
}

func TestErrorInAnErrorKeepsItsRemedyToItself(t *testing.T) {
	inner := protocol.Errorf(protocol.CodeInvalid, "use another shape", "view of 3 elements")
	outer := protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "open: %w", inner)
	assert.Equal(t, "baton: open: view of 3 elements (use the handle as it was made)", outer.Error())
	assert.ErrorIs(t, outer, protocol.ErrInvalidHandle)
	assert.ErrorIs(t, outer, protocol.ErrInvalid)
	assert.ErrorIs(t, protocol.Errorf(protocol.CodeFull, "wait", "full").Because(fs.ErrClosed), fs.ErrClosed)
}

func TestErrorKeepsItsCauseOnThisSideOnly(t *testing.T) {
	made := protocol.Errorf(protocol.CodeNotFound, "make it", "open: %w", fs.ErrNotExist)
	assert.ErrorIs(t, made, fs.ErrNotExist)
	text, err := json.Marshal(made)
	require.NoError(t, err)
	var crossed *protocol.Error
	require.NoError(t, json.Unmarshal(text, &crossed))
	assert.NotErrorIs(t, crossed, fs.ErrNotExist)
	assert.ErrorIs(t, crossed, protocol.ErrNotFound)
}
