package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newVersionCommand) }

// build says what this binary is.
type build struct {
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`
	Layout   int    `json:"layout"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
}

func thisBuild() build {
	b := build{Version: version, Protocol: protocol.Version, Layout: protocol.Layout,
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return b
}

func newVersionCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Tell the version of program and protocol",
		GroupID: groupOther,
		Args:    takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			b := thisBuild()
			if asJSON {
				return a.printJSON(b)
			}
			return a.println(fmt.Sprintf("baton %s (%s, %s; protocol %d, layout %d)", b.Version, b.Platform, b.Go, b.Protocol, b.Layout))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
