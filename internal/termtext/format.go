package termtext

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
)

// Bytes writes a number of bytes in powers of 1024: "512 B", "1.5 MiB".
func Bytes(n int64) string {
	if n < 0 {
		return "-" + humanize.IBytes(uint64(-n)) // the smallest int64 wraps to its own magnitude
	}
	return humanize.IBytes(uint64(n))
}

// Size is Bytes for what may be more than half of all that 64 bits count.
func Size(n uint64) string { return humanize.IBytes(n) }

// Count writes a whole number in groups of three: "1,234,567".
func Count(n int64) string { return humanize.Comma(n) }

// Percent writes a share of one with one decimal: "97.5 %". Only one itself is
// "100.0 %", and only zero is "0.0 %": what is nearly there is not rounded up.
func Percent(share float64) string {
	if math.IsNaN(share) || math.IsInf(share, 0) {
		return "-"
	}
	tenths := math.Round(share * 1000)
	switch {
	case share < 1 && tenths >= 1000:
		tenths = 999
	case share > 0 && tenths < 1:
		tenths = 1
	}
	return strconv.FormatFloat(tenths/10, 'f', 1, 64) + " %"
}

// Rate writes how many per second: "12,345/s", "1.25 M/s", and "-" where no time
// has passed.
func Rate(count int64, elapsed time.Duration) string {
	if elapsed <= 0 {
		return "-"
	}
	switch r := float64(count) / elapsed.Seconds(); {
	case math.Abs(r) >= 1e9:
		return digits3(r/1e9) + " G/s"
	case math.Abs(r) >= 1e6:
		return digits3(r/1e6) + " M/s"
	case math.Abs(r) >= 100:
		return humanize.Comma(int64(math.Round(r))) + "/s"
	default:
		return digits3(r) + "/s"
	}
}

// Duration writes a time with three digits up to a minute, "65 ns", "1.23 µs",
// "12.5 s", and with its two largest units above: "1m 5s", "3d 4h". Style.Text
// turns the µ into a u where it must.
func Duration(d time.Duration) string {
	if d < 0 {
		if d == math.MinInt64 {
			d++
		}
		return "-" + Duration(-d)
	}
	// Each limit is where three digits would round up into the next unit.
	switch f := float64(d); {
	case d < time.Microsecond:
		return strconv.FormatInt(int64(d), 10) + " ns"
	case f < 999.5*float64(time.Microsecond):
		return digits3(f/float64(time.Microsecond)) + " µs"
	case f < 999.5*float64(time.Millisecond):
		return digits3(f/float64(time.Millisecond)) + " ms"
	case f < 59.95*float64(time.Second):
		return digits3(f/float64(time.Second)) + " s"
	}
	d = d.Round(time.Second)
	const day = 24 * time.Hour
	switch {
	case d < time.Hour:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd %dh", d/day, d%day/time.Hour)
}

// digits3 writes a number below a thousand with three digits, trailing zeros of
// the decimals left out.
func digits3(f float64) string {
	decimals := 2
	switch a := math.Abs(f); {
	case a >= 99.95:
		decimals = 0
	case a >= 9.995:
		decimals = 1
	}
	scale := math.Pow10(decimals)
	return strconv.FormatFloat(math.Round(f*scale)/scale, 'f', -1, 64)
}
