package bench

import (
	"fmt"
	"path/filepath"
)

// language is a language in which the processes of a pair may be.
type language struct {
	name     string
	programs [2]string
}

// languages are those that can be measured here; python is the program of python/bench.
func (b *bencher) languages(group, python string) []language {
	all := []language{{"Go", [2]string{}}}
	leftOut := func(name string) {
		fmt.Fprintf(b.opts.Log, "%s: %s is left out: it needs what measures it\n", group, name)
	}
	if b.opts.Rust != "" {
		all = append(all, language{"Rust", [2]string{b.opts.Rust, b.opts.Rust}})
	} else {
		leftOut("Rust")
	}
	if len(b.opts.Python) == 2 {
		all = append(all, language{"Python", b.inPythonFile(python)})
	} else {
		leftOut("Python")
	}
	return all
}

// inPythonFile is a program of python/bench, for both sides of a pair.
func (b *bencher) inPythonFile(name string) [2]string {
	command := b.opts.Python[0] + "\n" + filepath.Join(b.opts.Python[1], name)
	return [2]string{command, command}
}
