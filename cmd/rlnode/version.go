package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster"
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
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

// thisBuild is what this program can read, and how it signs what is agreed on.
func thisBuild() cluster.Build {
	release := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '-'
		}
		return r
	}, readBuild().Version)
	return cluster.Build{Level: cluster.Newest, Release: release, Zones: algorithms.ZonesVersion}
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
