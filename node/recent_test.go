package node

import (
	"maps"
	"testing"

	"github.com/rlnode/rlnode/limiter"
)

func TestRecent(t *testing.T) {
	stats := []limiter.RuleStats{{Rule: "a"}, {Rule: "b"}}
	r := recent{read: func() []limiter.RuleStats { return stats }}
	stats[0].Checks[limiter.DecisionAllowed][limiter.ByOwner] = 3
	r.note()
	stats[0].Checks[limiter.DecisionRefused][limiter.ByOwner] = 2
	stats[1].Checks[limiter.DecisionAllowed][limiter.ByLease] = 7
	if have := r.since(); !maps.Equal(have, map[string]int64{"owner": 5, "lease": 7}) {
		t.Errorf("in the first seconds: have %v", have)
	}
	for range recentSeconds - 1 {
		r.note()
	}
	if have := r.since(); !maps.Equal(have, map[string]int64{"owner": 2, "lease": 7}) {
		t.Errorf("since the first reading: have %v", have)
	}
	r.note()
	if have := r.since(); len(have) != 0 {
		t.Errorf("nothing happened since: have %v", have)
	}
	stats = stats[:1]
	if have := r.since(); len(have) != 0 {
		t.Errorf("a rule went: have %v", have)
	}
}
