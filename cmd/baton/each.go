package main

import (
	"errors"
	"fmt"
	"slices"
)

// each does something to one thing after the other and goes on after one that fails, so that
// the rest is done, unless the broker does not answer. It prints the line of each that succeeds, or with asJSON an array of the
// results; the error is that of the one that failed, or of all that did.
func each[Thing comparable, Done any](a *app, things []Thing, asJSON bool, do func(Thing) (done Done, line string, err error)) error {
	seen := map[Thing]bool{}
	things = slices.DeleteFunc(slices.Clone(things), func(t Thing) bool { // one that is named twice is done once
		was := seen[t]
		seen[t] = true
		return was
	})
	var failed []error
	all := []Done{}
	for i, thing := range things {
		done, line, err := do(thing)
		if err != nil {
			failed = append(failed, err)
			if rest := len(things) - i - 1; rest > 0 && isLost(err) {
				failed = append(failed, fmt.Errorf("nor was anything done for the %d behind it", rest))
				break
			}
			continue
		}
		all = append(all, done)
		if !asJSON {
			if err := a.println(line); err != nil {
				return err
			}
		}
	}
	if asJSON {
		if err := a.printJSON(all); err != nil {
			return err
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}
