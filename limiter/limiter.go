package limiter

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// Limiter decides checks. All methods may be called concurrently.
type Limiter struct {
	table         *counters.Table
	clock         *Clock
	inForce       atomic.Pointer[activeRules]
	tops          [topKinds]*top
	near          *near
	exactLeft     atomic.Int32  // checks of this second that are still sampled without exception
	answersUsed   atomic.Uint32 // number of Answers that have been used; see stripes
	membership    *membership   // nil for a standalone node
	boot          uint64        // ClusterConfig.Boot; 0 for a standalone node
	startedAt     time.Time
	activityRound cachedRound[NodeActivity]
	vitals        func() Vitals // nil: not known
	steps         steps
	unknownRules  atomic.Int64 // checks and other calls that named a rule that does not exist
	undeclared    atomic.Int64 // attributes of checks that the document does not declare
	meter         Meter        // counts admitted cost for billing; may be nil
	refusals      *refusalLog  // nil if nobody follows them
	waitingRoom   waitingRoom

	reservations reservations
	requests     requests
	// ratesChangedAt is the steady time at which the rates of this node's limits may last have changed: by new rules, by another
	// step, or because another node decided by other rules.
	ratesChangedAt atomic.Int64

	mu          sync.Mutex // serialises SetRules and UpdateSteps; guards loadSteps, loadLeft, notHonoured and entries
	loadSteps   func(*rules.Set) []int
	loadLeft    func(source string) time.Duration // see FollowLoads; may be nil
	notHonoured rules.NotHonoured
	entries     *entries.State // guarded by mu
	wallClock   func() int64   // the wall time in Unix ms; nil without a clock
}

// activeRules is a version of the rules with the metrics of its rules.
type activeRules struct {
	set        *rules.Set
	stats      []*ruleStats // by Rule.Index
	overall    *ruleStats   // counts each check once, however many rules applied
	hasMonthly bool         // some rule has `usage: monthly`
	// hasGlobal is true if regions divide some limits of the set. recordedVersion is the latest version that the primary has
	// recorded as honoured by all regions; zero if there is none.
	hasGlobal       bool
	recordedVersion int64
	// steps holds, by Rule.Index, the step in force plus one; zero if there is none. It is nil if no rule is adaptive.
	steps    []atomic.Int32
	loadLeft func(source string) time.Duration // see FollowLoads; may be nil

	slots *slotIndex
}

// New returns a limiter over table for a standalone node; for a cluster see NewInCluster. It can't decide checks before
// SetRules. If clock is nil, callers may only use the methods that take the time as an argument.
func New(table *counters.Table, clock *Clock) *Limiter {
	l := &Limiter{table: table, clock: clock, near: newNear(), entries: entries.New(), startedAt: time.Now()}
	l.exactLeft.Store(exactSamples)

	for by := range l.tops {
		l.tops[by] = newTop()
	}

	l.reservations.limiter = l
	if clock != nil {
		l.wallClock = l.wallMillis
	}

	l.requests.deciding = make(map[notes.Key]chan struct{})
	_, _ = rand.Read(l.reservations.processKey[:]) // never fails
	l.noteOtherRates()                             // what they were before is not known
	return l
}

// SetRules puts set in force. Checks in flight finish with the rules they began with. A rule keeps its metrics as long as it
// keeps its name.
func (l *Limiter) SetRules(set *rules.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()

	kept := make(map[string]*ruleStats)
	set = l.notHonoured.Stamp(set, l.authorityAt())
	if l.entries.Version() > 0 { // otherwise the set keeps its own, as in a replay
		var like *rules.Set
		if old := l.inForce.Load(); old != nil {
			like = old.set
		}
		set = set.WithEntries(l.entries, like)
	}

	next := &activeRules{set: set, slots: &slotIndex{}, overall: &ruleStats{}, hasMonthly: slices.ContainsFunc(set.Rules, func(r *rules.Rule) bool { return r.CountsMonthly })}
	next.recordShares()

	if old := l.inForce.Load(); old != nil {
		next.overall = old.overall
		for i, name := range old.set.Names() {
			kept[name] = old.stats[i]
		}
	}

	for _, name := range set.Names() {
		s := kept[name]
		if s == nil {
			s = &ruleStats{}
		}
		delete(kept, name)
		next.stats = append(next.stats, s)
	}

	if slices.ContainsFunc(set.Rules, func(r *rules.Rule) bool { return r.Adaptive != nil }) {
		next.steps = make([]atomic.Int32, len(set.Rules))
	}

	for _, s := range kept {
		next.overall.absorb(s)
	}

	next.adapt(l.loadSteps)
	next.loadLeft = l.loadLeft
	before := l.inForce.Swap(next)
	if before != nil {
		l.noteOtherRates()
	}
}

