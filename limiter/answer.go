package limiter

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// DecidedBy says how a check was decided.
type DecidedBy uint8

// The ways to decide a check, weakest first. A check decided in several ways reports the weakest.
const (
	ByFallback DecidedBy = iota // here, cut off from owner and standby
	ByStandby                   // by the standby, in place of an owner that can't decide
	ByForward                   // by the owner, on another node
	ByLease                     // here, from a lease
	ByOwner                     // here: this node owns the subject, or the rule is rules.Local
	ByList                      // by the allow or deny list
	ByNone                      // no rule applied
)

var decidedByNames = [...]string{"fallback", "standby", "forward", "lease", "owner", "list", "none"}

// String returns the API's word for d.
func (d DecidedBy) String() string { return decidedByNames[d] }

// Answer is the outcome of a check. Callers reuse Answers; the slices are valid
// until the Answer's next check.
type Answer struct {
	Allowed      bool
	Counted      bool  // a limit refused, and the cost was taken all the same: the check only counts there
	IsAtMost     bool  // the check asked for at most its cost, and took Granted
	Granted      int64 // 0 if the check was refused
	DecidedBy    DecidedBy
	RulesVersion int64
	Set          *rules.Set // the rules that decided the check
	Now          algorithms.Instant

	// Limits has an entry for each limit of the check, in document order, including shadow limits.
	Limits []LimitAnswer
	// TightestIndex indexes the limit that describes the answer: the refusing limit
	// with the longest RetryAfter or, if none refused, the limit with the least
	// remaining relative to its capacity. It is −1 if there is none.
	TightestIndex int

	queuePlace *QueuePlace
	scratch    scratch
}

// Denied reports whether the deny list or the default refused the check, rather than a limit.
func (a *Answer) Denied() bool { return !a.Allowed && a.DecidedBy >= ByList }

// Delay returns how long the caller must wait before it proceeds with an
// allowed check: the longest delay of its limits. Shadow rules do not delay.
func (a *Answer) Delay() (longest time.Duration) {
	if !a.Allowed {
		return 0
	}
	for i := range a.Limits {
		if la := &a.Limits[i]; !la.Rule.Shadow {
			longest = max(longest, la.Delay)
		}
	}
	return longest
}

// LimitAnswer is one limit's part of an answer.
type LimitAnswer struct {
	Rule  *rules.Rule
	Limit *rules.Limit
	algorithms.Decision
	// NoRoom means that the owner had no room: for the counter, because the table
	// is full of subjects that are being refused, or for another slot.
	NoRoom bool
	// Blocked means that the subject is blocked in the rule, by a refusal of this
	// check or an earlier one, or by hand. All limits of the rule refuse until the
	// block ends.
	Blocked bool
	// ByHand means that an entry beside the rules blocks the subject.
	ByHand      bool
	byNodeShare bool       // decided within this node's share, without the owner
	shortShare  shortShare // whose share refused
	// isRegionIsolated means that a region's share has refused, and that this node
	// reaches no other region.
	isRegionIsolated bool
	SubjectIndex     int32 // index in Query.Subjects; 0 if there are none
	Cost             int64 // of the check in the limit's unit
}

// share returns the limit's capacity where the check was decided. If regions
// divide the limit, this is the region's share, plus what the region has
// borrowed, minus what it has lent.
func (la *LimitAnswer) share() int64 { return max(0, la.Limit.Capacity()+la.NetBorrowed) }

// headroom returns what the limit has left, in tenths of its capacity, rounded
// up. It is 0 if the capacity is 0: a region may have no share.
func (la *LimitAnswer) headroom() int64 {
	capacity := la.Limit.Capacity() // at most 2^53, so 64 bits suffice
	tenfold := 10 * min(la.Remaining, capacity)
	if tenfold <= 9*capacity {
		return (tenfold + max(0, capacity-1)) / max(1, capacity)
	}
	return 10
}

// IndexInOrder returns the index in Limits of the n-th limit in document order.
// The limits of an inline subject are in the order of the call.
func (a *Answer) IndexInOrder(n int) int {
	if !a.Limits[n].Rule.Inline {
		return n
	}

	first := 0
	for i := range a.scratch.match.Hits {
		next := min(first+len(a.scratch.match.Hits[i].Limits), len(a.Limits))
		if n < next {
			return first + max(0,
				slices.IndexFunc(a.Limits[first:next],
					func(la LimitAnswer) bool { return la.Limit.CallIndex == n-first }))
		}
		first = next
	}

	return n
}

