package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
)

// groupFlags makes the help of a command that runs a broker show the broker's flags by subject,
// and behind them those of the command alone. By a function and not by a template:
// text/template calls methods by name, for which the linker keeps every exported method, 4 MB.
func groupFlags(cmd *cobra.Command) {
	cmd.SetUsageFunc(func(c *cobra.Command) error {
		text := "Usage:\n  " + c.UseLine() + "\n\n"
		if c.HasExample() {
			text += "Examples:\n" + c.Example + "\n\n"
		}
		_, err := fmt.Fprintln(c.OutOrStderr(), text+groupedFlags(c.LocalFlags()))
		return err
	})
}

// groupedFlags lists flags under titles.
func groupedFlags(flags *pflag.FlagSet) string {
	var out []string
	shown := map[string]bool{}
	add := func(title string, which func(*pflag.Flag) bool) {
		some := pflag.NewFlagSet("", pflag.ContinueOnError)
		some.SortFlags = false
		flags.VisitAll(func(f *pflag.Flag) {
			if !shown[f.Name] && which(f) {
				shown[f.Name] = true
				some.AddFlag(f)
			}
		})
		if text := strings.TrimRight(some.FlagUsages(), " \n"); text != "" {
			out = append(out, title+":\n"+text)
		}
	}
	for _, g := range settings.Groups {
		keys := map[string]bool{}
		for _, key := range g.Keys {
			keys[key] = true
		}
		add(g.Title, func(f *pflag.Flag) bool { return keys[f.Name] })
	}
	add("Other flags", func(*pflag.Flag) bool { return true })
	return strings.Join(out, "\n\n")
}