// noteOtherRates records that the rates of limits may be others from now on.
func (l *Limiter) noteOtherRates() {
	if l.clock != nil {
		l.ratesChangedAt.Store(l.clock.Now().Steady)
	}
}

// authorityAt returns a wall time (Unix nanoseconds) at which this node had authority and still used the rules in force, or
// zero if it has no authority now.
func (l *Limiter) authorityAt() int64 {
	if l.membership == nil {
		return 0
	}
	now := l.clock.Now().Wall
	if !l.membership.Authority() {
		return 0
	}
	return now
}

// Rules returns the rules in force, or nil before the first SetRules.
func (l *Limiter) Rules() *rules.Set {
	if active := l.inForce.Load(); active != nil {
		return active.set
	}
	return nil
}

// Clock returns the limiter's clock.
func (l *Limiter) Clock() *Clock { return l.clock }

// Check decides q now. If it fails, the answer is invalid; the error wraps ErrUnknownRule, ErrKey, ErrInline, ErrNamespace,
// ErrAtMost, ErrLevelTooLow or ErrRulesChanged. A q with a RequestID must count; it is decided once within a minute, and the error may
// also be one of Reserve's.
func (l *Limiter) Check(q *Query, a *Answer) error {
	switch {
	case q.RequestID != "":
		_, err := l.decideOnce(q, 0, a)
		return err
	case q.AtMost:
		return l.checkAtMost(q, a)
	}
	if err := l.match(0, q, a); err != nil {
		return err
	}
	return l.decide(l.clock.Now(), q, a)
}

// CheckAt decides q as of now.
func (l *Limiter) CheckAt(now algorithms.Instant, q *Query, a *Answer) error {
	if err := l.match(now.Wall, q, a); err != nil {
		return err
	}
	return l.decide(now, q, a)
}

// decide decides a matched check.
func (l *Limiter) decide(now algorithms.Instant, q *Query, a *Answer) error {
	if err := l.list(now, q, a); err != nil {
		return err
	}

	if !a.scratch.matchDecides {
		if err := l.resolve(q, a); err != nil {
			return err
		}
		if !a.Allowed && q.AwaitsLoan {
			if err := l.resolveWithLoan(now.Steady, q, a, func() error { return l.resolve(q, a) }); err != nil {
				return err
			}
		}
	}

	l.count(q, a)
	return nil
}

// resolve decides a prepared check, and waits for other nodes if need be. It does not count it.
func (l *Limiter) resolve(q *Query, a *Answer) error {
	if q.Waits && !a.scratch.reserving && a.mayDelay() {
		return l.resolveInQueue(q, a)
	}
	if l.start(q, a) {
		return a.scratch.failure
	}
	return l.finish(q, a)
}

// prepare matches q against the rules in force and lists the counters to ask. If there are none, it decides the check itself,
// and done is true.
func (l *Limiter) prepare(now algorithms.Instant, q *Query, a *Answer) (done bool, err error) {
	if err := l.match(now.Wall, q, a); err != nil {
		return false, err
	}
	return a.scratch.matchDecides, l.list(now, q, a)
}

