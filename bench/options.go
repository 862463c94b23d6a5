package bench

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/baton-ipc/baton/internal/sys"
)

// Options says what to measure and how long.
type Options struct {
	// Quick does few rounds: enough to see that everything works, too few to
	// believe the figures.
	Quick bool
	// Only are the groups wanted, by name or its beginning; none: all.
	Only []string
	// Passes is how often everything is measured, in turn; 0: 5, quick 1.
	Passes int
	// Binary is the program baton that serves.
	Binary string
	// Rust is the program of rust/bench, which measures the client in Rust; "":
	// those measurements are left out.
	Rust string
	// Python is the interpreter with the package and torch, and the folder
	// python/bench; none: those measurements are left out.
	Python []string
	// Version is the program's, for the report.
	Version string
	// Log gets a line for each measurement under way; nil: it is dropped.
	Log io.Writer
}

// complete checks the options and fills in what was left out.
func (o Options) complete() (Options, error) {
	if o.Passes < 0 {
		return o, fmt.Errorf("%d passes: use 1 or more", o.Passes)
	}
	if o.Passes == 0 {
		o.Passes = 5
		if o.Quick {
			o.Passes = 1
		}
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Binary == "" {
		return o, errors.New("name the program baton that serves")
	}
	for _, want := range o.Only {
		one := Options{Only: []string{want}}
		if !slices.ContainsFunc(groups, func(g group) bool { return one.wants(g.name) }) {
			return o, fmt.Errorf("nothing is called %q: there are %s", want, GroupNames())
		}
	}
	return o, nil
}

// GroupNames lists what Options.Only may name.
func GroupNames() string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return strings.Join(names, ", ")
}

func (o Options) wants(name string) bool {
	if len(o.Only) == 0 {
		return true
	}
	for _, want := range o.Only {
		if want != "" && strings.HasPrefix(name, want) {
			return true
		}
	}
	return false
}

// rounds is a number of rounds, fewer when it must be quick.
func (o Options) rounds(n int) int {
	if o.Quick {
		return max(n/20, 100)
	}
	return n
}

// ownCPUs lists the CPUs that we may use. The first two are those of a pair: the
// first and the last of all, as neighbours may share a core.
func ownCPUs() ([]int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpus, err := sys.Affinity()
	if err != nil {
		return nil, err
	}
	if len(cpus) < 2 {
		return nil, fmt.Errorf("this process may use CPU %v alone: the measurements need two", cpus)
	}
	last := len(cpus) - 1
	return append([]int{cpus[0], cpus[last]}, cpus[1:last]...), nil
}
