package rules

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

// givenUp is a name that has another one in the dictionary, and which.
type givenUp struct {
	re      *regexp.Regexp
	instead string
	// in are the beginnings of the files that it is meant in; nil: everywhere. Elsewhere the
	// name may be that of something else.
	in []string
}

// ledgers are where nothing is listed: a row there would be the refcounts of a holder.
var ledgers = []string{
	"handles/", "shm/", "client/internal/", "broker/sessionfiles/", "broker/takeover/", "broker/record/", "protocol/layout.go",
	"rust/src/ledger/", "rust/src/memory/", "rust/src/holding/", "rust/src/lanes/", "rust/src/shm/", "rust/src/loom_models/",
	"rust/src/layout.rs", "rust/src/session/pin.rs", "rust/src/session/inherit.rs",
}

// replaced are parts of names that were given up: a name in code that has one of them at the
// beginning of a part, as in buryLate, theGhost or bury_late, has another name in the dictionary.
var replaced = []givenUp{
	{re: regexp.MustCompile(`^bur(?:y|ied|ial)(?:$|[A-Z])|Bur(?:y|ied|ial)(?:$|[A-Z])`), instead: "endSession"},
	{re: regexp.MustCompile(`^ghost|Ghost`), instead: "unacknowledged"},
	{re: regexp.MustCompile(`^caretaker|Caretaker`), instead: "reaper"},
	{re: regexp.MustCompile(`^leftAlone|LeftAlone$`), instead: "removeIfUnused"},
	{re: regexp.MustCompile(`^retired?(?:$|[A-Z])|Retired?(?:$|[A-Z])`), instead: "dropKept, deferredReleases"},
	{re: regexp.MustCompile(`^settled?(?:$|[A-Z])|[a-z]Settled?(?:$|[A-Z])|^Settled?$`), instead: "what it does: endEviction, finishRecovery"},
	{re: regexp.MustCompile(`^onLate$|^lateFiles$|^buriedLater$`), instead: "awaited, orphanedReply"},
	{re: regexp.MustCompile(`^roomtest$`), instead: "parttest"},
	{re: regexp.MustCompile(`^(?:raise|lower|reserve|ledger|own)Rows?$|(?:Raise|Lower|Reserve|Ledger|Own)Rows?$|[rR]ow(?:Words?|Cleared|Target)(?:$|[A-Z])`),
		instead: "refcounts, refcountWord"},
	{re: regexp.MustCompile(`^rows?(?:$|[A-Z])|Rows?(?:$|[A-Z])`), instead: "refcounts, refcountWord", in: ledgers},
	{re: regexp.MustCompile(`^keepers?(?:$|[A-Z])|Keepers?(?:$|[A-Z])`), instead: "descriptorStore, or what it is", in: []string{"broker/", "cmd/", "rust/src/", "rust/capi/src/", "python/src/"}},
}

// namedSources are the folders of Rust in which names that were given up are looked for.
var namedSources = []string{"rust/src/", "rust/capi/src/", "python/src/"}

// namesOf finds names that were given up, where they are declared or used.
func namesOf(f *File) []Violation {
	var out []Violation
	find := func(name, camel string, line int) {
		for _, w := range replaced {
			if (w.in == nil || f.begins(w.in)) && w.re.MatchString(camel) {
				out = append(out, Violation{f.Name, line, "the name " + name + " was given up: " + w.instead})
				return
			}
		}
	}
	if f.Go != nil {
		ast.Inspect(f.Go, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && !strings.HasPrefix(id.Name, "Test") {
				find(id.Name, id.Name, f.Line(id.Pos()))
			}
			return true
		})
	}
	if path.Ext(f.Name) == ".rs" && f.begins(namedSources) {
		for i, line := range strings.Split(rustCode(f.Text), "\n") {
			for _, name := range rustIdent.FindAllString(line, -1) {
				find(name, camelCase(name), i+1)
			}
		}
	}
	return out
}

// begins tells whether the file's name has one of the beginnings.
func (f *File) begins(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(f.Name, n) })
}

var rustIdent = regexp.MustCompile(`[A-Za-z_]\w*`)

// camelCase writes a name of Rust as Go would: row_word and ROW_WORD as rowWord. A name that is
// written so already stays.
func camelCase(name string) string {
	if name == strings.ToUpper(name) {
		name = strings.ToLower(name)
	}
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '_' })
	for i, p := range parts {
		if i > 0 {
			parts[i] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}
