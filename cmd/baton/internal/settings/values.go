package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"math/bits"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/baton-ipc/baton/protocol"
)

// sizeValue is a flag for a number of bytes.
type sizeValue struct{ to *uint64 }

func (v *sizeValue) Type() string { return "size" }

func (v *sizeValue) String() string {
	if v.to == nil || *v.to == 0 {
		return ""
	}
	return formatSize(*v.to)
}

func (v *sizeValue) Set(s string) error {
	if s == "" { // as String writes what is unset
		*v.to = 0
		return nil
	}
	n, err := ParseSize(s)
	if err != nil {
		return err
	}
	*v.to = n
	return nil
}

// Prefixes of units of bytes, each 1024, or 1000, times the one before.
const prefixes = "KMGTPE"

// sizeUnits says which units a size may have.
const sizeUnits = "KiB, MiB, GiB, TiB, PiB and EiB (or K, M and so on) for powers of 1024, KB, MB, GB, TB, PB and EB for powers of 1000"

// unitOf is how many bytes a unit has.
func unitOf(unit string) (bytes uint64, known bool) {
	unit = strings.ToUpper(unit)
	if unit == "" || unit == "B" {
		return 1, true
	}
	power := strings.IndexByte(prefixes, unit[0]) + 1
	if power == 0 {
		return 0, false
	}
	step := uint64(1 << 10)
	switch unit[1:] {
	case "", "I", "IB":
	case "B":
		step = 1000
	default:
		return 0, false
	}
	for bytes = 1; power > 0; power-- {
		bytes *= step
	}
	return bytes, true
}

// ParseSize reads a number of bytes: "1073741824", "1GiB", "1Gi" and "1G" are
// the same, "1GB" is 10^9; fractions and a space before the unit may be used.
func ParseSize(s string) (uint64, error) {
	text := strings.TrimSpace(s)
	at := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if at < 0 {
		at = len(text)
	}
	number, unit := text[:at], strings.TrimSpace(text[at:])
	f, err := strconv.ParseFloat(number, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is not a size: write it like 8GiB, 512M or 1073741824; units are %s", s, sizeUnits)
	}
	bytes, known := unitOf(unit)
	if !known {
		return 0, fmt.Errorf("size %q has no unit that is known: use %s", s, sizeUnits)
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if high, low := bits.Mul64(n, bytes); err == nil && high == 0 {
		return low, nil
	}
	switch f *= float64(bytes); {
	case err == nil || f >= 1<<64: // also infinite
		return 0, fmt.Errorf("size %q is beyond 64 bits, less than 16EiB: units are %s", s, sizeUnits)
	case f > 0 && f < 1:
		return 0, fmt.Errorf("size %q is less than a byte", s)
	}
	return uint64(f), nil
}

// formatSize writes a size so that ParseSize reads the same number.
func formatSize(n uint64) string {
	for i := len(prefixes) - 1; i >= 0; i-- {
		if u := uint64(1) << (10 * (i + 1)); n >= u && n%u == 0 {
			return strconv.FormatUint(n/u, 10) + prefixes[i:i+1] + "iB"
		}
	}
	return strconv.FormatUint(n, 10)
}

// SizeText writes a size that a flag may have in the one way in which all are written; what is
// none is "".
func SizeText(s string) string {
	n, err := ParseSize(s)
	if err != nil || n == 0 {
		return ""
	}
	return formatSize(n)
}

// modeValue is a flag for a file mode in octal.
type modeValue struct{ to *fs.FileMode }

func newMode(to *fs.FileMode, value fs.FileMode) *modeValue {
	*to = value
	return &modeValue{to}
}

func (v *modeValue) Type() string   { return "mode" }
func (v *modeValue) String() string { return fmt.Sprintf("%04o", uint32(*v.to)) }

func (v *modeValue) Set(s string) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || n > 0o777 || n&0o600 != 0o600 {
		return fmt.Errorf("%q is not a mode: write it in octal, between 0600 and 0777 and open to the owner", s)
	}
	*v.to = fs.FileMode(n)
	return nil
}

// fileValue is a flag for a file. Its path is absolute from here on: the settings of a broker are
// recorded for one that a client starts, in another directory.
type fileValue struct{ to *string }

func (v *fileValue) Type() string { return "file" }

func (v *fileValue) String() string {
	if v.to == nil {
		return ""
	}
	return *v.to
}

func (v *fileValue) Set(s string) (err error) {
	if s != "" {
		s, err = filepath.Abs(s)
	}
	*v.to = s
	return err
}

// uidsValue is a flag for users, given one by one or joined by commas. The
// first use of a source replaces what a weaker one has set.
type uidsValue struct {
	to *[]uint32
}

func (v *uidsValue) Type() string { return "id" }

func (v *uidsValue) String() string {
	if v.to == nil {
		return ""
	}
	out := make([]string, len(*v.to))
	for i, n := range *v.to {
		out[i] = strconv.FormatUint(uint64(n), 10)
	}
	return strings.Join(out, ",")
}

