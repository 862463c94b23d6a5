// Package spelling tells how much one word is like another, for what an error proposes in the place of a word that
// stands for nothing. Its functions keep nothing; any goroutine may call them.
package spelling

import "strings"

// Distance is how many letters have to be put in, taken out or replaced to make one word of another; case
// is none of them.
func Distance(a, b string) int {
	x, y := []rune(strings.ToLower(a)), []rune(strings.ToLower(b))
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range x {
		corner := row[0]
		row[0] = i + 1
		for j := range y {
			replaced := corner
			if x[i] != y[j] {
				replaced++
			}
			corner = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(y)]
}
