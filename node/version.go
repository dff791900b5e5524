package node

import (
	"cmp"
	"runtime/debug"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster"
)

// module is this module's path.
const module = "github.com/rlnode/rlnode"

// release is set by the linker (-X) where the toolchain can't see the
// repository, as in a container build.
var release string

// Version returns the release of rlnode in this program, as set by the build or
// the toolchain; "(devel)" if neither did.
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

	return cmp.Or(version, "(devel)")
}

// ThisBuild returns the feature level, the release and the version of the time
// zones of this program.
func ThisBuild() cluster.Build {
	release := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '-'
		}
		return r
	}, Version())
	return cluster.Build{Level: cluster.Newest, Release: release, Zones: algorithms.ZonesVersion}
}
