package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/rlnode/rlnode/node"
)

// versionCmd prints the version.
type versionCmd struct {
	JSON bool `help:"As JSON."`
}

// build describes the program, as the toolchain noted it.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: node.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	return b
}

// Run prints it.
func (c *versionCmd) Run(env *environment) error {
	b := readBuild()
	if c.JSON {
		return json.NewEncoder(env.stdout).Encode(b)
	}
	_, err := fmt.Fprintf(env.stdout, "rlnode %s, %s %s\n", b.Version, b.Go, b.Platform)
	return err
}
