package demo

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ipc/baton/internal/digits"
	"github.com/baton-ipc/baton/internal/termtext"
)

// Draw shows a run for the terminal: accuracy over time, some pictures with what
// the network sees in them, and a table. The error is one of reading the data.
func (r *Result) Draw(s termtext.Style) (string, error) {
	_, heldOut, err := digits.Load()
	if err != nil {
		return "", err
	}
	parts := []string{termtext.Pairs("Result", r.rows(), s)}
	if len(r.curve) > 0 {
		parts = []string{r.drawCurve(s), r.drawPictures(heldOut, s), parts[0]}
	}
	return strings.Join(parts, "\n\n"), nil
}

const (
	curveRows  = 10
	curveFloor = 0.5 // the accuracy at the bottom
	curveAxis  = len("100.0 % |")
)

// drawCurve draws accuracy over time, a column for each moment, and under it the moment at
// which the worker was killed.
func (r *Result) drawCurve(s termtext.Style) string {
	columns := cmp.Or(s.Width, termtext.DefaultWidth) - curveAxis
	first, last := r.curve[0].at, r.curve[len(r.curve)-1].at
	heights := make([]float64, columns) // in rows
	at := 0
	for i := range heights {
		now := first + (last-first)*float64(i)/float64(columns-1)
		for at+1 < len(r.curve) && r.curve[at+1].at <= now {
			at++
		}
		heights[i] = (r.curve[at].accuracy - curveFloor) / (1 - curveFloor) * curveRows
	}
	tones, side, corner, line, arrow := " #", "|", "+", "-", "^"
	if s.UTF8 {
		tones, side, corner, line, arrow = " ▁▂▃▄▅▆▇█", "┤", "└", "─", "▲"
	}
	steps := []rune(tones)
	lines := []string{"Accuracy on held-out pictures over time"}
	for row := curveRows - 1; row >= 0; row-- {
		top := curveFloor + (1-curveFloor)*float64(row+1)/curveRows
		text := fmt.Sprintf("%7s %s", termtext.Percent(top), side)
		for _, h := range heights {
			text += string(steps[int(math.Round(min(max(h-float64(row), 0), 1)*float64(len(steps)-1)))])
		}
		lines = append(lines, strings.TrimRight(text, " "))
	}
	seconds := func(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) + " s" }
	margin := strings.Repeat(" ", curveAxis-1)
	lines = append(lines, margin+corner+strings.Repeat(line, columns),
		fmt.Sprintf("%s%s%*s", margin, seconds(first), columns+1-len(seconds(first)), seconds(last)))
	if r.Killed > 0 && last > first {
		share := min(max((r.died-first)/(last-first), 0), 1)
		before, text := curveAxis+int(share*float64(columns-1)), fmt.Sprintf("worker %d killed", maker)
		if share < 0.5 {
			lines = append(lines, strings.Repeat(" ", before)+arrow+" "+text)
		} else {
			lines = append(lines, fmt.Sprintf("%*s %s", before-1, text, arrow))
		}
	}
	return strings.Join(lines, "\n")
}

const (
	pictureWidth = 2 * digits.Side // columns; characters are about twice as high as wide
	pictureGap   = 3
)

// drawPictures draws pictures side by side, as many in a row as fit, each above a line that
// says what was seen, how sure, and whether that is right.
func (r *Result) drawPictures(heldOut *digits.Set, s termtext.Style) string {
	lines := []string{s.Text("Held-out pictures and what is read there")}
	tones := []rune(" .:-=+*#%@")
	if s.UTF8 {
		tones = []rune(" ░▒▓█")
	}
	perRow := max((cmp.Or(s.Width, termtext.DefaultWidth)+pictureGap)/(pictureWidth+pictureGap), 1)
	drawn := 0
	for _, p := range r.seen {
		if p.Picture < 0 || p.Picture >= heldOut.Len() {
			continue // another version's evaluator
		}
		if drawn%perRow == 0 {
			lines = append(lines, make([]string, digits.Side+2)...)
		}
		drawn++
		row, gap := lines[len(lines)-digits.Side-2:], strings.Repeat(" ", pictureGap)
		for at, ink := range heldOut.Image(p.Picture) {
			tone := tones[int(math.Round(float64(ink)*float64(len(tones)-1)))]
			row[at/digits.Side] += string([]rune{tone, tone})
		}
		caption := fmt.Sprintf("%d ✓ %.0f %%", p.Predicted, 100*p.Sure)
		if label := int(heldOut.Label(p.Picture)); p.Predicted != label {
			caption = fmt.Sprintf("%d ≠ %d %.0f %%", p.Predicted, label, 100*p.Sure)
		}
		row[digits.Side] += fmt.Sprintf("%-*s", pictureWidth, s.Text(caption))
		for at := range row[:digits.Side+1] {
			row[at] += gap
		}
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

func (r *Result) rows() [][2]string {
	count := func(n uint64) string { return termtext.Count(int64(n)) }
	return [][2]string{
		{"accuracy on held-out pictures", termtext.Percent(r.Accuracy)},
		{"batches trained", termtext.Count(int64(r.Batches))},
		{"samples per second", termtext.Count(int64(r.SamplesPerSecond))},
		{"batches per second", termtext.Count(int64(r.BatchesPerSecond))},
		{"hand-overs", count(r.Handovers)},
		{"bytes handed over", termtext.Bytes(int64(r.BytesHandedOver))},
		{"bytes copied on the way", count(r.BytesCopied)},
		{"tuples seen by a NATS subscriber", count(r.NATSTuples)},
		{"workers, of them in Python, killed", fmt.Sprintf("%d, %d, %d", r.Workers, r.PythonWorkers, r.Killed)},
		{"storages left at the end", strconv.Itoa(r.StoragesLeft)},
		{"time", termtext.Duration(time.Duration(r.Seconds * float64(time.Second)))},
	}
}
