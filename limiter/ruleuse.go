package limiter

import (
	"strings"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// RuleUseWindow is how long a node remembers how often rules were used.
const RuleUseWindow = recentIntervals * recentInterval

// RuleUse is how often each rule was used within RuleUseWindow. A check uses the
// rules that apply to it and the rule that it names. Peeks count, too.
type RuleUse struct {
	Checks map[string]int64 // by rule; rules without any use are left out
	// Counted is how long all nodes that answered have counted, at most
	// RuleUseWindow: the time of the one that started last.
	Counted time.Duration
	Nodes   []ring.NodeID // the nodes of this region that answered, this one first
	// Silent has the regions from which the counts of some nodes are missing.
	Silent []string
}

// maxUsedRules bounds the rules in a report. They are those of a document, its
// namespaces, and Envoy's domains and paths.
const maxUsedRules = 4096

// uses returns how often the rule was used so far.
func (st *ruleMetrics) uses() int64 {
	n := st.otherUses.Load()
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

// RuleUse returns how often each rule was used within RuleUseWindow, by all
// nodes of this region that answer within half a second, and by the given other
// regions.
func (l *Limiter) RuleUse(regions []string) *RuleUse {
	report, nodes := l.ruleUseInRegion()
	out := &RuleUse{Checks: map[string]int64{}, Counted: RuleUseWindow, Nodes: nodes}
	out.add(report)

	answered := map[string]bool{}
	cp := l.cluster
	if cp != nil && cp.OtherRegions != nil {
		// A node there first waits for those nodes of its region that don't answer.
		const timeout = 2 * gatherTimeout
		gather(timeout, regions, func(region string, done func([]byte, error)) {
			cp.OtherRegions.Go(region, MethodRuleUse, nil, timeout, done)
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
func (use *RuleUse) add(ur *useReport) {
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

// ruleUseInRegion returns what this region's nodes have counted, and the nodes
// that answered, this one first.
func (l *Limiter) ruleUseInRegion() (*useReport, []ring.NodeID) {
	report := l.ruleUseHere()
	nodes := make([]ring.NodeID, 1)
	cp := l.cluster
	if cp == nil {
		return report, nodes
	}

	nodes[0] = cp.Self
	gatherFrom(cp, MethodRuleUse, nil, func(from ring.NodeID, ur *useReport) {
		nodes = append(nodes, from)
		report.counted = min(report.counted, ur.counted)
		report.rules = append(report.rules, ur.rules...)
	})
	report.silent = max(0, len(cp.otherMembers())+1-len(nodes)) // nodes may have left meanwhile
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

// ruleUseHere returns what this node has counted.
func (l *Limiter) ruleUseHere() *useReport {
	ur := &useReport{counted: min(time.Since(l.startedAt), RuleUseWindow).Truncate(time.Millisecond)}
	active := l.active.Load()
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
	c.Millis(&ur.counted, RuleUseWindow)
	wire.Number(c, &ur.silent, 1<<20)
	wire.List(c, &ur.rules, maxUsedRules, 2, func(rule *usedRule) {
		c.Text(&rule.rule, maxActivityName)
		rule.rule = strings.ToValidUTF8(rule.rule, "\uFFFD")
		wire.Number(c, &rule.checks, 1<<53)
	})
}
