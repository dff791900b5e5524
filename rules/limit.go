package rules

import (
	"sync/atomic"

	"github.com/rlnode/rlnode/algorithms"
)

// Limit is a compiled limit of a rule, whether the rule's own, its tier's or an override's.
type Limit struct {
	algorithms.Limit
	Name   string // its own, or what [document.Document.LimitName] makes
	Unit   string
	UnitID int
	Per    string // as written: "1m", "day"
	// ID is a hash of the unit, the algorithm and the window (for calendar windows,
	// with the zone). Together with the subject's hash it identifies the counter.
	// Amounts and names are not part of it, so they can change without losing what
	// was used.
	ID uint64
	// WholeCapacity and WholeAmount are the capacity and the Amount of the
	// undivided limit if this is a region's share; otherwise 0.
	WholeCapacity, WholeAmount int64
	// BorrowTarget is the amount that a region tries to keep available by
	// borrowing. It is the region's share, or what the version in force gives the
	// region if that is more, or an equal part if both are 0. Only a fixed window
	// that is divided among regions has one; it is 0 for other limits.
	BorrowTarget int64
	// Source identifies what gives a limit of slots: the rule, a tier, a listed
	// subject or an entry. Set.SlotTTL finds the present ttl by it. It means
	// nothing for limits that came with a call.
	Source uint64
	// Unlimited means that there is no limit in Unit, which is empty for all units.
	// Only Name and Unit are set.
	Unlimited bool
	// CallIndex is the index of an inline limit in its call, whose order is lost
	// when inline limits are sorted by ID.
	CallIndex int

	inWindow     *windowDivision // how regions divide it in the current window; nil: as the version in force says
	undivided    *Limit          // the limit of which this is a share; nil if it is no share
	configured   *Limit          // see Configured; nil if it is this one
	shareCache   *shareCache     // only for the first limit of each list of a global rule; else nil
	loweredCache *loweredCache   // only for the first limit of each list of a rule with `adaptive`; else nil
}

// RefusesAll reports whether l is configured to be 0: nothing but a cost of 0
// is allowed, whatever region or node decides.
func (l *Limit) RefusesAll() bool { return l.Configured().Capacity() == 0 && !l.Unlimited }

// Configured returns the limit as the document or the call gives it: neither
// divided among regions nor lowered by a step.
func (l *Limit) Configured() *Limit {
	if l.configured != nil {
		return l.configured
	}
	return l
}

// IsLowered reports whether a step of an adaptive rule lowers l.
func (l *Limit) IsLowered() bool { return l.UndividedCapacity() < l.Configured().Capacity() }

// UndividedCapacity returns the capacity that answers show: that of all regions
// together if regions divide the limit.
func (l *Limit) UndividedCapacity() int64 {
	if l.WholeCapacity > 0 {
		return l.WholeCapacity
	}
	return l.Capacity()
}

// UndividedAmount returns the amount per window that answers show: that of all
// regions together if regions divide the limit.
func (l *Limit) UndividedAmount() int64 {
	if l.WholeCapacity > 0 {
		return l.WholeAmount
	}
	return l.Amount
}

// A limit of `algorithm: concurrency` says how many slots may be held at once.
// Its window is the ttl of a slot.

// HasSlots reports whether one of limits is of slots.
func HasSlots(limits []*Limit) bool {
	for _, l := range limits {
		if l.Kind == algorithms.Concurrency && !l.Unlimited {
			return true
		}
	}
	return false
}

// An unlimited limit says that there is no limit. It has no counter, so no
// node, region or partition matters to it. A list of limits has its unlimited
// ones last, and Match reports them apart from the others.

// unlimitedLast returns the key by which limits are sorted: 1 if l is
// unlimited, else 0.
func unlimitedLast(l *Limit) int {
	if l.Unlimited {
		return 1
	}
	return 0
}

// countLimited returns the number of limits before the unlimited ones, which
// come last.
func countLimited(limits []*Limit) int {
	n := len(limits)
	for n > 0 && limits[n-1].Unlimited {
		n--
	}
	return n
}

// loweredCache caches limits as lowered by the step in force, so that a check
// allocates nothing. The first limit of each list of a rule with `adaptive` has
// one.
type loweredCache struct{ last atomic.Pointer[lowered] }

type lowered struct {
	step   int
	limits []*Limit
}

// shareCache caches a region's shares of a list of limits, so that a check
// allocates nothing. The first limit of each list of a global rule has one.
type shareCache struct {
	number   int32 // of the list, in its set; from 1
	lastOnly atomic.Pointer[lastOnlyLimits]
	several  atomic.Pointer[severalLimits]
}

// lastOnlyLimits holds the shares when only the last version counts.
type lastOnlyLimits struct {
	division *division
	limits   []*Limit
}

// severalLimits holds the shares when several versions count.
type severalLimits struct {
	division *division
	lists    []int32 // the list number that each earlier version has for the same subject; 0 for none
	bounders []shareBounder
	phases   []phase // for each limit, at the time for which limits was computed
	limits   []*Limit
}
