package rules

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// Access is an ordered access or a fence in the Rust crate: the file under
// rust/src, the function, the access as the page names it, its order, and where
// its name stands, as the compiler counts lines and columns.
type Access struct {
	File     string
	Function string
	What     string
	Order    string
	Line     int
	Column   int
}

// Key names an access on the page.
func (a Access) Key() string { return a.File + " " + a.Function + " " + a.What }

// OrderRow is a row of the table of orders: an access, the pair that it is an
// end of, the loom models and the litmus runs that find a weaker one out, or
// why it stays although none does.
type OrderRow struct {
	Access
	Pair   string
	Loom   []string
	Litmus []string
	Why    string
}

// regionOrders are the orders of the methods of shared words: rust/src/shm/region.rs.
var regionOrders = map[string]string{
	"load": "Acquire", "load32": "Acquire", "loads": "Acquire", "load_seq_cst": "SeqCst",
	"store": "Release", "store32": "Release", "stores": "Release",
	"add": "SeqCst", "or": "SeqCst", "and": "SeqCst", "add32": "SeqCst", "cas": "AcqRel",
	"fence": "SeqCst", "fence_acquire": "Acquire", "fence_release": "Release",
}

var (
	rustAccess = regexp.MustCompile(`(?:([\w.()\[\]?]*)\.)?\b(load|load32|loads|load_seq_cst|load_page|store|store32|stores|add|or|and|add32|cas|` +
		`swap|fetch_add|fetch_sub|fetch_or|fetch_and|fetch_update|compare_exchange|fence|fence_acquire|fence_release)\(`)
	rustOrder    = regexp.MustCompile(`\bOrdering::(\w+)`)
	orderImpl    = regexp.MustCompile(`^impl(?:<.*?>)? (?:.* for )?(\w+)`)
	rustFunction = regexp.MustCompile(`^(\s*)(?:pub(?:\([a-z]+\))? )?(?:const )?(?:unsafe )?fn (\w+)`)
	orderTests   = regexp.MustCompile(`(?m)^#\[cfg\((?:all\()?test.*\n(?:#.*\n)*mod \w+ \{`)
	orderRow     = regexp.MustCompile("^\\| `([^`]+)` `([^`]+)` \\| `([^`]+)` \\| (Acquire|Release|AcqRel|SeqCst) \\| (?:`([^`]+)`|—) \\| (.+) \\|$")
	quoted       = regexp.MustCompile("`([^`]+)`")
	// What has methods of these names and is no word: the views above the words, and values of other kinds.
	noWords = regexp.MustCompile(`^(?:refcounts|entries|chunks|self|self\.(?:refcounts|entries|chunks|stats)|self\.(?:words|members)\(.*|stats|.*\.stats|` +
		`.*\.as_ptr\(\)|.*fetch_max|known|.*take\(\)|p|it|self\.(?:of\.)?sets\..*)$`)
	wordsFiles = regexp.MustCompile(`^(?:shm|ledger)/\w+\.rs$|^(?:owners|turnstile)\.rs$`)
	// The file that gives the methods above their orders, words and atomics themselves, and tests.
	noAccesses = regexp.MustCompile(`(?:^|/)(?:region|words|words_loom|sync|sync_loom|segment|\w+_test)\.rs$|^loom_models/`)
)

// Accesses gives the ordered accesses and fences of the Rust crate: all of shm,
// the ledger and what threads share beside them; elsewhere the fences, what names
// its order, and the shared words of functions that are an end of a pair. Besides, it reports orders of region.rs
// that are not those which are listed here.
func Accesses(t *Tree) []Access {
	var out []Access
	for _, f := range t.Files {
		name, isRust := strings.CutPrefix(f.Name, "rust/src/")
		if !isRust || path.Ext(name) != ".rs" || noAccesses.MatchString(name) {
			continue
		}
		out = append(out, accessesOf(name, f.Text)...)
	}
	return out
}