func (v *uidsValue) Set(s string) error {
	if s == "" { // an empty list of a file
		return nil
	}
	for _, part := range strings.Split(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 32)
		if err != nil || n == math.MaxUint32 {
			return fmt.Errorf("%q is not a user id: write its number (id -u NAME)", part)
		}
		if !slices.Contains(*v.to, uint32(n)) {
			*v.to = append(*v.to, uint32(n))
		}
	}
	return nil
}

// gidsValue is a flag for groups, by name or number, as uidsValue.
type gidsValue struct {
	to *[]uint32
}

func (v *gidsValue) Type() string { return "group" }

func (v *gidsValue) String() string {
	if v.to == nil {
		return ""
	}
	return (&uidsValue{v.to}).String()
}

func (v *gidsValue) Set(s string) error {
	if s == "" {
		return nil
	}
	for _, part := range strings.Split(s, ",") {
		text := strings.TrimSpace(part)
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			g, lookup := user.LookupGroup(text)
			if lookup != nil {
				return fmt.Errorf("%q is not a group of this machine: write its name or number (getent group)", text)
			}
			n, err = strconv.ParseUint(g.Gid, 10, 32)
		}
		if err != nil || n == math.MaxUint32 {
			return fmt.Errorf("group %q has no number that can be used", text)
		}
		if !slices.Contains(*v.to, uint32(n)) {
			*v.to = append(*v.to, uint32(n))
		}
	}
	return nil
}

// spanValue is a flag for namespaces, or for all of them.
type spanValue struct{ to *[]string }

func (v *spanValue) Type() string { return "namespace" }

func (v *spanValue) String() string {
	if v.to == nil {
		return ""
	}
	return strings.Join(*v.to, ",")
}

func (v *spanValue) Set(s string) error {
	switch s {
	case "", "false":
		*v.to = nil
		return nil
	case "true":
		s = spanAll
	}
	var out []string
	for _, part := range strings.Split(s, ",") {
		ns := strings.TrimSpace(part)
		if ns != spanAll {
			if err := protocol.CheckNamespace(ns); err != nil {
				return fmt.Errorf("%q is no namespace: %s", ns, protocol.Plain(err))
			}
		}
		if !slices.Contains(out, ns) {
			out = append(out, ns)
		}
	}
	if slices.Contains(out, spanAll) {
		out = []string{spanAll}
	}
	*v.to = out
	return nil
}

// Choice is a flag with a few possible values, which parsing, help and completion of the shell all
// have from here.
type Choice struct {
	to      *string
	choices []string
}

// NewChoice makes a flag of which choices are the values. The flag has the value that it has, which
// need not be one of them where it is empty.
func NewChoice(to *string, choices ...string) *Choice { return &Choice{to, choices} }

// Type is what help calls the value where the usage does not.
func (c *Choice) Type() string   { return "choice" }
func (c *Choice) String() string { return *c.to }

// Choices are the possible values.
func (c *Choice) Choices() []string { return c.choices }

// Set takes one of the choices.
func (c *Choice) Set(s string) error {
	if !slices.Contains(c.choices, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(c.choices, ", "))
	}
	*c.to = s
	return nil
}

// Or writes choices for a flag's usage: "a, b or c".
func Or(choices []string) string {
	last := len(choices) - 1
	if last < 1 {
		return strings.Join(choices, "")
	}
	return strings.Join(choices[:last], ", ") + " or " + choices[last]
}

// levels are the log levels that a flag may have.
var levels = []string{"debug", "info", "warn", "error"}

// levelValue is a flag for a log level.
type levelValue struct{ to *slog.Level }

func newLevel(to *slog.Level, value slog.Level) *levelValue {
	*to = value
	return &levelValue{to}
}

func (v *levelValue) Type() string      { return "level" }
func (v *levelValue) String() string    { return strings.ToLower(v.to.String()) }
func (v *levelValue) Choices() []string { return levels }

func (v *levelValue) Set(s string) error {
	if !slices.Contains(levels, strings.ToLower(s)) {
		return fmt.Errorf("level %q is none of %s", s, strings.Join(levels, ", "))
	}
	return v.to.UnmarshalText([]byte(s))
}

// PlainNumber is an error's text with what people understand in the place of what strconv says of a number.
func PlainNumber(err error) string {
	text := err.Error()
	var n *strconv.NumError
	if !errors.As(err, &n) {
		return text
	}
	why := "is no whole number"
	switch {
	case errors.Is(n.Err, strconv.ErrRange):
		why = "is too large or too small"
	case n.Func == "ParseBool":
		why = "is neither true nor false"
	case n.Func == "ParseUint":
		why = "is no whole number of 0 or more"
	case n.Func == "ParseFloat":
		why = "is no number"
	}
	return strings.Replace(text, n.Error(), fmt.Sprintf("%q %s", n.Num, why), 1)
}
