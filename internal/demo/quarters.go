package demo

import (
	"fmt"
	"io"

	"github.com/baton-ipc/baton/internal/termtext"
)

// quarters shows how far the training is: a line at each quarter. Errors of the writer are
// ignored: progress is not worth failing for.
type quarters struct {
	out      io.Writer // nil: it is not shown
	style    termtext.Style
	accuracy float64 // as measured last
	shown    int     // quarters
}

// reach takes note of the share that is done.
func (q *quarters) reach(share float64) {
	if n := int(share * 4); n > q.shown {
		q.shown = n
		q.println(fmt.Sprintf("training: %d %%, accuracy %s", 25*n, termtext.Percent(q.accuracy)))
	}
}

// println shows a line.
func (q *quarters) println(line string) {
	if q.out != nil {
		fmt.Fprintln(q.out, q.style.Text(line))
	}
}