// match matches q against the rules in force. If no counters are needed, it decides the check itself. Otherwise it prefetches
// the counters. wall is the time of the check in Unix nanoseconds; 0: now.
func (l *Limiter) match(wall int64, q *Query, a *Answer) error {
	active := l.inForce.Load()
	repeatable := a.countRepeatable(active, q)
	a.begin(active)
	m := &a.scratch.match
	m.Intact = repeatable > 0
	m.Now = wall / int64(time.Millisecond)
	m.Clock = l.wallClock

	// Subjects bring their limits, or a tree of descriptors has found them.
	if len(q.Subjects) > 0 {
		if q.Matched != nil && !q.Matched.SameRules(active.set) {
			return ErrRulesChanged
		}
		if err := a.matchSubjects(q); err != nil {
			return err
		}
		if !l.refuseByZero(q, a) {
			l.prefetch(m)
		}
		return nil
	}

	var rule *rules.Rule
	if q.Rule != "" || q.ByKey {
		var err error
		if rule, err = l.findRule(active, q.Rule); err != nil {
			return err
		}
	}
	if !q.ByKey {
		active.set.Match(q.Attributes, rule, m)
		if m.Undeclared > 0 {
			l.undeclared.Add(int64(m.Undeclared))
		}
	} else if err := active.set.MatchKey(rule, q.Key, m); err != nil {
		return err
	}

	// Most checks of a caller find what its last one found. Others may need no counter at all.
	switch {
	case m.Again:
		a.listAgain(repeatable)
		if l.table.PrefetchPays() {
			for i := range a.scratch.ops {
				l.table.Prefetch(a.scratch.ops[i].Key)
			}
		}
		l.prepareCount(a)
		return nil
	case m.List != rules.Unlisted:
		a.decideByMatching(m.List == rules.Allowed, ByList)
		return nil
	case len(m.Hits)+len(m.Unlimited) == 0:
		a.decideByMatching(!active.set.DefaultDeny, ByNone)
		return nil
	case len(m.Hits) == 0:
		a.decideByMatching(true, ByOwner)
		return nil
	case active.set.HasZero() && l.refuseByZero(q, a):
		return nil
	}

	if active.set.HasBlocks() && l.refuseBlocked(q, a) {
		return nil
	}
	l.prefetch(m)
	return nil
}

// decideByMatching records that no counter is needed to decide the check.
func (a *Answer) decideByMatching(allowed bool, by DecidedBy) {
	a.Allowed, a.DecidedBy = allowed, by
	a.scratch.matchDecides, a.scratch.soleCounts = true, nil
}

// findRule returns the rule that a caller names.
func (l *Limiter) findRule(active *activeRules, name string) (*rules.Rule, error) {
	r := active.set.Rule(name)
	if r == nil {
		l.unknownRules.Add(1)
		return nil, fmt.Errorf("%w %q", ErrUnknownRule, name)
	}
	return r, nil
}

// prefetch begins to load the counters of m, if that saves time.
func (l *Limiter) prefetch(m *rules.Match) {
	if !l.table.PrefetchPays() {
		return
	}
	for i := range m.Hits {
		h := &m.Hits[i]
		for _, limit := range h.Limits {
			l.table.Prefetch(counterKey(h, limit))
		}
	}
}

// countRepeatable returns how many ops a's last check had, if they also suit q, but for their subjects, provided that q has the
// same hits: the usual case for a caller's next check. Otherwise it returns 0. A check that other nodes took part in may have lost
// some of its ops.
func (a *Answer) countRepeatable(active *activeRules, q *Query) int {
	if s := &a.scratch; s.active == active && s.decidedHere && s.isRepeatable && isUsual(q) {
		return len(s.ops)
	}
	return 0
}

// isUsual reports whether q is a check of attributes or a key that gives no costs.
func isUsual(q *Query) bool {
	return q.Mode == counters.CheckMode && len(q.Costs) == 0 && len(q.Subjects) == 0
}

// listAgain is list for hits that differ from those of the last check, which had n ops, in their subjects only.
func (a *Answer) listAgain(n int) {
	s := &a.scratch
	s.ops = s.ops[:n]
	a.Limits = a.Limits[:n]
	s.isListed = true

	i := 0
	for j := range s.match.Hits {
		h := &s.match.Hits[j]
		for _, limit := range h.Limits {
			op := &s.ops[i]
			op.Key = counterKey(h, limit)
			op.Decision = algorithms.Decision{}
			op.Full = false
			i++
		}
	}
}