// Tighter reports whether la binds the caller more than b does. A refusal is
// tighter than an admission. Of two refusals, the one with the longer RetryAfter
// is tighter; of two admissions, the one with less remaining relative to its
// capacity.
func (la *LimitAnswer) Tighter(b *LimitAnswer) bool {
	switch {
	case la.Allowed != b.Allowed:
		return b.Allowed
	case !la.Allowed:
		// The comparison is unsigned, so that Never (−1) is the longest.
		return uint64(la.RetryAfter) > uint64(b.RetryAfter)
	}

	return la.hasLessLeft(b)
}

// hasLessLeft reports whether la has a smaller part of its capacity left than b.
func (la *LimitAnswer) hasLessLeft(b *LimitAnswer) bool {
	return algorithms.IsSmallerFraction(la.Remaining, la.Limit.Capacity(), b.Remaining, b.Limit.Capacity())
}

func tightestOf(limits []LimitAnswer) *LimitAnswer {
	tightest := &limits[0]
	for i := range limits {
		if limits[i].Tighter(tightest) {
			tightest = &limits[i]
		}
	}
	return tightest
}

// comesBefore reports whether la, rather than b, describes a check. The tighter
// limit does. Of two equally tight inline limits of one subject, the earlier
// one in the call does; Limits has them in another order.
func (la *LimitAnswer) comesBefore(b *LimitAnswer) bool {
	return la.Tighter(b) || la.Limit.CallIndex < b.Limit.CallIndex && la.Rule == b.Rule && !b.Tighter(la)
}

// set copies op's outcome, field by field: copying the whole struct right after
// it was written would stall the processor.
func (la *LimitAnswer) set(op *counters.Op) {
	decision := &op.Decision
	la.Allowed = decision.Allowed
	la.Remaining = decision.Remaining
	la.Used = decision.Used
	la.NoRoom = op.NoRoom
	la.RetryAfter = decision.RetryAfter
	la.ResetAfter = decision.ResetAfter
	la.MoreAfter = decision.MoreAfter
	la.Delay = decision.Delay
	la.Reduced, la.NetBorrowed = decision.Reduced, decision.NetBorrowed
}

// scratch is a check's working memory. The Answer keeps it for the next check.
type scratch struct {
	match        rules.Match
	ops          []counters.Op
	stripe       uint32       // 1…stripes; 0 before the first check
	active       *activeRules // the rules that decide the check
	matchDecides bool         // matching alone has decided the check
	hasOps       bool         // match has listed the ops
	opsReusable  bool         // another check may reuse the ops if only its hits' subjects differ
	// opsAsListed means that this node decided all ops as the owner, in one Take
	// or Peek, and that they are still as listed. A clusterCheck that is refused
	// does not set it.
	opsAsListed bool
	// soleCounts are the counts of the check's only rule if the check is repeatable,
	// has a single limit, no shadow rule and no bill; nil otherwise.
	soleCounts        *ruleStripe
	awaitsLatency     bool   // the rules' metrics have counted the check, but not yet its latency
	mayBeInTop        bool   // with soleCounts: the list of refused subjects may hold the check's subject
	unsampled         uint32 // checks since one was sampled
	hasLocal          bool   // some rule has `consistency: local`
	hasBlockOps       bool   // ops include blocks, each after the limits of its hit
	countsHandBlocked bool   // the check is a count of a subject that is blocked by hand
	options
	place   *placeRequest // asks for the place of a reservation; nil if none is needed
	failure error         // why the check can't be decided: ErrTooManyReservations or ErrTryAgain
	// lives has, by hit, the life of the counters from which a reservation or a
	// place in a queue takes. In a cluster, the clusterCheck's subjects have it.
	lives        []counters.Life
	clusterCheck *clusterCheck // nil before the first check that needs it
}

// options are what a layer passes to the layers below it, beside the
// query; see "Layers" in the package comment. A plain check has none.
type options struct {
	takesSlots bool // the check is an acquire or a reservation, so limits of slots apply
	// bypassLeases means that the check spends no lease, and that decidePrepared gives it no
	// place in a queue. In a cluster, it is decided as a clusterCheck even if this
	// node owns all of it, which tells what was taken from each subject's counters.
	bypassLeases bool
	isAtMost     bool         // the check takes at most its cost; leases at this node do not count as remaining
	acquiring    *acquisition // of a check that acquires slots; nil for all others
	deadline     time.Time    // the check must be decided by then; zero for the usual deadline
}

// addOptions changes the options until restore is called.
func (a *Answer) addOptions(change func(o *options)) (restore func()) {
	before := a.scratch.options
	change(&a.scratch.options)
	return func() { a.scratch.options = before }
}

// shortShare says whose share of a limit that refuses is too small.
type shortShare uint8

const (
	notShort    shortShare = iota // the whole limit is used up, or something else refuses
	regionShare                   // the region's
	regionBurst                   // the region's, and no loan helps: the cost is above its burst
	nodeShare                     // this node's, which decides without the owner
)
