package limiter

import (
	"crypto/rand"
	"fmt"
	"math/bits"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// Limiter decides checks. All methods may be called concurrently.
type Limiter struct {
	table   *counters.Table
	clock   *Clock
	inForce atomic.Pointer[book]
	top     *top
	answers atomic.Uint32 // seen so far; see stripes
	member  *member       // nil: a node by itself
	process uint64        // marks this process's counts, and readings of its clock
	began   time.Time
	rounds  rounds
	meter   Meter // nil: what is admitted is not counted for bills

	reservations reservations
	requests     requests

	mu     sync.Mutex // serialises Use and Adapt, and guards what follows
	steps  func(*rules.Set) []int
	opened rules.Opened
}

// book is a version of the rules with the figures kept by its rules.
type book struct {
	set     *rules.Set
	stats   []*ruleStats // by Rule.Index
	whole   *ruleStats   // whole checks, by their decision, however many rules applied to them
	monthly bool         // some rule of the set counts usage by month
	// global: the set has limits that regions divide. recorded is the last version that the primary has recorded as honoured
	// by all of them; 0: none.
	global   bool
	recorded int64
	// steps are one above the steps in force, by Rule.Index; 0: none. nil: no rule is adaptive.
	steps []atomic.Int32
}

// New returns a limiter over table. It decides nothing until Use gives it rules. Without a clock (nil) only the
// methods that are given the time may be called. It is a node by itself; for a cluster see Join.
func New(table *counters.Table, clock *Clock) *Limiter {
	l := &Limiter{table: table, clock: clock, top: newTop(), process: mathrand.Uint64(), began: time.Now()}
	l.reservations.l, l.requests.under = l, make(map[counters.Key]chan struct{})
	_, _ = rand.Read(l.reservations.ownKey[:]) // never fails
	return l
}

// Use makes set the rules in force; checks that have begun end by the rules they began with. Rules keep their
// figures by name.
func (l *Limiter) Use(set *rules.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := make(map[string]*ruleStats)
	set = l.opened.Note(set, l.authorityAt())
	next := &book{set: set, whole: &ruleStats{}, monthly: slices.ContainsFunc(set.Rules, func(r *rules.Rule) bool { return r.Monthly })}
	next.divide()
	if old := l.inForce.Load(); old != nil {
		next.whole = old.whole
		for i, r := range old.set.Rules {
			kept[r.Name] = old.stats[i]
		}
	}
	for _, r := range set.Rules {
		s := kept[r.Name]
		if s == nil {
			s = &ruleStats{}
		}
		delete(kept, r.Name)
		next.stats = append(next.stats, s)
		if r.Adaptive != nil && next.steps == nil {
			next.steps = make([]atomic.Int32, len(set.Rules))
		}
	}
	for _, s := range kept {
		next.whole.absorb(s)
	}
	next.adapt(l.steps)
	l.inForce.Store(next)
}

// authorityAt is a wall time, Unix nanoseconds, up to which this node had authority while it went by the rules in force; 0
// where it has none now.
func (l *Limiter) authorityAt() int64 {
	if l.member == nil {
		return 0
	}
	now := l.clock.Now().Wall
	if !l.member.Authority() {
		return 0
	}
	return now
}

// Rules returns the rules in force, nil before the first Use.
func (l *Limiter) Rules() *rules.Set {
	if b := l.inForce.Load(); b != nil {
		return b.set
	}
	return nil
}

// Clock returns the limiter's clock.
func (l *Limiter) Clock() *Clock { return l.clock }

// Check decides q now. The error wraps ErrUnknownRule or ErrKey; the answer is then not to be used.
func (l *Limiter) Check(q *Query, a *Answer) error { return l.CheckAt(l.clock.Now(), q, a) }

// CheckAt decides q at now.
func (l *Limiter) CheckAt(now algorithms.Now, q *Query, a *Answer) error {
	over, err := l.prepare(now, q, a)
	if err != nil {
		return err
	}
	if !over && !l.start(q, a) {
		return l.finish(q, a)
	}
	l.count(q, a)
	return nil
}

// prepare matches q by the rules in force, and lists the counters that are to be asked. It reports whether there are none.
func (l *Limiter) prepare(now algorithms.Now, q *Query, a *Answer) (over bool, err error) {
	b := l.inForce.Load()
	a.begin(b, now)
	m := &a.scratch.match
	var rule *rules.Rule
	if q.Rule != "" || q.ByKey {
		if rule = b.set.Rule(q.Rule); rule == nil {
			return false, fmt.Errorf("%w %q", ErrUnknownRule, q.Rule)
		}
	}
	if !q.ByKey {
		b.set.Match(q.Attributes, rule, m)
	} else if err := b.set.MatchKey(rule, q.Key, m); err != nil {
		return false, err
	}
	switch {
	case m.List != rules.Unlisted:
		a.Allowed, a.DecidedBy = m.List == rules.Allowed, ByList
		return true, nil
	case len(m.Hits) == 0:
		a.Allowed, a.DecidedBy = !b.set.DefaultDeny, ByNone
		return true, nil
	}
	if b.global || b.steps != nil {
		b.enforce(m, now.Wall)
	}
	a.ask(q)
	return false, nil
}

// start decides a check that was prepared, where nobody needs to be waited for; else it puts it on its way to those who can, for
// finish.
func (l *Limiter) start(q *Query, a *Answer) (over bool) {
	s, powerless := &a.scratch, false
	if l.member == nil || !s.local && !s.reserving && l.table.AllOpen(s.ops) {
		verdict, powerful := l.take(a.Now, s.ops, q.Peek)
		if verdict != counters.Shut {
			a.Allowed, a.DecidedBy = verdict == counters.Admitted, ByOwner
			a.conclude()
			return true
		}
		powerless = !powerful
	}
	if s.journey == nil {
		s.journey = &journey{}
	}
	c := s.journey
	c.limiter, c.answer, c.book, c.now, c.peek, c.last = l, a, s.book, a.Now, q.Peek, false
	c.until, c.thaw = time.Time{}, time.Time{}
	c.begin(powerless)
	return len(c.asks) == 0 && c.fold()
}

// take asks the counters here, as their owner. Authority is looked at before and after; without it the verdict is Shut, and what was
// taken meanwhile stays taken: nobody can tell any more whose cost it is.
func (l *Limiter) take(now algorithms.Now, ops []counters.Op, peek bool) (verdict counters.Verdict, powerful bool) {
	m := l.member
	if m != nil && !m.Authority() {
		return counters.Shut, false
	}
	began := m.clock()
	if peek {
		verdict = l.table.Peek(now, ops)
	} else {
		verdict = l.table.Take(now, ops)
	}
	switch {
	case m == nil:
	case !m.Authority():
		return counters.Shut, false
	case verdict != counters.Shut:
		m.record(ByOwner, ops, began, 1)
	}
	return verdict, true
}

// finish waits for a check that start has put on its way: for replies, and for what the next ones bring, until it is decided.
func (l *Limiter) finish(q *Query, a *Answer) error {
	c := a.scratch.journey
	for {
		c.collect()
		if c.behind > 0 && !c.last { // it is asked anew, by newer rules
			c.giveBack()
			l.catchUp(l.member.ctx, 0, c.behind)
			c.now, c.last = l.clock.Now(), true
			if over, err := l.prepare(c.now, q, a); err != nil {
				return err
			} else if over {
				break
			}
			c.book = a.scratch.book
			c.begin(false)
			continue
		}
		if c.fold() {
			break
		}
		c.decide()
	}
	l.count(q, a)
	return nil
}

func counterKey(h *rules.Hit, limit *rules.Limit) counters.Key {
	return counters.Key{Hi: h.Subject.Hi, Lo: h.Subject.Lo ^ limit.ID}
}

// begin empties a for a new check.
func (a *Answer) begin(b *book, now algorithms.Now) {
	a.Set, a.RulesVersion, a.Now = b.set, b.set.Version, now
	a.scratch.book, a.scratch.local = b, false
	a.scratch.blocks = false
	a.Limits, a.Tightest = a.Limits[:0], -1
	a.scratch.ops = a.scratch.ops[:0]
}

// ask lists the counters that the check is about.
func (a *Answer) ask(q *Query) {
	hits := a.scratch.match.Hits
	for i := range hits {
		h := &hits[i]
		a.scratch.local = a.scratch.local || h.Rule.Consistency == rules.Local
		for _, limit := range h.Limits {
			op := a.list(h.Rule, limit)
			op.Key, op.Limit, op.Cost, op.Shadow = counterKey(h, limit), &limit.Limit, q.cost(h, limit), h.Rule.Shadow
		}
		if h.Block != nil {
			a.askBlock(h)
		}
	}
}

// list adds a limit to those that are asked, and returns its op, for the caller to fill in. Both are written where they
// stand: they are large, and copying them would cost more than all that is in them.
func (a *Answer) list(rule *rules.Rule, limit *rules.Limit) *counters.Op {
	s := &a.scratch
	if len(s.ops) == cap(s.ops) {
		s.ops = slices.Grow(s.ops, 1)
	}
	s.ops = s.ops[:len(s.ops)+1]
	op := &s.ops[len(s.ops)-1]
	op.Block, op.Full = false, false
	op.Decision = algorithms.Decision{}
	if len(a.Limits) == cap(a.Limits) {
		a.Limits = slices.Grow(a.Limits, 1)
	}
	a.Limits = a.Limits[:len(a.Limits)+1]
	la := &a.Limits[len(a.Limits)-1]
	la.Rule, la.Limit, la.Blocked = rule, limit, false // the rest is written by conclude
	return op
}

// cost is what q costs in a limit's unit.
func (q *Query) cost(h *rules.Hit, limit *rules.Limit) int64 {
	for i := range q.Costs {
		if q.Costs[i].Unit == limit.Unit {
			return q.Costs[i].Cost
		}
	}
	if limit.UnitID == 0 {
		return h.Cost
	}
	return 0
}

// conclude takes over what the counters said and finds the tightest limit.
func (a *Answer) conclude() {
	if a.scratch.blocks {
		a.foldBlocks()
	}
	for i := range a.Limits {
		la, op := &a.Limits[i], &a.scratch.ops[i]
		// Field by field: the processor would wait for what was written so a moment ago if it were copied as a whole.
		la.Allowed, la.Remaining, la.Full = op.Decision.Allowed, op.Decision.Remaining, op.Full
		la.RetryAfter, la.ResetAfter, la.Delay = op.Decision.RetryAfter, op.Decision.ResetAfter, op.Decision.Delay
		if !la.Rule.Shadow && (a.Tightest < 0 || la.Tighter(&a.Limits[a.Tightest])) {
			a.Tightest = i
		}
	}
}

// Tighter reports whether la describes a check better than b, which stands before it: refusals first, of them
// the longest; else the least remaining for its capacity.
func (la *LimitAnswer) Tighter(b *LimitAnswer) bool {
	switch {
	case la.Allowed != b.Allowed:
		return b.Allowed
	case !la.Allowed:
		// Never is -1, and the longest of all when seen without a sign.
		return uint64(la.RetryAfter) > uint64(b.RetryAfter)
	}
	aHi, aLo := bits.Mul64(uint64(la.Remaining), uint64(b.Limit.Capacity()))
	bHi, bLo := bits.Mul64(uint64(b.Remaining), uint64(la.Limit.Capacity()))
	return aHi < bHi || aHi == bHi && aLo < bLo
}
