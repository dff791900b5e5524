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
const UseWindow = recentSteps * recentStep

// Use says how often each rule was used within UseWindow: by checks that it
// applied to, or that named it. Peeks count.
type Use struct {
	Checks map[string]int64 // by rule; rules without any use are left out
	// Counted is for how long each node that answered has counted, at most
	// UseWindow: the least of them.
	Counted time.Duration
	Nodes   []ring.NodeID // the nodes of this region that answered, this one first
	// Silent has the regions that could not be asked, or in which not all nodes answered.
	Silent []string
}

// maxUsedRules bounds the rules in a report: those of a document, its
// namespaces, and Envoy's domains and paths.
const maxUsedRules = 4096

// usedSteps counts the uses of one rule by steps.
type usedSteps struct {
	mu     sync.Mutex // guards the fields below
	before int64      // all uses up to the end of the last step
	last   int64      // number of the last step; 0 before the first
	steps  [recentSteps]uint32
}

// endStep records the uses since the last step under step number n. all is the
// number of all uses so far.
func (u *usedSteps) endStep(n, all int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	// Steps that were missed, such as while the machine slept, have no uses of their own.
	for missed := max(u.last+1, n-recentSteps+1); missed < n; missed++ {
		u.steps[missed%recentSteps] = 0
	}
	u.steps[n%recentSteps] = uint32(min(max(all-u.before, 0), math.MaxUint32))
	u.last, u.before = n, all
}

// recent returns how many uses there were in the last recentSteps steps before
// now, and in the current one.
func (u *usedSteps) recent(now, all int64) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	sum := max(all-u.before, 0)
	for n := max(now, u.last+1) - recentSteps; n <= u.last; n++ {
		if n > 0 && n > u.last-recentSteps {
			sum += int64(u.steps[n%recentSteps])
		}
	}
	return sum
}

// uses returns how often the rule was used so far.
func (s *ruleStats) uses() int64 {
	n := s.unmatched.Load()
	for _, by := range s.read("").Checks {
		for _, checks := range by {
			n += checks
		}
	}
	return n
}

// endUseStep records the rules' uses in the step before now.
func (a *activeRules) endUseStep(now int64) {
	for _, s := range a.stats {
		s.used.endStep(now-1, s.uses())
	}
}

// countUnmatched counts the use of rules in a check that changes no metric of
// theirs: a peek, and one that names a rule but is decided by a list, or to
// which the rule does not apply.
func (a *activeRules) countUnmatched(q *Query, answer *Answer) {
	if answer.DecidedBy < ByList {
		for i := range answer.scratch.match.Hits {
			a.stats[answer.scratch.match.Hits[i].Rule.Index].unmatched.Add(1)
		}
		return
	}
	if q.Rule == "" {
		return
	}
	if r := a.set.Rule(q.Rule); r != nil {
		a.stats[r.Index].unmatched.Add(1)
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
			var far useReport
			if err != nil || wire.Decode(body, &far, "use of rules") != nil {
				return
			}
			answered[region] = far.silent == 0
			out.add(&far)
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
func (u *Use) add(r *useReport) {
	u.Counted = min(u.Counted, r.counted)
	for _, one := range r.rules {
		u.Checks[one.rule] += one.checks
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
	all, nodes := l.useHere(), make([]ring.NodeID, 1)
	m := l.membership
	if m == nil {
		return all, nodes
	}

	nodes[0] = m.Self
	gatherFrom(m, MethodUse, nil, func(from ring.NodeID, r *useReport) {
		nodes = append(nodes, from)
		all.counted = min(all.counted, r.counted)
		all.rules = append(all.rules, r.rules...)
	})
	all.silent = len(m.otherMembers()) + 1 - len(nodes)
	all.rules = sumUses(all.rules)

	return all, nodes
}

// sumUses adds up the uses of each rule.
func sumUses(list []usedRule) []usedRule {
	at := map[string]int{}
	out := list[:0]
	for _, r := range list {
		i, known := at[r.rule]
		if !known {
			i = len(out)
			at[r.rule] = i
			out = append(out, usedRule{rule: r.rule})
		}
		out[i].checks += r.checks
	}
	return out[:min(len(out), maxUsedRules)]
}

// useHere returns what this node has counted.
func (l *Limiter) useHere() *useReport {
	r := &useReport{counted: min(time.Since(l.startedAt), UseWindow).Truncate(time.Millisecond)}
	active := l.inForce.Load()
	if active == nil {
		return r
	}

	now := l.step()
	for i, s := range active.stats {
		name := active.set.Names()[i]
		if n := s.used.recent(now, s.uses()); n > 0 && len(r.rules) < maxUsedRules && len(name) <= maxActivityName {
			r.rules = append(r.rules, usedRule{name, n})
		}
	}

	return r
}

// Code implements wire.Message.
func (r *useReport) Code(c *wire.Coder) {
	c.Millis(&r.counted, UseWindow)
	wire.Number(c, &r.silent, 1<<20)
	wire.List(c, &r.rules, maxUsedRules, 2, func(one *usedRule) {
		c.Text(&one.rule, maxActivityName)
		one.rule = strings.ToValidUTF8(one.rule, "\uFFFD")
		wire.Number(c, &one.checks, 1<<53)
	})
}
