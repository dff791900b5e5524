package limiter

import (
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// Adjust adds each of q's costs to what the subject has used. A cost above 0 is a
// penalty, which may exceed what is left and become a debt. A cost below 0 is a
// reward. Costs are in −MaxAmount…MaxAmount and not 0. A cost applies to all
// limits in its unit, or only to the one that q.LimitName names. Blocks stay as
// they are.
//
// With q.Bill, the rule's bill changes by what [Usage.Applied] returns. In a unit
// without a limit, that is the whole cost.
//
// Adjust returns the usage afterwards, with what was applied. If q.RequestID is
// repeated within a minute, Adjust changes nothing and returns the first result.
// The error wraps ErrNoLimitInUnit, ErrUnknownLimit, ErrNotBilled, ErrNoRoom,
// ErrNoOwner, ErrRequestIDReused, ErrTooManyRequestIDs or one of Locate's.
func (l *Limiter) Adjust(q *Query) (*Usage, error) {
	u, err := l.Locate(q)
	if err != nil {
		return nil, err
	}
	if err := u.selectLimit(q); err != nil {
		return nil, err
	}

	costs := q.subjectCosts()
	for _, cost := range costs {
		switch {
		case slices.ContainsFunc(u.Limits, func(lu LimitUsage) bool {
			// Slots are released, not adjusted.
			return lu.Limit.Unit == cost.Unit && lu.Limit.Kind != algorithms.Concurrency
		}):
		case q.Bill && u.onlyBills(cost.Unit):
			u.billedOnly = append(u.billedOnly, cost)
		default:
			return nil, fmt.Errorf("adjust %q: %w %q", u.Rule.Name, ErrNoLimitInUnit, cost.Unit)
		}
	}

	ch := newChange(verbAdjust, u, costs)
	if q.Bill {
		if !u.Rule.CountsMonthly {
			return nil, fmt.Errorf(`bill must be false: rule %q is %w (it lacks "usage: monthly")`,
				u.Rule.Name, ErrNotBilled)
		}
		ch.bill = billOf(u)
		if len(ch.ops) == 0 {
			ch.ops = append(ch.ops, nothingOf(u))
		}
	}

	ch.ticket = ticketOf(q.RequestID, hashChange(ch, u, costs), checkTimeout)
	u.Adjusted = true
	return u, l.applyChange(ch, u)
}

// onlyBills reports whether u's rule bills a unit in which it has no limit.
func (u *Usage) onlyBills(unit string) bool {
	covers := func(limit *rules.Limit) bool { return limit.Unit == unit || limit.Unit == "" }
	return u.limitName == "" && u.Rule.Bills(unit) && slices.ContainsFunc(u.Unlimited, covers)
}

// nothingOf returns an op that changes nothing, for a change of a subject
// without limits. Its key leads the change to the subject's owner, which
// remembers the request, so that the bill is corrected once.
func nothingOf(u *Usage) counters.Op {
	limit := &rules.Limit{Limit: algorithms.Limit{Kind: algorithms.FixedWindow, Window: algorithms.MinWindow}}
	return counters.Op{Key: counterKey(&rules.Hit{Rule: u.Rule, Subject: u.Hash}, limit), Limit: &limit.Limit}
}

// GiveBack gives costs (each 1…MaxAmount) back to the only subject in q.Subjects,
// but no more than the subject has used. It returns the usage afterwards. Within
// 20 ms, the owner tells all nodes to forget that it refused the subject; leases
// stay. The error is one of Adjust's.
func (l *Limiter) GiveBack(q *Query) (*Usage, error) {
	u, err := l.Locate(q)
	if err != nil {
		return nil, err
	}
	costs := slices.Clone(q.Subjects[0].Costs)
	for i := range costs {
		costs[i].Cost = -costs[i].Cost
	}
	ch := newChange(verbGiveBack, u, costs)
	ch.ticket = ticketOf("", hashChange(ch, u, costs), checkTimeout)
	return u, l.applyChange(ch, u)
}

// Reset makes a subject's counters fresh and lifts its block. With q.LimitName,
// it makes only the counter of that limit fresh, and lifts no block. If an
// inline subject comes with limits, Reset makes only their counters fresh. With
// q.HolderID, it only releases that slot. Reset returns the usage afterwards.
// q.RequestID is as for Adjust. The error wraps ErrUnknownLimit, ErrUnknownSlot,
// ErrNoRoom, ErrNoOwner, ErrRequestIDReused, ErrTooManyRequestIDs or one of
// Locate's.
func (l *Limiter) Reset(q *Query) (*Usage, error) {
	u, err := l.Locate(q)
	if err != nil {
		return nil, err
	}
	if err := u.selectLimit(q); err != nil {
		return nil, err
	}

	if q.HolderID != "" {
		if err := l.releaseByShortID(u, q.HolderID); err != nil {
			return nil, err
		}
		return l.Usage(q)
	}

	ch := newChange(verbReset, u, nil)
	if u.limitName != "" {
		ch.verb = verbResetLimits
	}
	if u.coversAllCounters() {
		ch = &change{verb: verbClear, inlineSubject: u.Hash.Hi}
	}

	ch.ticket = ticketOf(q.RequestID, hashChange(ch, u, nil), checkTimeout)
	if err := l.applyChange(ch, u); err != nil {
		return nil, err
	}

	l.askRegions(u)
	return u, nil
}

// Unblock lifts the block that a refusal began. What is used stays as it is, and
// so does a block by hand, which is an entry. Unblock returns the usage
// afterwards. The error is one of Reset's.
func (l *Limiter) Unblock(q *Query) (*Usage, error) {
	u, err := l.Locate(q)
	if err != nil {
		return nil, err
	}

	if len(u.blocks) == 0 || len(u.Limits) == 0 {
		return l.Usage(q)
	}

	ch := newChange(verbUnblock, u, nil)
	ch.ticket = ticketOf(q.RequestID, hashChange(ch, u, nil), checkTimeout)
	if err := l.applyChange(ch, u); err != nil {
		return nil, err
	}

	l.askRegions(u)
	return u, nil
}

// billOf returns where a change of u's limits is billed.
func billOf(u *Usage) *billCorrection {
	bi := &billCorrection{hashLo: u.Hash.Lo, rule: u.Rule.Name, key: u.Key, billedOnly: u.billedOnly}
	for i := range u.Limits {
		bi.units = append(bi.units, u.Limits[i].Limit.Unit)
	}
	return bi
}

// Feedback counts a refusal that was wrong, on this node. It returns the
// subject, and how many wrong refusals of the rule this process has counted. The
// error wraps ErrUnknownRule or ErrKey.
func (l *Limiter) Feedback(rule string, key []string) (*Usage, int64, error) {
	u, err := l.Locate(&Query{Rule: rule, Key: key})
	if err != nil {
		return nil, 0, err
	}
	active := l.active.Load()
	found := active.set.Rule(rule)
	if found == nil {
		return nil, 0, fmt.Errorf("%w %q", ErrUnknownRule, rule) // the rule has just been removed
	}
	return u, active.stats[found.Index].falsePositives.Add(1), nil
}