// list lists the counters that a matched check debits as of now, unless match has listed them or decided the check.
func (l *Limiter) list(now algorithms.Instant, q *Query, a *Answer) error {
	a.Now = now
	if a.scratch.matchDecides || a.scratch.isListed {
		return nil
	}

	hasOtherLimits := len(q.Subjects) == 0 && (a.scratch.active.hasGlobal || a.scratch.active.steps != nil)
	if hasOtherLimits {
		a.scratch.active.adjustLimits(&a.scratch.match, now.Wall)
	}

	hits := a.scratch.match.Hits
	costs, mode := q.Costs, q.Mode
	a.scratch.hasLocal = false

	for i := range hits {
		h := &hits[i]
		subject := 0
		if len(q.Subjects) > 0 {
			costs = q.Subjects[i].Costs
			mode = q.Subjects[i].Mode
			subject = i
		}

		if err := a.slotsNeedAcquire(h, mode); err != nil {
			return err
		}

		a.scratch.hasLocal = a.scratch.hasLocal || h.Rule.Consistency == rules.Local

		for _, limit := range h.Limits {
			cost := costOf(costs, h, limit)
			if limit.Kind == algorithms.Concurrency && a.scratch.mayHold {
				cost = cmp.Or(q.Slots, cost, 1)
			}

			op := a.addOp(h.Rule, limit, subject, cost)
			op.Key, op.Limit = counterKey(h, limit), &limit.Limit
			op.Shadow, op.Mode, op.Lends = h.Rule.Shadow, mode, isLoanable(h.Rule, limit)

			if limit.RefusesAll() && (mode == counters.CountMode || h.Rule.Shadow) {
				op.Cost = 0 // see concludeZero
			}
		}

		if h.Rule.Blocks != nil {
			a.addBlocks(h, mode)
		}
	}

	a.scratch.isRepeatable = isUsual(q) && !hasOtherLimits && !a.scratch.mayHold && !a.scratch.hasBlocks && len(a.scratch.match.Unlimited) == 0
	a.scratch.soleCounts = nil

	if active := a.scratch.active; a.scratch.isRepeatable && len(a.scratch.ops) == 1 && !hits[0].Rule.Shadow && !active.hasMonthly {
		a.scratch.soleCounts = &active.stats[hits[0].Rule.Index].stripe[l.stripeOf(a)]
		l.prepareCount(a)
	}

	if len(q.Subjects) > 0 {
		if err := a.requireDistinctKeys(); err != nil {
			return err
		}
	} else if q.Mode != counters.CountMode && !a.scratch.mayHold {
		return nil
	}

	return l.requireLevel(q, a)
}

// modesLevel is the feature level at which all nodes support the modes of ops, and windows that begin with the first hit.
const modesLevel = 2

// requireLevel returns an error if the check needs something that not all nodes of the cluster support.
func (l *Limiter) requireLevel(q *Query, a *Answer) error {
	if l.membership == nil || l.membership.Level == nil || l.membership.Level() >= modesLevel {
		return nil
	}
	for i := range a.scratch.ops {
		op := &a.scratch.ops[i]
		if op.Limit.Kind == algorithms.FirstWindow || op.Limit.Kind == algorithms.Concurrency || op.Mode != counters.CheckMode && !q.Peeks() {
			return fmt.Errorf("%w: mode count, different modes in one check, windows from the first hit and slots need level %d, but the cluster is at %d",
				ErrLevelTooLow, modesLevel, l.membership.Level())
		}
	}
	return nil
}

// start decides a prepared check if it need not wait for another node, and reports whether it did. Otherwise it sends the
// questions and leaves it to finish to wait for the replies.
func (l *Limiter) start(q *Query, a *Answer) (done bool) {
	s, unauthorized := &a.scratch, false
	if l.mayDecideHere(a) {
		verdict, authorized := l.takeAsOwner(a.Now, s.ops, q.Peeks(), s.holding)
		if verdict != counters.Shut {
			a.recordDecidedHere(verdict)
			a.conclude(l)
			return true
		}
		unauthorized = !authorized
	}

	if s.cluster == nil {
		s.cluster = &clusterCheck{}
	}

	c := s.cluster
	c.limiter, c.answer, c.active, c.now, c.peek, c.peeksAreLooks, c.ignoreNewer = l, a, s.active, a.Now, q.Peeks(), q.PeeksAreLooks, false
	c.anyVersion = len(q.Subjects) > 0
	c.deadline, c.frozenDeadline = time.Time{}, time.Time{}
	c.begin(unauthorized)

	return len(c.asks) == 0 && c.fold()
}

// mayDecideHere reports whether this node, if it has authority, owns all counters of a prepared check.
func (l *Limiter) mayDecideHere(a *Answer) bool {
	s := &a.scratch
	return l.membership == nil || !s.hasLocal && !s.reserving && l.table.AllOpen(s.ops)
}

