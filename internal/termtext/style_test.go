package termtext_test

import (
	"bytes"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/baton-ipc/baton/internal/termtext"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestDetectWithoutTerminal(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/log")
	assert.NoError(t, err)
	defer file.Close()
	assert.Equal(t, termtext.Style{Width: 80}, termtext.Detect(&bytes.Buffer{}, env("TERM", "xterm")))
	assert.Equal(t, termtext.Style{Width: 80}, termtext.Detect(file, env("TERM", "xterm")))
	assert.Equal(t, termtext.Style{Width: 120, UTF8: true}, termtext.Detect(file, env("COLUMNS", "120", "LANG", "en_US.UTF-8")))
	assert.Equal(t, termtext.Style{Width: 200, UTF8: true}, termtext.Detect(file, env("COLUMNS", "9999", "LC_CTYPE", "C.utf8", "LANG", "C")))
	assert.Equal(t, termtext.Style{Width: 40}, termtext.Detect(file, env("COLUMNS", "1", "LC_ALL", "C", "LANG", "en_US.UTF-8")))
	assert.Equal(t, termtext.Style{Width: 80}, termtext.Detect(file, env("COLUMNS", "-5", "LANG", "POSIX")))
}

func TestDetectOnTerminal(t *testing.T) {
	// The master end of a pseudo-terminal is a terminal too.
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	defer tty.Close()
	assert.Equal(t, termtext.Style{Width: 80, Color: true}, termtext.Detect(tty, env("TERM", "xterm")))
	assert.Equal(t, termtext.Style{Width: 80}, termtext.Detect(tty, env("TERM", "xterm", "NO_COLOR", "1")))
	assert.Equal(t, termtext.Style{Width: 100}, termtext.Detect(tty, env("TERM", "dumb", "COLUMNS", "100")))
}

func TestTextMakesForeignStringsSafe(t *testing.T) {
	for in, want := range map[string][2]string{ // with UTF8, without
		"":                       {"", ""},
		"plain ~!":               {"plain ~!", "plain ~!"},
		"a\x1b[2J\x07\x00b":      {"a?[2J??b", "a?[2J??b"},
		"two\nlines\r\t\x7f":     {"two?lines???", "two?lines???"},
		"\u202eevil\u2066\u200b": {"?evil??", "?evil??"},
		"\u009b31m":              {"?31m", "?31m"},
		"bad \xff\xc0 bytes":     {"bad ?? bytes", "bad ?? bytes"},
		"µ → … é 日本":             {"µ → … é 日本", "u -> ... ? ??"},
		"\u2028\ue000":           {"??", "??"},
	} {
		assert.Equal(t, want[0], utf8.Text(in), "%q", in)
		assert.Equal(t, want[1], plain.Text(in), "%q", in)
	}
}

func TestCutMiddleKeepsBothEnds(t *testing.T) {
	assert.Equal(t, "short", utf8.CutMiddle("short", 5))
	assert.Equal(t, "first…last", utf8.CutMiddle("first and last", 10))
	assert.Equal(t, "fir...st", plain.CutMiddle("first and last", 8))
	assert.Equal(t, "fi…", utf8.Cut("first", 3))
	assert.Equal(t, "f…t", utf8.CutMiddle("first", 3))
	assert.Equal(t, "f…", utf8.CutMiddle("first", 2))
	assert.Empty(t, utf8.CutMiddle("first", 0))
	for n := range 40 {
		for _, s := range []termtext.Style{utf8, plain} {
			assert.LessOrEqual(t, termtext.Columns(s.CutMiddle("日本語の長い名前 with é and more 日本語の", n)), n, "%d", n)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 20: "5.0 MiB", 3 << 40: "3.0 TiB",
		-1536: "-1.5 KiB", math.MaxInt64: "8.0 EiB", math.MinInt64: "-8.0 EiB",
	} {
		assert.Equal(t, want, termtext.Bytes(n))
	}
	assert.Equal(t, "16 EiB", termtext.Size(math.MaxUint64-1<<30))
}

func TestCount(t *testing.T) {
	assert.Equal(t, "1,234,567", termtext.Count(1234567))
	assert.Equal(t, "-9,223,372,036,854,775,808", termtext.Count(math.MinInt64))
}

func TestPercent(t *testing.T) {
	for share, want := range map[float64]string{
		0: "0.0 %", 1: "100.0 %", 0.975: "97.5 %", 0.99999: "99.9 %", 0.000001: "0.1 %", 0.5: "50.0 %", 1.5: "150.0 %",
		math.Inf(1): "-",
	} {
		assert.Equal(t, want, termtext.Percent(share), "%v", share)
	}
	assert.Equal(t, "-", termtext.Percent(math.NaN()))
}

func TestRate(t *testing.T) {
	for _, c := range []struct {
		n    int64
		d    time.Duration
		want string
	}{
		{12345, time.Second, "12,345/s"}, {7, 2 * time.Second, "3.5/s"}, {0, time.Second, "0/s"}, {1, 3 * time.Second, "0.33/s"},
		{1, time.Microsecond, "1 M/s"}, {2_500_000_000, time.Second, "2.5 G/s"}, {1, 0, "-"}, {1, -1, "-"}, {100, time.Second, "100/s"},
	} {
		assert.Equal(t, c.want, termtext.Rate(c.n, c.d))
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ns", 65: "65 ns", 999: "999 ns", 1000: "1 µs", 1234: "1.23 µs", 12345: "12.3 µs", 123456: "123 µs", 999499: "999 µs",
		999500: "1 ms", 12500 * time.Microsecond: "12.5 ms", 999600 * time.Microsecond: "1 s",
		1500 * time.Millisecond: "1.5 s", 59900 * time.Millisecond: "59.9 s", 59960 * time.Millisecond: "1m 0s",
		65 * time.Second: "1m 5s", time.Hour - time.Millisecond: "1h 0m", 3*time.Hour + 25*time.Minute: "3h 25m",
		76 * time.Hour: "3d 4h", -1500 * time.Millisecond: "-1.5 s", math.MinInt64: "-106751d 23h",
	} {
		assert.Equal(t, want, termtext.Duration(d))
	}
}
