// Mutants weakens each access and fence that docs/memory-order.md lists, one
// step and one at a time, and runs the loom models that the page names for it:
// one of them must fail. The models are built once; they weaken the access
// themselves that BATON_WEAKEN names. At the end the litmus runs that the page
// names are run by models/check. It runs in the root of the project, by make
// mutants; with -t only for files and functions that match.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/baton-ipc/baton/internal/rules"
)

func main() {
	only := flag.String("t", "", "regexp of file, function and access")
	flag.Parse()
	if err := run(*only); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// weaker gives the orders that are one step weaker.
func weaker(a rules.Access) []string {
	method, _, _ := strings.Cut(a.What, "(")
	switch {
	case strings.HasPrefix(method, "fence"):
		return map[string][]string{"SeqCst": {"AcqRel"}, "Acquire": {"none"}, "Release": {"none"}}[a.Order]
	case strings.HasPrefix(method, "load"):
		return map[string][]string{"SeqCst": {"Acquire"}, "Acquire": {"Relaxed"}}[a.Order]
	case strings.HasPrefix(method, "store"):
		return map[string][]string{"SeqCst": {"Release"}, "Release": {"Relaxed"}}[a.Order]
	}
	return map[string][]string{"SeqCst": {"AcqRel"}, "AcqRel": {"Acquire", "Release"}, "Acquire": {"Relaxed"}, "Release": {"Relaxed"}}[a.Order]
}

func run(only string) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-t: %w", err)
	}
	tree, err := rules.Load(os.DirFS("."))
	if err != nil {
		return err
	}
	if vs := rules.CheckOrders(tree); len(vs) > 0 {
		return fmt.Errorf("the page and the code differ: %v", vs[0])
	}
	at := map[string]rules.Access{}
	for _, a := range rules.Accesses(tree) {
		at[a.Key()] = a
	}
	if out, err := models("", nil, "--no-run"); err != nil {
		return fmt.Errorf("the models do not build: %w\n%s", err, out)
	}
	if out, err := models("", nil); err != nil {
		return fmt.Errorf("the models fail as they are: %w\n%s", err, out)
	}
	var found, survived, stay, litmus int
	for _, row := range rules.OrderRows(tree) {
		a := at[row.Key()]
		if !match.MatchString(row.Key()) {
			continue
		}
		litmus += len(row.Litmus)
		if row.Why != "" {
			stay++
		}
		for _, order := range weaker(a) {
			if len(row.Loom) == 0 {
				continue
			}
			place := fmt.Sprintf("%s:%d:%d", a.File, a.Line, a.Column)
			out, err := models(place+"="+order, row.Loom)
			var exit *exec.ExitError
			switch {
			case err == nil:
				survived++
				fmt.Printf("SURVIVES  %s: %s instead of %s (%s)\n", row.Key(), order, a.Order, place)
			case errors.As(err, &exit) && strings.Contains(out, "test result: FAILED"):
				found++
				fmt.Printf("found     %s: %s instead of %s\n", row.Key(), order, a.Order)
			default:
				return fmt.Errorf("%s: %w\n%s", row.Key(), err, out)
			}
		}
	}
	fmt.Printf("%d mutants found by loom, %d survive; %d accesses stay for the reason on the page; %d litmus runs named\n", found, survived, stay, litmus)
	if litmus > 0 {
		check := exec.Command("models/check", "--short", "orders", "classic")
		check.Stdout, check.Stderr = os.Stdout, os.Stderr
		if err := check.Run(); err != nil {
			return fmt.Errorf("the litmus runs: %w", err)
		}
	}
	if survived > 0 {
		return fmt.Errorf("%d mutants survive", survived)
	}
	return nil
}

// models builds the loom models and runs those of these names, with an access
// weakened.
func models(weaken string, names []string, flags ...string) (string, error) {
	args := append([]string{"test", "--quiet", "--locked", "--release", "--lib", "--target-dir", "target/loom"}, flags...)
	cmd := exec.Command("cargo", append(append(args, "--", "--skip", "broken"), names...)...)
	cmd.Dir = "rust"
	cmd.Env = append(os.Environ(), "RUSTFLAGS=--cfg baton_loom", "RUST_BACKTRACE=0")
	if os.Getenv("LOOM_MAX_PREEMPTIONS") == "" {
		cmd.Env = append(cmd.Env, "LOOM_MAX_PREEMPTIONS=3")
	}
	if weaken != "" {
		cmd.Env = append(cmd.Env, "BATON_WEAKEN="+weaken)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
