package rules

import (
	"path"
	"regexp"
	"strings"
)

// comment is one line of comment text, without the comment signs.
type comment struct {
	line int
	text string
}

// otherComment finds a comment in a line of C, Rust, Promela or assembly.
var otherComment = regexp.MustCompile(`//+!?(.*)|/\*(.*?)(?:\*/|$)|^\s*\*\s(.*?)(?:\*/|$)`)

// commentSuffixes are the languages besides Go whose comments are read.
var commentSuffixes = map[string]bool{".s": true, ".S": true, ".rs": true, ".c": true, ".h": true, ".cpp": true, ".hpp": true, ".pml": true}

// comments gives the comment lines of a source file, nothing for other files.
func comments(f *File) []comment {
	var out []comment
	if f.Go != nil {
		for _, group := range f.Go.Comments {
			for _, c := range group.List {
				text := strings.TrimSuffix(c.Text[2:], "*/")
				for i, line := range strings.Split(text, "\n") {
					out = append(out, comment{f.Line(c.Pos()) + i, line})
				}
			}
		}
		return out
	}
	if !commentSuffixes[path.Ext(f.Name)] {
		return nil
	}
	for i, line := range strings.Split(f.Text, "\n") {
		if m := otherComment.FindStringSubmatch(line); m != nil {
			out = append(out, comment{i + 1, m[1] + m[2] + m[3]})
		}
	}
	return out
}
