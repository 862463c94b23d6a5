package topics

import (
	"strings"

	"github.com/baton-ipc/baton/protocol"
)

// likeName tells whether a name that is not there may have been meant: it has the same last token,
// or differs in a letter or two.
func likeName(wanted, name string) bool {
	last := func(s string) string { return s[strings.LastIndexByte(s, '/')+1:] }
	return last(wanted) == last(name) || distance(wanted, name) <= 2
}

// distance is how many letters are to be put in, left out or changed to make one text of the other;
// 3 stands for more than 2. Of most pairs it looks at a few letters: it is asked for every function that
// there is.
func distance(a, b string) int {
	const far = 3
	if len(a)-len(b) >= far || len(b)-len(a) >= far || len(b) > protocol.MaxName {
		return far
	}
	var row [protocol.MaxName + 1]uint8
	for j := range len(b) + 1 {
		row[j] = uint8(min(j, far))
	}
	for i := range len(a) {
		// What lies further from the diagonal is far.
		from, to := max(1, i-1), min(len(b), i+far)
		diagonal := row[from-1]
		row[from-1] = far
		if from == 1 {
			row[0] = uint8(min(i+1, far))
		}
		least := row[from-1]
		for j := from; j <= to; j++ {
			cost := diagonal
			if a[i] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1, far)
			least = min(least, row[j])
		}
		if least == far {
			return far
		}
	}
	return int(row[len(b)])
}
