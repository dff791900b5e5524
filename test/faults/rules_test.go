//go:build faults

package faults

import (
	"fmt"
	"strings"
	"time"
)

// window is the window of the limits under load: short, so that a scenario sees
// many, and a divisor of an hour, so that a clock stepped by an hour keeps its
// windows.
const window = 5 * time.Second

// rule is one of the rules under load.
type rule struct {
	name      string
	algorithm string
	limit     int64
	burst     int64 // of buckets
	per       time.Duration
	hybrid    bool  // leases are spent; otherwise the owner decides each check
	keys      int   // subjects
	weight    int   // share of all checks, relative to the other rules' weights
	cost      int64 // a check costs up to this, at random
	first     bool  // windows begin with their first hit; only calls bring those
}

// The first two rules of every set: a limit that is never reached shows whether
// hits are forgotten, and one that is always reached shows whether too many are
// admitted.
var (
	yearRule = rule{name: "year", algorithm: "fixed-window", limit: 1_000_000_000,
		per: 8760 * time.Hour, keys: 24, weight: 20, cost: 1}
	tenRule = rule{name: "ten", algorithm: "fixed-window", limit: 30, per: window, keys: 24, weight: 25, cost: 1}
)

const (
	year = 0 // indices in a set
	ten  = 1
)

// commonRules are the rules of nearly all scenarios: demand is about twice what they allow.
func commonRules() []rule {
	return []rule{
		yearRule, tenRule,
		{name: "hot", algorithm: "fixed-window", limit: 300, per: window, hybrid: true, keys: 2, weight: 26, cost: 1},
		{name: "dear", algorithm: "fixed-window", limit: 6000, per: window, hybrid: true, keys: 2,
			weight: 12, cost: 150},
		{name: "slide", algorithm: "sliding-window", limit: 300, per: window, hybrid: true, keys: 2,
			weight: 26, cost: 1},
		{name: "bucket", algorithm: "token-bucket", limit: 300, burst: 150, per: window,
			hybrid: true, keys: 2, weight: 26, cost: 1},
		{name: "drip", algorithm: "leaky-bucket", limit: 120, burst: 60, per: window, hybrid: true,
			keys: 2, weight: 12, cost: 1},
	}
}

// ttl returns the life of the rule's leases; 0: none.
func (r *rule) ttl() time.Duration {
	if !r.hybrid || r.first || r.algorithm == "leaky-bucket" || r.algorithm == "sliding-window-log" {
		return 0
	}
	return min(max(r.per/20, 50*time.Millisecond), 5*time.Second)
}

// capacity returns the most that a fresh counter admits at once.
func (r *rule) capacity() int64 {
	switch {
	case r.burst > 0:
		return r.burst
	case r.first:
		// Of the windows that a span touches, one may have begun before it.
		return 2 * r.limit
	}
	return r.limit
}

// bounded reports whether the load reaches the rule's limit.
func (r *rule) bounded() bool { return r.per == window }

// inline reports whether the subject with this number brings its limit with
// each check, as half of them do.
func (r *rule) inline(key int) bool { return r.first || key >= (r.keys+1)/2 }

// subject returns the fields that name a subject to a node.
func (r *rule) subject(key int, name string) string {
	if !r.inline(key) {
		return fmt.Sprintf(`"rule": %q, "key": %q`, r.name, name)
	}
	burst := ""
	if r.burst > 0 {
		burst = fmt.Sprintf(`, "burst": %d`, r.burst)
	}
	if r.first {
		burst = `, "from": "first"`
	}
	return fmt.Sprintf(`"namespace": %q, "key": %q, "limits": [{"limit": %d, "per": "%v", "algorithm": %q%s}]`, r.name, name, r.limit, r.per, r.algorithm, burst)
}

// check returns the body of a check of a subject.
func (r *rule) check(key int, name string, cost int64) string {
	exact := ""
	if r.inline(key) && !r.hybrid {
		exact = `, "consistency": "exact"`
	}
	return fmt.Sprintf(`{%s, "cost": %d%s}`, r.subject(key, name), cost, exact)
}

// rulesText returns the rules as a document. A number in it distinguishes versions.
func rulesText(number int, list []rule) string {
	var b strings.Builder
	b.WriteString("version: 1\nrules:\n")
	for i := range list {
		r := &list[i]
		consistency, burst := "exact", ""
		if r.hybrid {
			consistency = "hybrid"
		}
		if r.burst > 0 {
			burst = fmt.Sprintf(", burst: %d", r.burst)
		}
		fmt.Fprintf(&b, "  - {name: %s, key: [ip], consistency: %s, limits: [{limit: %d, per: %v, algorithm: %s%s}]}\n",
			r.name, consistency, r.limit, r.per, r.algorithm, burst)
	}
	fmt.Fprintf(&b,
		"  - {name: number, key: [ip], limits: [{limit: %d, per: 1h, algorithm: fixed-window}]}\n",
		1_000_000+number)
	return b.String()
}