func accessesOf(name, text string) []Access {
	if at := orderTests.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i], _, _ = strings.Cut(lines[i], "//")
	}
	var out []Access
	kind, function, count := "", "", map[string]int{}
	pairs := endsOfPairs(text)
	for i, line := range lines {
		if m := orderImpl.FindStringSubmatch(line); m != nil {
			kind = m[1]
		}
		if m := rustFunction.FindStringSubmatch(line); m != nil {
			function, count = m[2], map[string]int{}
			if m[1] != "" {
				function = kind + "::" + m[2]
			}
			continue
		}
		for _, m := range rustAccess.FindAllStringSubmatchIndex(line, -1) {
			of, method := "", line[m[4]:m[5]]
			if m[2] >= 0 {
				of = line[m[2]:m[3]]
			}
			args := arguments(line[m[1]:] + " " + strings.Join(lines[i+1:min(i+8, len(lines))], " "))
			order := ""
			if o := rustOrder.FindStringSubmatch(args); o != nil {
				order = o[1]
			} else if isWord(method, of, m[2] >= 0 || strings.HasPrefix(strings.TrimSpace(line), ".")) {
				order = regionOrders[method]
			}
			if order == "" || order == "Relaxed" || !wordsFiles.MatchString(name) && !pairs[function] && !strings.Contains(args, "Ordering::") && !strings.HasPrefix(method, "fence") {
				continue
			}
			first, _, _ := strings.Cut(args, ",")
			what := method + "(" + strings.TrimSpace(rustOrder.ReplaceAllString(first, "")) + ")"
			if count[what]++; count[what] > 1 {
				what = fmt.Sprintf("%s %d", what, count[what])
			}
			out = append(out, Access{name, function, what, order, i + 1, m[4] + 1})
		}
	}
	return out
}

// endsOfPairs gives the functions of a file that say, above them or inside, of which
// pair they are an end.
func endsOfPairs(text string) map[string]bool {
	out := map[string]bool{}
	kind, function, above := "", "", false
	for line := range strings.SplitSeq(text, "\n") {
		code, comment, _ := strings.Cut(line, "//")
		sync := strings.Contains(comment, "SYNC ")
		if m := orderImpl.FindStringSubmatch(code); m != nil {
			kind = m[1]
		}
		if m := rustFunction.FindStringSubmatch(code); m != nil {
			function = m[2]
			if m[1] != "" {
				function = kind + "::" + m[2]
			}
			out[function], above = out[function] || above, false
		}
		switch {
		case sync && strings.HasPrefix(comment, "/"):
			above = true // of the function that comes next
		case sync:
			out[function] = true
		}
	}
	return out
}

// isWord says whether a call is one of the methods of shared words, or a fence.
func isWord(method, of string, dotted bool) bool {
	if strings.HasPrefix(method, "fence") {
		return !dotted
	}
	return dotted && !noWords.MatchString(of)
}

// arguments gives what stands before the parenthesis that closes a call.
func arguments(rest string) string {
	depth := 1
	for i, c := range rest {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return rest[:i]
			}
		}
	}
	return rest
}

