package rules

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

const (
	brokerDir = "broker"
	recordDir = "broker/record"
)

// forTests are the packages that make parts of the broker or of the client for tests.
var forTests = []string{"broker/parttest", "client/internal/parttest"}

// brokerParts are called with the broker's mutex held and know no connection, process
// or goroutine.
var brokerParts = []string{recordDir, "broker/sessionfiles", "broker/memory", "broker/topics", "broker/leases", "broker/takeover", "broker/custody"}

// notForParts are packages that no part imports.
var notForParts = []string{"sync", "sync/atomic", "net", "context", "os/exec", module + "/internal/wire"}

// recordTables are the constants that tell where a record of the broker file stands:
// without one of them no word of a record can be written.
var recordTables = []string{"BrokerSessions", "BrokerChunks", "BrokerSegments", "BrokerTopics", "BrokerLeases"}

// CheckParts fails where code of the broker beside broker/record knows where the
// records of the broker file stand, or touches the file's mapping; where a part takes
// locks or knows connections; and where code other than tests imports what makes parts
// of the broker or of the client for tests. The layers table says which package may import which.
func CheckParts(t *Tree) []Violation {
	var out []Violation
	for _, f := range t.GoFiles() {
		if f.Test() || !within(f.Dir(), brokerDir) || within(f.Dir(), recordDir) {
			continue
		}
		ast.Inspect(f.Go, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, isName := sel.X.(*ast.Ident)
			switch {
			case isName && of.Name == "protocol" && slices.Contains(recordTables, sel.Sel.Name):
				out = append(out, Violation{f.Name, f.Line(n.Pos()), fmt.Sprintf(
					"protocol.%s: records of the broker file are read and written through views of %s alone", sel.Sel.Name, recordDir)})
			case sel.Sel.Name == "Region" && isBrokerFile(sel.X):
				out = append(out, Violation{f.Name, f.Line(n.Pos()),
					"the mapping of the broker file belongs to " + recordDir + ": use the store's Record"})
			}
			return true
		})
	}
	eachImport(t, func(f *File, line int, p, _ string) {
		switch {
		case f.Test():
		case slices.Contains(forTests, strings.TrimPrefix(p, module+"/")):
			out = append(out, Violation{f.Name, line, strings.TrimPrefix(p, module+"/") + " is for tests: only _test.go files may import it"})
		case withinAny(f.Dir(), brokerParts) && slices.Contains(notForParts, p):
			out = append(out, Violation{f.Name, line, fmt.Sprintf("%s must not import %s: a part is called with the broker's mutex held and knows no connection", f.Dir(), p)})
		}
	})
	return sorted(out)
}

// isBrokerFile recognizes the store's broker file, as in s.Broker and b.store.Broker.
func isBrokerFile(x ast.Expr) bool {
	sel, ok := x.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Broker"
}
