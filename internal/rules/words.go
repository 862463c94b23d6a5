package rules

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// word is an expression that the project does not use, and what stands in its place.
type word struct {
	re      *regexp.Regexp
	instead string
}

func newWord(pattern, instead string) word {
	return word{regexp.MustCompile(`(?i)\b(?:` + pattern + `)\b`), instead}
}

// phrases are expressions that no prose of the project uses: they have no subject that is a
// thing, or they are metaphors. Prose is comments, error texts and pages.
var phrases = []word{
	newWord(`nobody|somebody|everybody|anybody|someone|whoever`, "name the thing: a session, a process, a client, a user"),
	newWord(`hears? of|heard of|told of|tells? of`, "say: is notified of, learns of, reports, shows"),
	newWord(`in vain`, "say: without a result"),
	newWord(`dear`, "say: slow, or what it costs"),
	newWord(`for ever`, "say: without a timeout, or until what happens"),
	newWord(`(?:be|was|were|had) had`, "say: is available, can be taken, can be opened"),
	newWord(`buried|buries|burying`, "a session is ended; see Words in docs/architecture.md"),
	newWord(`ghosts?|caretakers?`, "see Words in docs/architecture.md: unacknowledged, reaper"),
	newWord(`retires?|retired`, "messages are dropped; the mark RETIRING alone keeps the word"),
	newWord(`room of the broker|rooms of the broker|broker's rooms?`, "it is a part of the broker"),
	newWord(`stands? still|stood still|standing still`, "a process is suspended"),
	newWord(`take-overs?`, "takeover"),
	newWord(`the begin`, "say: the start"),
	newWord(`ledger rows?|row words?|(?:own|broker's|session's|keeper's|parent's|dead) row|row of the dead`, "the counts of a holder are its refcounts, one is a refcount word"),
	newWord(`keepers? of descriptors`, "descriptor store"),
	newWord(`the own`, "whose own: the session's own, its own"),
	newWord(`(?:process|writer|sender|setter|provider|peer|broker)'s word`, "unchecked data from it"),
	newWord(`predecessors?|former brokers?|brokers before it|broker before this one|dead broker's clients`, "previous broker"),
}

// productPhrases are expressions that only tests use, for the hostile clients that they play.
var productPhrases = []word{
	newWord(`liars?|honest(?:ly)?`, "a client that breaks the protocol, or keeps it"),
	newWord(`(?:has|have|had|to) (?:hear|heard)`, "say: acknowledges the notice, is notified of, knows"),
}

// tests are the folders of code that only tests run; files of tests beside other code have their own names.
var tests = []string{"integration", "python/tests", "rust/tests", "rust/capi/tests", "rust/testkit", "internal/testkit"}

// isTest tells whether only tests run a file.
func isTest(f *File) bool {
	return f.Test() || strings.Contains(path.Base(f.Name), "test") || slices.ContainsFunc(tests, func(dir string) bool { return within(f.Dir(), dir) })
}

// wholeText are the files in which every line is prose or near to it.
var wholeText = []string{".md", ".py", ".pyi", ".yml", ".yaml", ".toml", ".json", ".html"}

// who finds the pronoun in comments and texts, with the words before and behind it.
var who = regexp.MustCompile(`(?i)(?:([\w'-]+),? )?\bwho\b(?: (\w+))?`)

// persons are words that "who" may follow, as in the user who started the broker.
var persons = []string{"user", "users", "people", "developer", "developers", "operator", "operators"}

// noPerson tells what is wrong with a "who", "" where nothing is. Who may connect is a
// question about users; "who is" begins the comment of a function of that name.
func noPerson(text string) string {
	for _, m := range who.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(persons, strings.ToLower(m[1])) && m[2] != "may" && m[2] != "is" {
			return strings.TrimSpace(m[0])
		}
	}
	return ""
}

// CheckWords fails on an expression that the project does not use: in comments, in texts of
// Go, in pages and Python, those of tests too. It fails, too, on a name of Go or Rust that was
// given up. The change log, which is history, and the samples of this package are left out.
func CheckWords(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.Files {
		out = append(out, namesOf(f)...)
		// A header of an older version stays as it was.
		if within(f.Dir(), "internal/rules") || within(f.Dir(), "integration/langs/testdata/headers") {
			continue
		}
		prose := comments(f)
		if f.Go != nil {
			prose = append(prose, textsOf(f)...)
		}
		for _, c := range prose {
			if found := noPerson(c.text); found != "" {
				out = append(out, Violation{f.Name, c.line, "says “" + found + "”: the subject is a thing: a session that, a process that"})
			}
		}
		if slices.Contains(wholeText, path.Ext(f.Name)) && f.Name != "CHANGELOG.md" {
			for i, line := range strings.Split(f.Text, "\n") {
				prose = append(prose, comment{i + 1, line})
			}
		}
		words := phrases
		if !isTest(f) {
			words = slices.Concat(phrases, productPhrases)
		}
		for _, c := range prose {
			for _, w := range words {
				if m := w.re.FindString(c.text); m != "" {
					out = append(out, Violation{f.Name, c.line, "says “" + m + "”: " + w.instead})
				}
			}
		}
	}
	return sorted(out)
}

// textsOf gives the string literals of a Go file.
func textsOf(f *File) []comment {
	var out []comment
	ast.Inspect(f.Go, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			for i, line := range strings.Split(lit.Value, "\n") {
				out = append(out, comment{f.Line(lit.Pos()) + i, line})
			}
		}
		return true
	})
	return out
}
