// Modeldoc writes the table "step of the model → line of code" in
// docs/models.md from the STEP comments of the models and the MODEL comments of
// the code. It runs in the root of the project, by make docs; it changes that
// one file and nothing else.
package main

import (
	"fmt"
	"os"

	"github.com/baton-ipc/baton/internal/rules"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "modeldoc:", err)
		os.Exit(1)
	}
}

func run() error {
	tree, err := rules.Load(os.DirFS("."))
	if err != nil {
		return err
	}
	page := tree.File(rules.ModelPage)
	if page == nil {
		return fmt.Errorf("%s is missing: run this in the root of the project", rules.ModelPage)
	}
	fresh, err := rules.UpdateModelPage(tree, page.Text)
	if err != nil {
		return fmt.Errorf("%s: %w", rules.ModelPage, err)
	}
	if fresh == page.Text {
		return nil
	}
	if err := os.WriteFile(rules.ModelPage, []byte(fresh), 0o644); err != nil {
		return fmt.Errorf("write the table of steps: %w", err)
	}
	return nil
}
