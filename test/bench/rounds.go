package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// series holds the measurements of one quantity, one per round.
type series []float64

// median returns NaN for an empty series.
func (s series) median() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

func (s series) min() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	return slices.Min(s)
}

func (s series) max() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	return slices.Max(s)
}

// ratio is one series divided by another: of the medians, and the minimum and maximum over rounds.
type ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// asRatio returns a ratio for figures without a divisor.
func asRatio(s series) ratio { return ratio{s.median(), s.min(), s.max()} }

// over divides a by b. Round i of one is compared with round i of the other.
func over(a, b series) ratio {
	var each series
	for i := range min(len(a), len(b)) {
		each = append(each, a[i]/b[i])
	}
	return ratio{Median: a.median() / b.median(), Min: each.min(), Max: each.max()}
}

// times multiplies r by a factor.
func (r ratio) times(f float64) ratio { return ratio{r.Median * f, r.Min * f, r.Max * f} }

// contender is one of several things that take turns.
type contender struct {
	name string
	run  func(ctx context.Context) error // one round
}

// takeTurns runs each contender once per round, in another order each time: what
// one leaves to be done in the background falls on any other.
func takeTurns(ctx context.Context, rounds int, all []contender, progress func(string)) error {
	for r := range rounds {
		for _, i := range rand.New(rand.NewPCG(0, uint64(r))).Perm(len(all)) {
			c := all[i]
			progress(fmt.Sprintf("round %d of %d: %s", r+1, rounds, c.name))
			if err := c.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}

	return nil
}
