package limiter

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// activityAge is how old what Activity returns may be: however many look, the nodes are asked five times a second.
	activityAge = 200 * time.Millisecond
	// maxActiveRules bounds the rules of a node's counts: as many as a rules document may have.
	maxActiveRules = 1000
	counts         = decisions * (int(ByNone) + 1)
	// maxActivityName bounds the bytes of a rule's name in them; a longer one is left out.
	maxActivityName = 4 << 10
)

// Counts are checks by decision, and by DecidedBy.
type Counts [decisions][ByNone + 1]int64

// Add adds what other counts.
func (c *Counts) Add(other *Counts) {
	for d := range c {
		for by := range c[d] {
			c[d][by] += other[d][by]
		}
	}
}

// RuleCounts are the checks that a rule was asked about.
type RuleCounts struct {
	Rule   string
	Checks Counts
}

// NodeActivity is what one node has decided since its process began. A check counts once in Checks, and once for each
// rule that applied to it in Rules.
type NodeActivity struct {
	Node    ring.NodeID   // zero for a node by itself
	Process uint64        // another one: the counts began anew
	Uptime  time.Duration // when the counts were read, since the process began; whole milliseconds
	Checks  Counts
	Rules   []RuleCounts // those that were asked, at most 1,000
}

// rounds keeps the last round of questions, for others who look at the same time.
type rounds struct {
	mu   sync.Mutex // held during a round; guards what follows
	at   time.Time
	last []NodeActivity
}

// Activity returns what this node has decided, first, and all others that answer within half a second. The caller may not
// change it: for a fifth of a second others are given the same.
func (l *Limiter) Activity() []NodeActivity {
	r := &l.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || time.Since(r.at) > activityAge {
		r.last, r.at = []NodeActivity{l.activityHere()}, time.Now()
		if l.member != nil {
			gatherFrom(l.member, MethodActivity, func(from ring.NodeID, a *NodeActivity) {
				a.Node = from
				r.last = append(r.last, *a)
			})
		}
	}
	return r.last
}

// activityHere is what this node has decided.
func (l *Limiter) activityHere() NodeActivity {
	a := NodeActivity{Process: l.process, Uptime: time.Since(l.began).Truncate(time.Millisecond)}
	if l.member != nil {
		a.Node = l.member.Self
	}
	b := l.inForce.Load()
	if b == nil {
		return a
	}
	a.Checks = b.checks()
	for i, s := range b.stats {
		if name := b.set.Rules[i].Name; len(a.Rules) < maxActiveRules && len(name) <= maxActivityName {
			if c := s.read(name).Checks; c != (Counts{}) {
				a.Rules = append(a.Rules, RuleCounts{Rule: name, Checks: c})
			}
		}
	}
	return a
}

// Code is for wire.Encode.
func (a *NodeActivity) Code(c *wire.Coder) {
	wire.Fixed(c, &a.Process)
	c.Millis(&a.Uptime, math.MaxInt64)
	a.Checks.code(c)
	wire.List(c, &a.Rules, maxActiveRules, 1+counts, func(r *RuleCounts) {
		c.Text(&r.Rule, maxActivityName)
		r.Rule = strings.ToValidUTF8(r.Rule, "\uFFFD")
		r.Checks.code(c)
	})
}

func (n *Counts) code(c *wire.Coder) {
	const maxCount = 1 << 53 // a sum over nodes stays far from the end of int64
	for decision := range n {
		for by := range n[decision] {
			wire.Number(c, &n[decision][by], maxCount)
		}
	}
}
