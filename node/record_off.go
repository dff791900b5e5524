//go:build !faults

package node

import (
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/limiter"
)

// recorder is none: only a program built for the fault tests keeps records of its decisions.
func recorder() limiter.Recorder { return nil }

// tune does nothing: only a program built for the fault tests can be told to go by another level, or to take snapshots early.
func tune(*cluster.Config) {}
