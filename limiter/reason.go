package limiter

import (
	"strconv"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// TightestLimit returns the limit that describes the answer. It returns nil if
// a list or the default decided, or if only shadow limits were evaluated.
func (a *Answer) TightestLimit() *LimitAnswer {
	if a.TightestIndex < 0 || a.DecidedBy >= ByList {
		return nil
	}
	return &a.Limits[a.TightestIndex]
}

// Cause is why a limit refuses a check, in the API's words.
type Cause string

// The causes of a refusal by a limit.
const (
	RateLimited    Cause = "rate-limited"     // the limit is used up
	CostAboveLimit Cause = "cost-above-limit" // the cost exceeds the capacity, so that the check can never be allowed
	// Reduced means that the cost exceeds the capacity, but only because the
	// capacity is lower for now than the rules say.
	Reduced Cause = "reduced"
	Blocked Cause = "blocked" // the rule blocks the subject
)

// Cause returns why la refuses.
func (la *LimitAnswer) Cause() Cause {
	switch {
	case la.ByHand:
		return Blocked // even if the block never ends, and RetryAfter is Never
	case la.RetryAfter == algorithms.Never:
		return CostAboveLimit
	case la.Blocked:
		return Blocked
	case la.Reduced:
		return Reduced
	}
	return RateLimited
}

// AppendReason appends a sentence that tells people why the check was refused.
func (a *Answer) AppendReason(b []byte) []byte {
	tightest := a.TightestLimit()
	switch {
	case a.DecidedBy == ByList:
		return append(b, "The deny list refuses this."...)
	case tightest == nil:
		return append(b, "No rule applies, and the default is to deny."...)
	case tightest.Blocked && tightest.Cause() == Blocked:
		return appendBlocked(b, tightest)
	}

	if tightest.Limit.RefusesAll() {
		b = strconv.AppendQuote(append(b, "Limit "...), tightest.Limit.Name)
		b = strconv.AppendQuote(append(b, " of rule "...), tightest.Rule.Name)
		return append(append(append(b, " is 0: "...), tightest.Limit.Unit...), " are not allowed by this rule."...)
	}

	part, whose := a.partOf(tightest)
	switch {
	case tightest.NoRoom && tightest.Limit.Kind != algorithms.Concurrency:
		b = append(b, "The node has no room for a new counter of limit "...)
	case whose != "":
		b = append(append(append(b, "This "...), whose...), "'s share of limit "...)
	default:
		b = append(b, "Limit "...)
	}

	b = strconv.AppendQuote(b, tightest.Limit.Name)
	b = append(b, " of rule "...)
	b = strconv.AppendQuote(b, tightest.Rule.Name)
	b = append(b, " ("...)
	b = appendRate(b, tightest.Limit, part, whose != "")

	switch {
	case tightest.RetryAfter == algorithms.Never:
		b = append(b, ") can never allow it: the cost of "...)
		b = strconv.AppendInt(b, tightest.Cost, 10)
		b = append(b, " is above its capacity of "...)
		b = strconv.AppendInt(b, tightest.Limit.Configured().Capacity(), 10)
		return append(b, '.')
	case tightest.Reduced:
		b = append(b, ") does not allow it now: the cost of "...)
		b = strconv.AppendInt(b, tightest.Cost, 10)
		b = append(b, " is above its capacity, which is below the configured "...)
		b = strconv.AppendInt(b, tightest.Limit.Configured().Capacity(), 10)
		b = append(b, " for now"...)
		b = tightest.appendCutOff(b)
	case tightest.NoRoom:
		b = append(b, ')')
	case a.DecidedBy == ByFallback && tightest.isUncounted():
		b = append(b, ") can't be counted: its owner can't be reached, and "...)
		if tightest.Rule.OnPartition == rules.RefuseUncounted {
			b = append(b, "on_partition is deny"...)
		} else {
			b = append(b, "nodes don't divide slots"...)
		}
	default:
		b = append(b, ") is used up"...)
		b = tightest.appendCutOff(b)
	}

	return appendSeconds(append(b, "; retry in "...), tightest.RetryAfter)
}

// appendCutOff says that the node or its region is cut off, if it is.
func (la *LimitAnswer) appendCutOff(b []byte) []byte {
	switch {
	case la.byNodeShare:
		return append(b, ", and the node is cut off from the limit's owner"...)
	case la.isRegionIsolated:
		return append(b, ", and the region is cut off from the others"...)
	}
	return b
}

// partOf returns the part of a limit within which the check was decided, and
// whose part it is: "node" or "region". whose is empty if the check was decided
// within the whole limit.
func (a *Answer) partOf(la *LimitAnswer) (part int64, whose string) {
	decidesAlone := la.byNodeShare || la.Rule.Consistency == rules.Local
	c := a.scratch.clusterCheck
	if decidesAlone && c != nil && c.limiter.cluster != nil {
		return c.limiter.cluster.shareOf(&la.Limit.Limit).Amount, "node"
	}
	switch {
	case la.Limit.WholeCapacity > 0 && la.Limit.Capacity() == la.Limit.Amount:
		return la.share(), "region"
	case la.Limit.WholeCapacity > 0: // loans move tokens, not the rate
		return la.Limit.Amount, "region"
	}
	return la.Limit.Amount, ""
}

// appendRate appends how much a limit allows: "100 requests per 1m", or of a
// bucket with another burst "5 requests at once, 100 per 1m". If isShare is
// set, it says that the amount is a part: "30 of 100 requests per 1m".
func appendRate(b []byte, limit *rules.Limit, part int64, isShare bool) []byte {
	capacity, amount := limit.UndividedCapacity(), limit.UndividedAmount()
	if limit.Kind == algorithms.Concurrency {
		b = append(strconv.AppendInt(b, capacity, 10), ' ')
		return append(append(b, limit.Unit...), " at once"...)
	}

	if capacity != amount {
		b = append(strconv.AppendInt(b, capacity, 10), ' ')
		b = append(append(b, limit.Unit...), " at once, "...)
	}

	if isShare {
		b = append(strconv.AppendInt(b, part, 10), " of "...)
	}

	b = strconv.AppendInt(b, amount, 10)
	if capacity == amount {
		b = append(append(b, ' '), limit.Unit...)
	}

	b = append(b, " per "...)
	return append(b, limit.Per...)
}

// isUncounted reports whether la refused without a counter: because of
// `on_partition: deny`, or because nodes don't divide slots. Call it only for
// an answer with ByFallback. Owners may have decided other limits of such an
// answer, but a counter that refuses is not fresh, so its ResetAfter is not 0.
func (la *LimitAnswer) isUncounted() bool {
	refuses := la.Rule.OnPartition == rules.RefuseUncounted || la.Limit.Kind == algorithms.Concurrency
	return refuses && la.RetryAfter == uncountedRetry && la.ResetAfter == 0
}

// appendBlocked appends the sentence for a blocked subject.
func appendBlocked(b []byte, tightest *LimitAnswer) []byte {
	b = strconv.AppendQuote(append(b, "Rule "...), tightest.Rule.Name)
	switch {
	case tightest.ByHand && tightest.RetryAfter == algorithms.Never:
		return append(b, " blocks this, without an end."...)
	case tightest.ByHand:
		return appendSeconds(append(b, " blocks this; retry in "...), tightest.RetryAfter)
	}

	if blocks := tightest.Rule.Blocks; len(blocks) == 1 {
		b = append(b, " blocks this for "...)
		b = append(b, document.FormatDuration(blocks[0].Limit.Window)...)
		b = append(b, " after a refusal; "...)
	} else {
		b = append(b, " blocks this after a refusal, longer each time; "...)
	}

	return appendSeconds(append(b, "retry in "...), tightest.RetryAfter)
}

// appendSeconds appends d, rounded up to milliseconds, and ends the sentence.
func appendSeconds(b []byte, d time.Duration) []byte {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	b = strconv.AppendInt(b, ms/1000, 10)
	if part := ms % 1000; part > 0 {
		b = append(b, '.', '0'+byte(part/100), '0'+byte(part/10%10), '0'+byte(part%10))
	}
	return append(b, " s."...)
}
