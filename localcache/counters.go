package localcache

import "github.com/rlnode/rlnode/counters"

// minCounters is the smallest bound on the counters kept here.
const minCounters = 1000

// New returns the counters that a node decides by itself, beside a table of at most bound counters. It keeps at most an eighth
// as many, but at least 1,000. They survive a restart, so that a restart does not renew shares. Their gates are always open.
func New(bound int64) *counters.Table { return counters.New(max(bound/8, minCounters)) }
