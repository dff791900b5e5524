//go:build !faults

package node

import (
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/limiter"
)

// recorder returns nil: only programs built for the fault tests record their decisions.
func recorder() limiter.Recorder { return nil }

// applyFaultSettings does nothing: only programs built for the fault tests can
// claim another level or take snapshots early.
func applyFaultSettings(*cluster.Config) {}
