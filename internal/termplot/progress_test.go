package termplot_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/baton-ipc/baton/internal/termplot"
)

// work moves a bar along as the demo does.
func work(s termplot.Style) string {
	var out bytes.Buffer
	p := termplot.NewProgress(&out, s, 1000, "training", termplot.Every(0))
	p.Note("accuracy 12.0 %")
	p.Add(240)
	p.Add(-5)
	p.Set(100)
	p.Add(30)
	p.Println("worker 3 (pid 4711) killed by SIGKILL \x1b[2J")
	p.Note("accuracy 95.5 %  and more than there is room for in any terminal at all")
	p.Set(700)
	p.Add(math.MaxInt64)
	p.Add(1)
	p.Println("after the end")
	p.Close()
	p.Close()
	return out.String()
}

func TestProgress(t *testing.T) {
	for name, s := range map[string]termplot.Style{
		"plain": plain, "live-ascii": {Live: true}, "live-narrow": {Live: true, UTF8: true, Width: 40}, "full": full,
	} {
		t.Run(name, func(t *testing.T) { golden(t, "progress-"+name, work(s)) })
	}
}

func TestProgressOffTerminalWritesWholeLines(t *testing.T) {
	got := work(plain)
	assert.NotContains(t, got, "\r")
	assert.NotContains(t, got, "\x1b")
	assert.True(t, strings.HasSuffix(got, "\n"))
}

func TestProgressLinesStayOnOneRow(t *testing.T) {
	for _, width := range []int{40, 80, 200} {
		for _, total := range []int64{-1, 9, 1000, 123456789} {
			var out bytes.Buffer
			s := termplot.Style{Live: true, UTF8: true, Width: width}
			p := termplot.NewProgress(&out, s, total, strings.Repeat("work ", 50), termplot.Every(0))
			p.Set(total / 2)
			p.Set(total)
			p.Close()
			for _, line := range strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\r' || r == '\n' }) {
				line = strings.ReplaceAll(line, "\x1b[0K", "")
				assert.Less(t, len([]rune(line)), width, "%q", line)
			}
		}
	}
}

func TestProgressClosedEarlyEndsItsLine(t *testing.T) {
	var out bytes.Buffer
	p := termplot.NewProgress(&out, full, 10, "work", termplot.Every(time.Hour))
	p.Add(4) // within the hour: not drawn by itself
	assert.NotContains(t, out.String(), "(4/10)")
	p.Close()
	assert.Contains(t, out.String(), "(4/10)")
	assert.True(t, strings.HasSuffix(out.String(), "\n"))
	n := out.Len()
	p.Add(1)
	p.Set(10)
	p.Note("late")
	p.Close()
	assert.Equal(t, n, out.Len())
	p.Println("last word")
	assert.True(t, strings.HasSuffix(out.String(), "\nlast word\n"))
}

func TestProgressFromManyGoroutines(t *testing.T) {
	for _, s := range []termplot.Style{plain, full} {
		var out bytes.Buffer
		p := termplot.NewProgress(&out, s, 400, "work", termplot.Every(0))
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for range 100 {
					p.Add(1)
					p.Note(fmt.Sprint(i))
				}
				p.Println(fmt.Sprintf("goroutine %d is done", i))
			})
		}
		all.Wait()
		p.Close()
		for i := range 4 {
			assert.Equal(t, 1, strings.Count(out.String(), fmt.Sprintf("goroutine %d is done\n", i)))
		}
		assert.Contains(t, out.String(), "100")
	}
}
