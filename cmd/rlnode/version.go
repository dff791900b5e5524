package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/rlnode/rlnode/node"
)

// versionCmd prints the version.
type versionCmd struct {
	JSON bool `help:"As JSON."`
}

// revision and date are those of the commit, set by the linker (-X) or else
// taken from the toolchain's build information.
var revision, date string

// build describes the program.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Date     string `json:"date,omitempty"` // of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: node.Version(), Revision: revision, Date: date, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = cmp.Or(b.Revision, s.Value)
			case "vcs.time":
				b.Date = cmp.Or(b.Date, s.Value)
			}
		}
	}
	return b
}

func (c *versionCmd) Run(env *environment) error {
	b := readBuild()
	if c.JSON {
		return json.NewEncoder(env.stdout).Encode(b)
	}
	from := ""
	if b.Revision != "" {
		from = ", commit " + strings.TrimSpace(b.Revision[:min(len(b.Revision), 12)]+" "+b.Date)
	}
	_, err := fmt.Fprintf(env.stdout, "rlnode %s%s, %s %s\n", b.Version, from, b.Go, b.Platform)
	return err
}
