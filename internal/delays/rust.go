package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	//go:embed pause.rs.txt
	pauseRust []byte
	//go:embed rustc.sh
	rustc []byte
	//go:embed run.sh
	run []byte
)

// rustSteps are the calls before which a pause may show a race: of methods, which
// all borrow what they are called on, and of functions.
var rustSteps = regexp.MustCompile(
	`(\brefcounts\.|\.)(take|drop|lock|try_lock|lock_until|get_or|load|load32|load_seq_cst|peek|store|store32|add32|cas|compare_exchange|swap|` +
		`fetch_add|fetch_sub|fetch_or|word|word32|line|wake|notify_one|notify_all|futex_wait|futex_wake|wait_timeout)\(` +
		`|\b((?:[a-z_]+::)*(?:sys::[a-z_]+|thread::spawn|crash_point::at|drop|futex_wait|futex_wake|fence|fence_acquire|fence_release))\(`)

// notStep reports of a name that others than shared words have too whether this is
// one of theirs, by what stands before and behind it.
func notStep(name, before, behind string) bool {
	switch name {
	case "take", "drop":
		return before != "refcounts."
	case "swap":
		return !strings.Contains(behind, "Ordering::")
	}
	return false
}

// weaveRust returns a source with pauses, on the lines where the code stood before.
func weaveRust(src string, first int) (string, int) {
	count := 0
	lines := strings.SplitAfter(src, "\n")
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "//") {
			continue
		}
		var out strings.Builder
		done := 0
		for _, m := range rustSteps.FindAllStringSubmatchIndex(line, -1) {
			if m[6] >= 0 { // a function
				if before := line[:m[0]]; strings.HasSuffix(before, "fn ") || strings.HasSuffix(before, ".") || strings.HasSuffix(before, "::") {
					continue
				}
				fmt.Fprintf(&out, "%scrate::delays::delayed(%d, %s)(", line[done:m[0]], first+count, line[m[6]:m[7]])
			} else {
				before, name := line[m[2]:m[3]], line[m[4]:m[5]]
				if notStep(name, before, line[m[1]:]) {
					continue
				}
				fmt.Fprintf(&out, "%s%sdelayed(%d).%s(", line[done:m[0]], before, first+count, name)
			}
			done = m[1]
			count++
		}
		out.WriteString(line[done:])
		lines[i] = out.String()
	}
	if count == 0 {
		return src, 0
	}
	return strings.Join(lines, "") + "#[allow(unused_imports)]\nuse crate::delays::Delayed as _;\n", count
}

// writeRust makes the copies of the Rust crate, and rustc, by which cargo builds
// them in its stead, and returns how many pauses there are.
func writeRust(out string) (int, error) {
	places := 0
	files, err := filepath.Glob("rust/src/*.rs")
	if err != nil {
		return 0, err
	}
	deeper, err := filepath.Glob("rust/src/*/*.rs")
	if err != nil {
		return 0, err
	}
	for _, file := range append(files, deeper...) {
		src, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		woven, n := weaveRust(string(src), places)
		places += n
		if file == "rust/src/lib.rs" {
			woven += "mod delays;\n"
		}
		if err := put(filepath.Join(out, file), []byte(woven)); err != nil {
			return 0, err
		}
	}
	for file, data := range map[string][]byte{"rust/src/delays.rs": pauseRust, "rustc": rustc, "run": run} {
		if err := put(filepath.Join(out, file), data); err != nil {
			return 0, err
		}
	}
	return places, nil
}