// recordDecidedHere records that this node decided the whole check as the owner.
func (a *Answer) recordDecidedHere(v counters.Verdict) {
	a.Allowed = v == counters.Admitted
	a.DecidedBy = ByOwner
	a.scratch.decidedHere = true

	// The table may have seen a later reading of the clock than the one that the check began with, and decided as of that. One Take
	// moves all ops to the same steady time, so the first one tells it. Its At.Wall may be another node's clock; so this node's wall
	// time moves by as much as the steady time did.
	if late := a.scratch.ops[0].At.Steady - a.Now.Steady; late > 0 {
		a.Now.Steady += late
		a.Now.Wall += late
	}
}

// takeAsOwner decides ops from this node's counters, as their owner. It checks authority before and after. Without authority
// the verdict is Shut, and what was debited stays debited: this node may no longer own the counters. h holds the slots that ops
// acquire, if any.
func (l *Limiter) takeAsOwner(now algorithms.Instant, ops []counters.Op, peek bool, h *holding) (verdict counters.Verdict, authorized bool) {
	m := l.membership
	if m != nil && !m.Authority() {
		return counters.Shut, false
	}

	began := m.recorderClock()

	verdict = l.takeFromTable(now, ops, peek, h)

	switch {
	case m == nil:
	case !m.Authority():
		return counters.Shut, false
	case verdict != counters.Shut:
		m.recordDecision(ByOwner, ops, began, 1)
	}

	return verdict, true
}

// takeFromTable decides ops from this node's counters, whether or not it has authority. h holds the slots that ops acquire, if any.
func (l *Limiter) takeFromTable(now algorithms.Instant, ops []counters.Op, peek bool, h *holding) counters.Verdict {
	switch {
	case peek:
		return l.table.Peek(now, ops)
	case h != nil:
		return l.table.TakeAndHold(now, ops, h.holder())
	}
	return l.table.Take(now, ops)
}

// finish completes a check that start left undecided. It waits for replies, and asks again, until the check is decided. It does not
// count it.
func (l *Limiter) finish(q *Query, a *Answer) error {
	c := a.scratch.cluster
	for {
		c.collectReplies()

		// An owner has newer rules. Take back what was taken, and decide the check again by those.
		if c.newerRules > 0 && !c.ignoreNewer {
			c.rollBack()
			l.catchUp(l.membership.ctx, 0, c.newerRules)
			c.now, c.ignoreNewer = l.clock.Now(), true
			if done, err := l.prepare(c.now, q, a); err != nil {
				return err
			} else if done {
				break // by the newer rules, no counter is needed
			}

			c.active = a.scratch.active
			c.begin(false)
			continue
		}

		if c.fold() {
			break
		}

		c.advance()
	}

	return a.scratch.failure
}

// matchSubjects finds the limits of q's subjects.
func (a *Answer) matchSubjects(q *Query) error {
	for i := range q.Subjects {
		s, m := &q.Subjects[i], &a.scratch.match
		var err error
		if s.Node != nil {
			err = a.Set.MatchEnvoy(s.Node, s.Entries, s.Shadow, i == 0, m)
		} else {
			err = a.Set.MatchInline(&s.InlineSubject, i == 0, m)
		}

		if err != nil {
			if len(q.Subjects) > 1 {
				err = &SubjectError{Subject: i, Err: err}
			}
			return err
		}
	}

	for i := range a.scratch.match.Hits {
		if h := &a.scratch.match.Hits[i]; h.Rule.Inline {
			h.Subject.Lo = counters.InlineCounter(h.Subject.Lo)
		}
	}

	return nil
}

// requireDistinctKeys returns an error if two of the check's counters have the same key.
func (a *Answer) requireDistinctKeys() error {
	for i := range a.scratch.ops {
		for j := range i {
			if a.scratch.ops[i].Key == a.scratch.ops[j].Key { // the hashes of their IDs collide: one chance in 2^32
				return fmt.Errorf("%w: two of the windows have the same hash; change one of them slightly", ErrInline)
			}
		}
	}
	return nil
}

func counterKey(h *rules.Hit, limit *rules.Limit) counters.Key {
	k := counters.Key{Subject: h.Subject.Hi, Counter: h.Subject.Lo ^ limit.ID}
	if h.Rule.Inline {
		k.Counter = counters.InlineCounter(k.Counter)
	}
	return k
}

