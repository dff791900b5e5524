package node

import (
	"runtime/debug"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster"
)

// module is this one's path.
const module = "github.com/rlnode/rlnode"

// release is what the linker was told (-X), where the toolchain can't see the repository: in a container's build, say.
var release string

// Version is the release of rlnode in this program, as its build or the toolchain has noted it; "(devel)" if neither has.
func Version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(devel)"
	}
	version := info.Main.Version
	for _, dependency := range info.Deps { // of a program that embeds a node
		if dependency.Path == module {
			version = dependency.Version
		}
	}
	if version == "" {
		return "(devel)"
	}
	return version
}

// ThisBuild is what this program can read, and how it signs what is agreed on.
func ThisBuild() cluster.Build {
	release := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '-'
		}
		return r
	}, Version())
	return cluster.Build{Level: cluster.Newest, Release: release, Zones: algorithms.ZonesVersion}
}
