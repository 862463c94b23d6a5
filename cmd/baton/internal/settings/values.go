package settings

import (
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

var units = map[string]uint64{
	"": 1, "b": 1,
	"k": 1 << 10, "ki": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mi": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gi": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "ti": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// ParseSize reads a number of bytes: "1073741824", "1GiB", "1Gi" and "1G" are
// the same, "1GB" is 10^9; fractions and a space before the unit may be used.
func ParseSize(s string) (uint64, error) {
	text := strings.TrimSpace(s)
	at := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if at < 0 {
		at = len(text)
	}
	unit, known := units[strings.ToLower(strings.TrimSpace(text[at:]))]
	if number := text[:at]; known && number != "" {
		if n, err := strconv.ParseUint(number, 10, 64); err == nil {
			if high, low := bits.Mul64(n, unit); high == 0 {
				return low, nil
			}
			return 0, fmt.Errorf("size %q is beyond 64 bits", s)
		}
		if f, err := strconv.ParseFloat(number, 64); err == nil {
			if f *= float64(unit); f > 0 && f < 1 {
				return 0, fmt.Errorf("size %q is less than a byte", s)
			} else if f < math.MaxUint64/2 {
				return uint64(f), nil
			}
			return 0, fmt.Errorf("size %q is beyond 64 bits", s)
		}
	}
	return 0, fmt.Errorf("size %q is none: write it like 8GiB, 512M or 1073741824", s)
}

// formatSize writes a size so that ParseSize reads the same number.
func formatSize(n uint64) string {
	for _, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if u := units[strings.ToLower(unit)]; n >= u && n%u == 0 {
			return strconv.FormatUint(n/u, 10) + unit
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
		return fmt.Errorf("mode %q is none: write it in octal, between 0600 and 0777 and open to the owner", s)
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
			return fmt.Errorf("user id %q is none: write its number (id -u NAME)", part)
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
				return fmt.Errorf("group %q is none of this machine: write its name or number (getent group)", text)
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

// choiceValue is a flag with a few possible values.
type choiceValue struct {
	to      *string
	choices []string
}

// newChoice makes the first choice the default.
func newChoice(to *string, choices ...string) *choiceValue {
	*to = choices[0]
	return &choiceValue{to, choices}
}

func (v *choiceValue) Type() string   { return "choice" }
func (v *choiceValue) String() string { return *v.to }

func (v *choiceValue) Set(s string) error {
	if !slices.Contains(v.choices, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(v.choices, ", "))
	}
	*v.to = s
	return nil
}

// levelValue is a flag for a log level.
type levelValue struct{ to *slog.Level }

func newLevel(to *slog.Level, value slog.Level) *levelValue {
	*to = value
	return &levelValue{to}
}

func (v *levelValue) Type() string   { return "level" }
func (v *levelValue) String() string { return strings.ToLower(v.to.String()) }

func (v *levelValue) Set(s string) error {
	switch strings.ToLower(s) {
	case "debug", "info", "warn", "error":
		return v.to.UnmarshalText([]byte(s))
	}
	return fmt.Errorf("level %q is none of debug, info, warn, error", s)
}
