package settings

import (
	"github.com/spf13/pflag"
)

// Recorded are the flags that give another broker these settings at the same place,
// whatever its environment and files say.
func (s *Settings) Recorded() []string {
	var out []string
	for _, key := range s.own {
		switch key {
		case keyConfig, keyAddress, keyRuntimeDir:
			continue
		case keyNATSPassword:
			if s.NATS == "" { // of the environment alone, see checkNATS
				continue
			}
		}
		if s.sources[key] != "" {
			out = append(out, "--"+key+"="+s.flags.Lookup(key).Value.String())
		}
	}
	return out
}

// Replay makes the settings of a broker that stands in for another one: what that one
// recorded, at an address of its own, and of these settings what the other left open
// and was given by a flag here.
func (s *Settings) Replay(recorded []string) (*Settings, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	next := Define(flags, true)
	if err := flags.Parse(recorded); err != nil {
		return nil, err
	}
	next.StandIn = s.StandIn
	for _, key := range s.own {
		if s.flags.Changed(key) && !flags.Changed(key) && key != keyConfig {
			if err := flags.Set(key, s.flags.Lookup(key).Value.String()); err != nil {
				return nil, err
			}
		}
	}
	return next, next.Load(func(string) string { return "" })
}
