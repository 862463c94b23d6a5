package main

import "errors"

// each does something to one thing after the other and goes on after one that fails, so that
// the rest is done. It prints the line of each that succeeds, or with asJSON an array of the
// results; the error is that of the one that failed, or of all that did.
func each[Thing, Done any](a *app, things []Thing, asJSON bool, do func(Thing) (done Done, line string, err error)) error {
	var failed []error
	all := []Done{}
	for _, thing := range things {
		done, line, err := do(thing)
		if err != nil {
			failed = append(failed, err)
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
