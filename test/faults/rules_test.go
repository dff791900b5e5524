//go:build faults

package faults

import (
	"fmt"
	"strings"
	"time"
)

// window is that of the limits under load: short, so that a scenario sees many, and such that an hour is a whole number
// of them: a clock that is stepped by an hour keeps its windows where they were.
const window = 5 * time.Second

// rule is one of the rules under load.
type rule struct {
	name      string
	algorithm string
	limit     int64
	burst     int64 // of buckets
	per       time.Duration
	hybrid    bool  // leases are spent; otherwise the owner is asked each time
	keys      int   // subjects
	weight    int   // of all checks, in parts of the rules' weights together
	cost      int64 // a check costs up to this, by chance
}

// The first two of all sets of rules: a limit that is never reached tells whether hits are forgotten, one that always is
// whether there are too many.
var (
	yearRule = rule{name: "year", algorithm: "fixed-window", limit: 1_000_000_000, per: 8760 * time.Hour, keys: 24, weight: 20, cost: 1}
	tenRule  = rule{name: "ten", algorithm: "fixed-window", limit: 30, per: window, keys: 24, weight: 25, cost: 1}
)

const (
	year = 0 // places in a set
	ten  = 1
)

// commonRules are those of nearly all scenarios: about twice as much is asked for as they allow.
func commonRules() []rule {
	return []rule{
		yearRule, tenRule,
		{name: "hot", algorithm: "fixed-window", limit: 300, per: window, hybrid: true, keys: 2, weight: 26, cost: 1},
		{name: "dear", algorithm: "fixed-window", limit: 6000, per: window, hybrid: true, keys: 2, weight: 12, cost: 150},
		{name: "slide", algorithm: "sliding-window", limit: 300, per: window, hybrid: true, keys: 2, weight: 26, cost: 1},
		{name: "bucket", algorithm: "token-bucket", limit: 300, burst: 150, per: window, hybrid: true, keys: 2, weight: 26, cost: 1},
		{name: "drip", algorithm: "leaky-bucket", limit: 120, burst: 60, per: window, hybrid: true, keys: 2, weight: 12, cost: 1},
	}
}

// ttl is how long leases of the rule last; 0: there are none.
func (r *rule) ttl() time.Duration {
	if !r.hybrid || r.algorithm == "leaky-bucket" {
		return 0
	}
	return min(max(r.per/20, 50*time.Millisecond), 5*time.Second)
}

// capacity is the most that a fresh counter admits at once.
func (r *rule) capacity() int64 {
	if r.burst > 0 {
		return r.burst
	}
	return r.limit
}

// bounded reports whether the rule's limit is one that the load reaches.
func (r *rule) bounded() bool { return r.per == window }

// inline reports whether the subject with this number brings its limit with each check: half of them do.
func (r *rule) inline(key int) bool { return key >= (r.keys+1)/2 }

// subject are the fields that name a subject to a node.
func (r *rule) subject(key int, name string) string {
	if !r.inline(key) {
		return fmt.Sprintf(`"rule": %q, "key": %q`, r.name, name)
	}
	consistency := "exact"
	if r.hybrid {
		consistency = "hybrid"
	}
	return fmt.Sprintf(`"namespace": %q, "key": %q, "consistency": %q, "limits": [{"limit": %d, "per": "%v", "algorithm": %q, "burst": %d}]`,
		r.name, name, consistency, r.limit, r.per, r.algorithm, r.burst)
}

// rulesText are rules as a document, with a number in them that tells one version from another.
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
	fmt.Fprintf(&b, "  - {name: number, key: [ip], limits: [{limit: %d, per: 1h, algorithm: fixed-window}]}\n", 1_000_000+number)
	return b.String()
}