// begin clears a for a new check.
func (a *Answer) begin(active *activeRules) {
	a.Set, a.RulesVersion = active.set, active.set.Version
	a.scratch.active = active
	a.scratch.hasBlocks = false
	a.scratch.decidedHere = false
	a.scratch.matchDecides = false
	a.scratch.isListed = false
	a.scratch.byHand, a.scratch.failure = false, nil
	a.Limits = a.Limits[:0]
	a.TightestIndex = -1
	a.Counted = false
	a.IsAtMost, a.Granted = false, 0
	a.queuePlace = nil
	a.scratch.ops = a.scratch.ops[:0]
}

// addOp appends a limit to the check and returns its op for the caller to fill in. It writes both in place, because copying
// these large structs would cost more than filling them in. subject is an index in Query.Subjects.
func (a *Answer) addOp(rule *rules.Rule, limit *rules.Limit, subject int, cost int64) *counters.Op {
	s := &a.scratch
	if len(s.ops) == cap(s.ops) {
		s.ops = slices.Grow(s.ops, 1)
	}

	s.ops = s.ops[:len(s.ops)+1]
	op := &s.ops[len(s.ops)-1]
	op.Cost = cost
	op.Block = false
	op.Lends = false
	op.Full = false
	op.Decision = algorithms.Decision{}

	if len(a.Limits) == cap(a.Limits) {
		a.Limits = slices.Grow(a.Limits, 1)
	}

	a.Limits = a.Limits[:len(a.Limits)+1]
	la := &a.Limits[len(a.Limits)-1]

	// conclude writes the rest
	la.Rule = rule
	la.Limit = limit
	la.Subject = int32(subject)
	la.Cost = cost
	la.ByHand = false
	la.Blocked, la.alone = false, false
	la.lack, la.isCutOff = lackNothing, false

	return op
}

// costOf returns the cost in the limit's unit.
func costOf(costs []UnitCost, h *rules.Hit, limit *rules.Limit) int64 {
	for i := range costs {
		if costs[i].Unit == limit.Unit {
			return costs[i].Cost
		}
	}
	switch {
	case limit.UnitID == h.Rule.CostUnitID:
		return h.Cost
	case limit.UnitID == 0:
		return 1 // the rule's cost table is about another unit
	}
	return 0
}

// conclude copies the counters' decisions into the answer and finds the tightest limit. If an admitted check counted a cost
// that a limit refused, the answer is not allowed.
func (a *Answer) conclude(l *Limiter) {
	if a.scratch.hasBlocks {
		a.foldBlocks()
	}
	if a.scratch.byHand {
		a.foldHandBlocks()
	}

	limits, ops := a.Limits, a.scratch.ops[:len(a.Limits)]
	if a.scratch.soleCounts != nil && a.Allowed {
		limits[0].set(&ops[0])
		a.TightestIndex = 0
		return
	}

	a.resolveNever(0, len(limits))

	for i := range limits {
		la, op := &limits[i], &ops[i]
		la.concludeZero(op)
		if la.set(op); !la.Allowed {
			a.concludeRefusal(l, la, op)
		}
		if !la.Rule.Shadow && (a.TightestIndex < 0 || la.comesBefore(&a.Limits[a.TightestIndex])) {
			a.TightestIndex = i
		}
	}
}

// set copies op's outcome, field by field: copying the whole struct right after it was written would stall the processor.
func (la *LimitAnswer) set(op *counters.Op) {
	d := &op.Decision
	la.Allowed = d.Allowed
	la.Remaining = d.Remaining
	la.Used = d.Used
	la.Full = op.Full
	la.RetryAfter = d.RetryAfter
	la.ResetAfter = d.ResetAfter
	la.MoreAfter = d.MoreAfter
	la.Delay = d.Delay
	la.Reduced, la.Loaned = d.Reduced, d.Loaned
}

// concludeRefusal is what conclude does besides for a limit that refuses.
func (a *Answer) concludeRefusal(l *Limiter, la *LimitAnswer, op *counters.Op) {
	l.adviseReturn(a, la, op)
	if a.Allowed && op.Mode == counters.CountMode && !la.Rule.Shadow {
		a.Allowed, a.Counted = false, true
	}
}