// OrderRows gives the rows of the table of orders in docs/memory-order.md.
func OrderRows(t *Tree) []OrderRow {
	page := t.File(memoryOrderPage)
	if page == nil {
		return nil
	}
	var rows []OrderRow
	for i, line := range strings.Split(page.Text, "\n") {
		m := orderRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		row := OrderRow{Access: Access{File: m[1], Function: m[2], What: m[3], Order: m[4], Line: i + 1}, Pair: m[5]}
		found, why, _ := strings.Cut(m[6], "stays: ")
		row.Why = why
		for _, name := range quoted.FindAllStringSubmatch(found, -1) {
			if strings.Contains(name[1], " -D") {
				row.Litmus = append(row.Litmus, name[1])
			} else {
				row.Loom = append(row.Loom, name[1])
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// CheckOrders compares the table of orders in docs/memory-order.md with the code:
// each access stands there with the order that it has, with a pair that the page
// has, and with models and litmus runs that there are, or the reason why it stays.
func CheckOrders(t *Tree) []Violation {
	accesses := Accesses(t)
	rows := OrderRows(t)
	if len(accesses) == 0 && len(rows) == 0 {
		return nil // a tree without the Rust crate
	}
	var out []Violation
	listed, known := map[string]OrderRow{}, checksOf(t)
	for _, r := range rows {
		if _, twice := listed[r.Key()]; twice {
			out = append(out, Violation{memoryOrderPage, r.Line, "this access stands here twice: " + r.Key()})
		}
		listed[r.Key()] = r
		out = append(out, known.check(r)...)
	}
	for _, a := range accesses {
		r, ok := listed[a.Key()]
		delete(listed, a.Key())
		switch {
		case !ok:
			out = append(out, Violation{"rust/src/" + a.File, a.Line, fmt.Sprintf("%s is missing in %s: add the row | `%s` `%s` | `%s` | %s | its pair | what finds a weaker one out |",
				a.What, memoryOrderPage, a.File, a.Function, a.What, a.Order)})
		case r.Order != a.Order:
			out = append(out, Violation{"rust/src/" + a.File, a.Line, fmt.Sprintf("%s of %s is %s, in %s %s: change what is wrong, then run make mutants T=%s",
				a.What, a.Function, a.Order, memoryOrderPage, r.Order, a.Function)})
		}
	}
	for _, r := range listed {
		out = append(out, Violation{memoryOrderPage, r.Line, "no such access in the code: " + r.Key()})
	}
	out = append(out, checkCounts(t, rows)...)
	return sorted(append(append(out, checkRegion(t)...), checkSync(t)...))
}

const (
	regionFile = "rust/src/shm/region.rs"
	syncFile   = "rust/src/sync.rs"
)

// regionBodies are what the methods of shared words that name no order are made of.
var regionBodies = map[string]string{"loads": "words.load(", "stores": "words.store(", "fence": "sync::full_fence()"}

// regionRelaxed are the methods of shared words that order nothing.
var regionRelaxed = map[string]bool{"peek": true, "put": true}

// checkRegion compares the methods of shared words with the orders that regionOrders says
// they have: the rows of the page count on those.
func checkRegion(t *Tree) []Violation {
	f := t.File(regionFile)
	if f == nil {
		return nil
	}
	var out []Violation
	bad := func(line int, format string, args ...any) {
		out = append(out, Violation{f.Name, line, fmt.Sprintf(format, args...)})
	}
	function, begin, kept := "", 0, true
	end := func() {
		if want := regionOrders[function]; want != "" && !kept {
			bad(begin, "%s is not %s any more, as the rows of %s count on: change what is wrong", function, want, memoryOrderPage)
		}
	}
	for i, line := range strings.Split(f.Text, "\n") {
		line, _, _ = strings.Cut(line, "//")
		if m := rustFunction.FindStringSubmatch(line); m != nil {
			end()
			function, begin, kept = m[2], i+1, false
			continue
		}
		want, m := regionOrders[function], rustOrder.FindStringSubmatch(line)
		body := regionBodies[function]
		kept = kept || body != "" && strings.Contains(line, body)
		switch {
		case m == nil || kept:
		case want == "" && !regionRelaxed[function]:
			bad(i+1, "%s orders accesses, and regionOrders does not know it: add it there", function)
		case want != "" && m[1] != want:
			bad(i+1, "%s is %s, and %s in regionOrders, on which the rows of %s count: change what is wrong", function, m[1], want, memoryOrderPage)
			kept = true
		default:
			kept = true // an exchange names a second order, of its failure
		}
		if strings.Contains(line, "self.words().load(") {
			kept = true // of one word, by the load above
		}
	}
	end()
	return out
}

var (
	syncAsm    = regexp.MustCompile(`asm!\(\s*"([^"]+)"|load_page!\(\w+, \w+, "([^"]+)", "([^"]+)"\)`)
	syncFence  = regexp.MustCompile(`\bfence\(Ordering::\w+\)`)
	syncLoose  = regexp.MustCompile(`\b(nomem|readonly|pure)\b`)
	machineRow = regexp.MustCompile("(?m)^\\| `(?:full_fence|load_page)`.*$")
)

// checkSync compares what the orders are made of on each machine with the table of
// docs/memory-order.md. No test on one machine shows what another does.
func checkSync(t *Tree) []Violation {
	f, page := t.File(syncFile), t.File(memoryOrderPage)
	if f == nil || page == nil {
		return nil
	}
	text := f.Text
	if at := orderTests.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	text = rustComment.ReplaceAllString(text, "")
	used := map[string]int{}
	for _, m := range syncAsm.FindAllStringSubmatch(text, -1) {
		for _, s := range m[1:] {
			if s != "" {
				used[s]++
			}
		}
	}
	for _, m := range syncFence.FindAllString(text, -1) {
		used[m]++
	}
	said := map[string]int{}
	for _, row := range machineRow.FindAllString(page.Text, -1) {
		for _, m := range quoted.FindAllStringSubmatch(row, -1) {
			if m[1] != "full_fence" && m[1] != "load_page" {
				said[m[1]]++
			}
		}
	}
	var out []Violation
	for what, n := range used {
		if said[what] != n {
			out = append(out, Violation{f.Name, 0, fmt.Sprintf("%s stands here %d times and in the table of %s %d times: change what is wrong, after it was thought over for each machine", what, n, memoryOrderPage, said[what])})
		}
	}
	for what := range said {
		if used[what] == 0 {
			out = append(out, Violation{memoryOrderPage, 0, fmt.Sprintf("%s has no %s any more", f.Name, what)})
		}
	}
	if loose := syncLoose.FindString(text); loose != "" {
		out = append(out, Violation{f.Name, 0, "an asm block with " + loose + " lets the compiler move accesses over it"})
	}
	return out
}

var mutantCounts = regexp.MustCompile(`Of (\d+) accesses of the Rust crate loom finds the mutants of (\d+), and none survives\. (\d+) are found by litmus runs alone.* (\d+) stay as they are`)

// checkCounts compares what docs/models.md says of the rows with the rows.
func checkCounts(t *Tree, rows []OrderRow) []Violation {
	page := t.File("docs/models.md")
	if page == nil {
		return nil
	}
	m := mutantCounts.FindStringSubmatch(page.Text)
	if m == nil {
		return nil
	}
	var loom, litmus, stay int
	for _, r := range rows {
		switch {
		case len(r.Loom) > 0:
			loom++
		case len(r.Litmus) > 0 && r.Why == "":
			litmus++
		default:
			stay++
		}
	}
	want := fmt.Sprint(len(rows), loom, litmus, stay)
	if got := strings.Join(m[1:], " "); got != want {
		return []Violation{{page.Name, 0, fmt.Sprintf("it counts %s accesses, found by loom, found by litmus runs alone, and that stay; %s has %s", got, memoryOrderPage, want)}}
	}
	return nil
}

// orderChecks are what a row of the table may name: pairs of the page, loom models, litmus runs.
type orderChecks struct{ page, models, runs string }

func checksOf(t *Tree) (c orderChecks) {
	for _, f := range t.Files {
		switch {
		case f.Name == memoryOrderPage:
			c.page = f.Text
		case f.Name == modelRuns:
			c.runs = f.Text
		case strings.HasPrefix(f.Name, "rust/src/loom_models/"):
			c.models += f.Text
		}
	}
	return c
}

func (c orderChecks) check(r OrderRow) []Violation {
	var out []Violation
	bad := func(what string) { out = append(out, Violation{memoryOrderPage, r.Line, what}) }
	if r.Pair != "" && !strings.Contains(c.page, "\n| `"+r.Pair+"` | ") {
		bad("the page has no pair " + r.Pair)
	}
	for _, name := range r.Loom {
		if !strings.Contains(c.models, "fn "+name+"()") {
			bad("there is no loom model " + name)
		}
	}
	for _, run := range r.Litmus {
		model, settings, _ := strings.Cut(run, " ")
		if !strings.Contains(c.runs, "fail short "+model+" "+settings+"\n") {
			bad("models/runs has no run that must fail: " + run)
		}
	}
	if len(r.Loom)+len(r.Litmus) == 0 && r.Why == "" {
		bad("name the model that finds a weaker order out, or say why it stays")
	}
	return out
}
