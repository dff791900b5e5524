package rules

import (
	"math/big"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules/document"
)

// Lowered returns the limits of a hit of r as they are while a step of
// r.Adaptive is in force. It multiplies amounts and bursts by the step's factor
// and rounds down, but not below 1; a region's share of 0 stays 0. The counters
// remain the same. Lowered rebuilds the list only when the step differs from
// the last call's.
func (r *Rule) Lowered(limits []*Limit, step int) []*Limit {
	if r.Adaptive == nil || step < 0 || step >= len(r.Adaptive.Steps) || len(limits) == 0 ||
		limits[0].loweredCache == nil {
		return limits
	}

	kept := &limits[0].loweredCache.last
	if l := kept.Load(); l != nil && l.step == step {
		return l.limits
	}

	factor := document.ExactRat(r.Adaptive.Steps[step].Factor)
	all := make([]Limit, len(limits))

	out := make([]*Limit, len(limits))
	for i, l := range limits {
		all[i], out[i] = *l, &all[i]
		all[i].loweredCache, all[i].shareCache = nil, nil
		all[i].configured = l.Configured()
		all[i].Amount = scaled(l.Amount, factor)
		all[i].WholeCapacity = scaled(l.WholeCapacity, factor)
		all[i].WholeAmount = scaled(l.WholeAmount, factor)
		all[i].BorrowTarget = scaled(l.BorrowTarget, factor)

		if l.Kind.IsBucket() {
			all[i].Burst = scaled(l.Burst, factor)
		}
	}

	// Several checks may build this at once; all get the same.
	kept.Store(&lowered{step, out})
	return out
}

// scaled returns amount times factor, rounded down, in 1…amount; 0 for an amount of 0.
func scaled(amount int64, factor *big.Rat) int64 {
	n := new(big.Int).Mul(big.NewInt(amount), factor.Num())
	n.Quo(n, factor.Denom())
	if !n.IsInt64() {
		return amount
	}
	return max(min(1, amount), min(amount, algorithms.MaxAmount, n.Int64()))
}
