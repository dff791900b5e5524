package localcache

import "github.com/rlnode/rlnode/counters"

// minCounters is the least bound on the counters kept here.
const minCounters = 1000

// New returns the counters that a node decides by itself, beside a table of at most bound: an eighth of that many, and at least
// 1,000. They are kept through a restart, so that a restart renews no share. Their gates are always open.
func New(bound int64) *counters.Table { return counters.New(max(bound/8, minCounters)) }
