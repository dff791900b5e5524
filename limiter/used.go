package limiter

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// UseWindow is how long a node remembers which rules were used.
const UseWindow = recentIntervals * recentInterval

// Use says how often each rule was used within UseWindow: by checks that it
// applied to, or that named it. Peeks count.
type Use struct {
	Checks map[string]int64 // by rule; rules without any use are left out
	// Counted is the shortest time for which a node that answered has counted, at
	// most UseWindow.
	Counted time.Duration
	Nodes   []ring.NodeID // the nodes of this region that answered, this one first
	// Silent has the regions that could not be asked, or in which not all nodes answered.
	Silent []string
}

// maxUsedRules bounds the rules in a report: those of a document, its
// namespaces, and Envoy's domains and paths.
const maxUsedRules = 4096

// usedIntervals counts the uses of one rule by intervals.
type usedIntervals struct {
	mu        sync.Mutex // guards the fields below
	before    int64      // all uses up to the end of the last interval
	last      int64      // number of the last interval; 0 before the first
	intervals [recentIntervals]uint32
}

// endInterval records the uses since the last interval as those of interval n.
// all is the number of all uses so far.
func (us *usedIntervals) endInterval(n, all int64) {
	us.mu.Lock()
	defer us.mu.Unlock()
	// Intervals that were missed, such as while the machine slept, have no uses of their own.
	for missed := max(us.last+1, n-recentIntervals+1); missed < n; missed++ {
		us.intervals[missed%recentIntervals] = 0
	}
	us.intervals[n%recentIntervals] = uint32(min(max(all-us.before, 0), math.MaxUint32))
	us.last, us.before = n, all
}

// recent returns how many uses there were in the last recentIntervals intervals
// before now, and in the current one.
func (us *usedIntervals) recent(now, all int64) int64 {
	us.mu.Lock()
	defer us.mu.Unlock()
	sum := max(all-us.before, 0)
	for n := max(now, us.last+1) - recentIntervals; n <= us.last; n++ {
		if n > 0 && n > us.last-recentIntervals {
			sum += int64(us.intervals[n%recentIntervals])
		}
	}
	return sum
}

// uses returns how often the rule was used so far.
func (st *ruleStats) uses() int64 {
	n := st.unmatched.Load()
	for _, by := range st.read("").Checks {
		for _, checks := range by {
			n += checks
		}
	}
	return n
}

// endUseInterval records the rules' uses in the interval before now.
func (active *activeRules) endUseInterval(now int64) {
	for _, st := range active.stats {
		st.used.endInterval(now-1, st.uses())
	}
}

// countUnmatched counts the use of rules by a check that changes none of their
// metrics. Such a check is a peek, or it names a rule but a list decides it or
// the rule does not apply to it.
func (active *activeRules) countUnmatched(q *Query, answer *Answer) {
	if answer.DecidedBy < ByList {
		for i := range answer.scratch.match.Hits {
			active.stats[answer.scratch.match.Hits[i].Rule.Index].unmatched.Add(1)
		}
		return
	}
	if q.Rule == "" {
		return
	}
	if rule := active.set.Rule(q.Rule); rule != nil {
		active.stats[rule.Index].unmatched.Add(1)
	}
}

// Use returns how often each rule was used within UseWindow, by all nodes of
// this region and of the given others that answer within half a second.
func (l *Limiter) Use(regions []string) *Use {
	report, nodes := l.useOfRegion()
	out := &Use{Checks: map[string]int64{}, Counted: UseWindow, Nodes: nodes}
	out.add(report)

	answered := map[string]bool{}
	m := l.membership
	if m != nil && m.OtherRegions != nil {
		gather(gatherTimeout, regions, func(region string, done func([]byte, error)) {
			m.OtherRegions.Go(region, MethodUse, nil, 2*gatherTimeout, done)
		}, func(region string, body []byte, err error) {
			var remote useReport
			if err != nil || wire.Decode(body, &remote, "use of rules") != nil {
				return
			}
			answered[region] = remote.silent == 0
			out.add(&remote)
		})
	}
	for _, region := range regions {
		if !answered[region] {
			out.Silent = append(out.Silent, region)
		}
	}
	return out
}

// add adds a report of a node or a region.
func (use *Use) add(ur *useReport) {
	use.Counted = min(use.Counted, ur.counted)
	for _, rule := range ur.rules {
		use.Checks[rule.rule] += rule.checks
	}
}

// useReport is what a node, or all nodes of a region, have counted.
type useReport struct {
	counted time.Duration // the least of all nodes'
	silent  int           // nodes that did not answer
	rules   []usedRule
}

type usedRule struct {
	rule   string
	checks int64
}

// useOfRegion returns what this region's nodes have counted, and those that
// answered, this one first.
func (l *Limiter) useOfRegion() (*useReport, []ring.NodeID) {
	report := l.useHere()
	nodes := make([]ring.NodeID, 1)
	m := l.membership
	if m == nil {
		return report, nodes
	}

	nodes[0] = m.Self
	gatherFrom(m, MethodUse, nil, func(from ring.NodeID, ur *useReport) {
		nodes = append(nodes, from)
		report.counted = min(report.counted, ur.counted)
		report.rules = append(report.rules, ur.rules...)
	})
	report.silent = len(m.otherMembers()) + 1 - len(nodes)
	report.rules = sumUses(report.rules)

	return report, nodes
}

// sumUses adds up the uses of each rule.
func sumUses(list []usedRule) []usedRule {
	at := map[string]int{}
	out := list[:0]
	for _, used := range list {
		i, found := at[used.rule]
		if !found {
			i = len(out)
			at[used.rule] = i
			out = append(out, usedRule{rule: used.rule})
		}
		out[i].checks += used.checks
	}
	return out[:min(len(out), maxUsedRules)]
}

// useHere returns what this node has counted.
func (l *Limiter) useHere() *useReport {
	ur := &useReport{counted: min(time.Since(l.startedAt), UseWindow).Truncate(time.Millisecond)}
	active := l.inForce.Load()
	if active == nil {
		return ur
	}

	now := l.interval()
	for i, st := range active.stats {
		name := active.set.Names()[i]
		n := st.used.recent(now, st.uses())
		if n > 0 && len(ur.rules) < maxUsedRules && len(name) <= maxActivityName {
			ur.rules = append(ur.rules, usedRule{name, n})
		}
	}

	return ur
}

// Code implements wire.Message.
func (ur *useReport) Code(c *wire.Coder) {
	c.Millis(&ur.counted, UseWindow)
	wire.Number(c, &ur.silent, 1<<20)
	wire.List(c, &ur.rules, maxUsedRules, 2, func(rule *usedRule) {
		c.Text(&rule.rule, maxActivityName)
		rule.rule = strings.ToValidUTF8(rule.rule, "\uFFFD")
		wire.Number(c, &rule.checks, 1<<53)
	})
}
