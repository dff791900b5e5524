//go:build !faults

package main

import "github.com/rlnode/rlnode/limiter"

// recorder is none: only a program built for the fault tests keeps records of its decisions.
func recorder() limiter.Recorder { return nil }
