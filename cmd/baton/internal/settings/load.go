package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/protocol"
)

// Error is a setting that cannot be used.
type Error struct {
	Key   string // "memory"
	Place string // "--memory", "$BATON_MEMORY", "memory in /etc/baton.toml"
	Cause error
}

func (e *Error) Error() string {
	// A remedy of the cause belongs behind the whole, where Remedy shows it.
	text := PlainNumber(e.Cause)
	var p *protocol.Error
	if errors.As(e.Cause, &p) {
		text = p.Message
	}
	return e.Place + ": " + text
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Load takes the settings that no flag has given from environment and file, then
// checks the whole. Call it once, after the flags were parsed. Every error is an
// *Error, or tells why the file cannot be read.
func (s *Settings) Load(getenv func(string) string) error {
	if s.StandIn {
		for key, value := range standInDefaults {
			if f := s.flags.Lookup(key); f != nil && !f.Changed {
				if err := f.Value.Set(value); err != nil {
					return &Error{key, "the default", err}
				}
			}
		}
	}
	for _, key := range s.own {
		if s.flags.Changed(key) {
			s.sources[key] = "flag"
		}
	}
	for _, key := range s.own {
		if value := getenv(envName(key)); value != "" && s.sources[key] == "" {
			if err := s.flags.Lookup(key).Value.Set(value); err != nil {
				return &Error{key, "$" + envName(key), err}
			}
			s.sources[key] = "environment"
		}
	}
	if err := s.loadFile(getenv); err != nil {
		return err
	}
	if err := s.resolve(); err != nil {
		return err
	}
	return s.check()
}

// standInDefaults are those of a broker that a client starts: it ends once it is not used, and its log lies in memory.
var standInDefaults = map[string]string{"idle-exit": "60s", "log-level": "warn"}

// loadFile reads the file, which must exist where it was named.
func (s *Settings) loadFile(getenv func(string) string) error {
	path := s.Config
	if path == "" {
		path = defaultFile(getenv)
	}
	if path == "" {
		return nil
	}
	data, err := s.readConfig(path)
	if errors.Is(err, fs.ErrNotExist) && s.Config == "" {
		return nil
	}
	if err != nil && s.Config == "" {
		return &Error{keyConfig, "the default configuration file", err}
	}
	if err != nil {
		return &Error{keyConfig, s.place(keyConfig), err}
	}
	s.Config = path
	values := map[string]any{}
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // editors on Windows write it
	if err := toml.Unmarshal(data, &values); err != nil {
		var d *toml.DecodeError
		if errors.As(err, &d) {
			line, column := d.Position()
			return &Error{keyConfig, fmt.Sprintf("%s:%d:%d", path, line, column), err}
		}
		return &Error{keyConfig, path, err}
	}
	for key, value := range values {
		if err := s.fromFile(path, key, value); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) fromFile(path, key string, value any) error {
	place := key + " in " + path
	if !slices.Contains(s.own, key) || key == keyConfig {
		// A file serves `serve` and `run`: what only the other one knows is fine.
		if knownKey(key) {
			return nil
		}
		return &Error{key, place, errors.New("no such setting: baton serve --help lists them")}
	}
	text, err := textOf(value)
	if err != nil {
		return &Error{key, place, err}
	}
	if s.sources[key] != "" {
		// A stronger source has it, but a mistake in the file is still one.
		return s.tryOut(place, key, text)
	}
	if err := s.flags.Lookup(key).Value.Set(text); err != nil {
		return &Error{key, place, err}
	}
	s.sources[key] = "file"
	return nil
}

// tryOut parses a value that does not count.
func (s *Settings) tryOut(place, key, text string) error {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	Define(flags, true)
	if err := flags.Lookup(key).Value.Set(text); err != nil {
		return &Error{key, place, err}
	}
	return nil
}

func knownKey(key string) bool {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	Define(flags, true)
	return key != keyConfig && flags.Lookup(key) != nil
}

// textOf writes a value of the file as a flag would have it.
func textOf(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case time.Time:
		return "", errors.New("a date is no setting")
	case []any:
		parts := make([]string, len(v))
		for i, part := range v {
			text, err := textOf(part)
			if err != nil {
				return "", err
			}
			parts[i] = text
		}
		return strings.Join(parts, ","), nil
	}
	return "", errors.New("settings stand at the top level of the file, as texts, numbers, truth values or lists")
}

// defaultFile is where a user's settings are looked for.
func defaultFile(getenv func(string) string) string {
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "baton", "baton.toml")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".config", "baton", "baton.toml")
	}
	return ""
}

// place names where a setting was given, for an error.
func (s *Settings) place(key string) string {
	switch s.sources[key] {
	case "environment":
		return "$" + envName(key)
	case "file":
		return key + " in " + s.Config
	}
	return "--" + key
}

func (s *Settings) wrong(key string, err error) error { return &Error{key, s.place(key), err} }

// Reload loads the settings anew: the same flags, and environment and file as
// they are now. The receiver stays as it is. reading, if not nil, is told before each file is read, with its setting: one
// may lie on a file system that does not answer.
func (s *Settings) Reload(getenv func(string) string, reading func(key, path string)) (*Settings, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	next := Define(flags, s.listen)
	for _, key := range s.own {
		if s.sources[key] == "flag" {
			if err := flags.Set(key, s.flags.Lookup(key).Value.String()); err != nil {
				return nil, &Error{key, "--" + key, err}
			}
		}
	}
	next.reloaded, next.StandIn, next.reading = s.Shared, s.StandIn, reading
	return next, next.Load(getenv)
}

// Values are the settings as flags would have them, by key.
func (s *Settings) Values() map[string]string {
	values := map[string]string{}
	for _, key := range s.own {
		values[key] = s.flags.Lookup(key).Value.String()
	}
	return values
}

// Compare orders keys as they are defined, others behind them.
func (s *Settings) Compare(a, b string) int {
	at := func(key string) int {
		if i := slices.Index(s.own, key); i >= 0 {
			return i
		}
		return len(s.own)
	}
	return at(a) - at(b)
}
