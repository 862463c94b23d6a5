package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ipc/baton/internal/digits"
	"github.com/baton-ipc/baton/internal/termplot"
)

// Draw shows a run for the terminal: accuracy over time, some pictures with what
// the network sees in them, and a table. The error is one of reading the data.
func (r *Result) Draw(s termplot.Style) (string, error) {
	pictures, err := r.pictures()
	if err != nil {
		return "", err
	}
	return strings.Join([]string{
		r.chart().Render(s),
		s.Text("Held-out pictures and what the network reads") + "\n" + termplot.Pictures(pictures, s),
		termplot.Pairs("Result", r.rows(), s),
	}, "\n\n"), nil
}

func (r *Result) chart() termplot.Chart {
	c := termplot.Chart{
		Title:   "Accuracy on held-out pictures over time",
		Max:     1,
		Min:     0.5,
		Height:  12,
		FormatX: func(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) + " s" },
		FormatY: termplot.Percent,
	}
	for _, p := range r.curve {
		c.Points = append(c.Points, termplot.Point{X: p.at, Y: p.accuracy})
	}
	if r.Killed > 0 {
		c.Marks = []termplot.Mark{{X: r.died, Text: fmt.Sprintf("worker %d killed", maker)}}
	}
	return c
}

func (r *Result) pictures() ([]termplot.Picture, error) {
	_, heldOut, err := digits.Load()
	if err != nil {
		return nil, err
	}
	var out []termplot.Picture
	for _, s := range r.seen {
		if s.Picture < 0 || s.Picture >= heldOut.Len() {
			continue
		}
		out = append(out, termplot.Picture{Pixels: heldOut.Image(s.Picture), Label: int(heldOut.Label(s.Picture)),
			Predicted: s.Predicted, Sure: s.Sure})
	}
	return out, nil
}

func (r *Result) rows() [][2]string {
	count := func(n uint64) string { return termplot.Count(int64(n)) }
	return [][2]string{
		{"accuracy on held-out pictures", termplot.Percent(r.Accuracy)},
		{"batches trained", termplot.Count(int64(r.Batches))},
		{"samples per second", termplot.Count(int64(r.SamplesPerSecond))},
		{"batches per second", termplot.Count(int64(r.BatchesPerSecond))},
		{"hand-overs", count(r.Handovers)},
		{"bytes handed over", termplot.Bytes(int64(r.BytesHandedOver))},
		{"bytes copied on the way", count(r.BytesCopied)},
		{"tuples seen by a NATS subscriber", count(r.NATSTuples)},
		{"workers, of them in Python, killed", fmt.Sprintf("%d, %d, %d", r.Workers, r.PythonWorkers, r.Killed)},
		{"storages left at the end", strconv.Itoa(r.StoragesLeft)},
		{"time", termplot.Duration(time.Duration(r.Seconds * float64(time.Second)))},
	}
}
