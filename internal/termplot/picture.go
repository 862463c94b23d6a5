package termplot

import (
	"fmt"
	"math"
	"strings"
)

// Side is the number of pixels along each edge of a Picture.
const Side = 8

// Picture is a small grey image with what it shows and what was made of it.
type Picture struct {
	Pixels    []float32 // Side × Side, row by row, 0 blank to 1 inked; missing ones are blank
	Label     int       // the digit it shows
	Predicted int       // the digit that was seen in it
	Sure      float32   // how sure, 0 to 1
}

const (
	pictureWidth = 2 * Side // columns; characters are about twice as high as wide
	pictureGap   = 3
)

// Pictures draws pictures side by side, as many in a row as fit, each above a line
// that says what was seen, how sure, and whether that is right.
func Pictures(pictures []Picture, s Style) string {
	perRow := max((s.width()+pictureGap)/(pictureWidth+pictureGap), 1)
	var b strings.Builder
	for start := 0; start < len(pictures); start += perRow {
		row := pictures[start:min(start+perRow, len(pictures))]
		if start > 0 {
			b.WriteString("\n\n")
		}
		drawn := make([][]string, len(row))
		for i, p := range row {
			drawn[i] = append(p.draw(s), p.caption(s))
		}
		for line := range drawn[0] {
			if line > 0 {
				b.WriteByte('\n')
			}
			var text strings.Builder
			for i := range drawn {
				text.WriteString(pad(drawn[i][line], pictureWidth))
				if i < len(drawn)-1 {
					text.WriteString(strings.Repeat(" ", pictureGap))
				}
			}
			b.WriteString(strings.TrimRight(text.String(), " "))
		}
	}
	return b.String()
}

func (p Picture) caption(s Style) string {
	sure := fmt.Sprintf(" %d %%", int(math.Round(float64(min(max(p.Sure, 0), 1))*100)))
	if p.Predicted == p.Label {
		return s.paint(green, s.Text(fmt.Sprintf("%d ✓", p.Predicted))) + sure
	}
	return s.paint(red, s.Text(fmt.Sprintf("%d ≠ %d", p.Predicted, p.Label))) + sure
}

// ink returns a pixel, 0 to 1, whatever the picture holds.
func (p Picture) ink(row, col int) float64 {
	i := row*Side + col
	if i >= len(p.Pixels) || !(p.Pixels[i] > 0) {
		return 0
	}
	return min(float64(p.Pixels[i]), 1)
}

// smooth reads between pixels: row and col run to Side, and whole numbers are the
// borders between them.
func (p Picture) smooth(row, col float64) float64 {
	along := func(v float64) (from, to int, share float64) {
		v = min(max(v-0.5, 0), Side-1) // v is now 0 at the centre of the first pixel
		from = int(v)
		return from, min(from+1, Side-1), v - float64(from)
	}
	top, bottom, down := along(row)
	left, right, across := along(col)
	// The conversions keep compilers from fusing: each machine draws the same.
	mix := func(a, b, share float64) float64 { return float64(a*(1-share)) + float64(b*share) }
	upper := mix(p.ink(top, left), p.ink(top, right), across)
	lower := mix(p.ink(bottom, left), p.ink(bottom, right), across)
	return mix(upper, lower, down)
}

// draw returns Side lines. With colours and half blocks every character shows two
// greys, one above the other, and the picture is smoothed to twice its size; with
// one of the two or none, every pixel is two characters of one tone.
func (p Picture) draw(s Style) []string {
	lines := make([]string, Side)
	for row := range lines {
		var b strings.Builder
		switch {
		case s.Color && s.UTF8:
			for col := range pictureWidth {
				x := (float64(col) + 0.5) / 2
				upper, lower := p.smooth(float64(row)+0.25, x), p.smooth(float64(row)+0.75, x)
				fmt.Fprintf(&b, "\x1b[38;5;%d;48;5;%dm▀", grey(upper), grey(lower))
			}
			b.WriteString("\x1b[0m")
		case s.Color:
			for col := range Side {
				fmt.Fprintf(&b, "\x1b[48;5;%dm  ", grey(p.ink(row, col)))
			}
			b.WriteString("\x1b[0m")
		default:
			tones := []rune(" .:-=+*#%@")
			if s.UTF8 {
				tones = []rune(" ░▒▓█")
			}
			for col := range Side {
				tone := tones[int(math.Round(p.ink(row, col)*float64(len(tones)-1)))]
				b.WriteRune(tone)
				b.WriteRune(tone)
			}
		}
		lines[row] = b.String()
	}
	return lines
}

// grey picks from the 24 greys of the 256-colour palette, black to nearly white.
func grey(ink float64) int { return 232 + int(math.Round(ink*23)) }
