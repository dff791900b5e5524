package main

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// series is what was measured of one thing, a value for each round.
type series []float64

// median is NaN for an empty series.
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

// ratio is one series over another: of their medians, and the least and the most that one round showed.
type ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// asRatio is of figures that are not divided by others.
func asRatio(s series) ratio { return ratio{s.median(), s.min(), s.max()} }

// over divides a by b. Round i of one stands beside round i of the other.
func over(a, b series) ratio {
	var each series
	for i := range min(len(a), len(b)) {
		each = append(each, a[i]/b[i])
	}
	return ratio{Median: a.median() / b.median(), Min: each.min(), Max: each.max()}
}

// times multiplies all of r.
func (r ratio) times(f float64) ratio { return ratio{r.Median * f, r.Min * f, r.Max * f} }

// contender is one of several things that are measured in turns.
type contender struct {
	name string
	run  func(ctx context.Context) error // one round
}

// takeTurns lets each contender run once a round. Who begins changes from round to round, so that nobody always comes
// after the same other one.
func takeTurns(ctx context.Context, rounds int, all []contender, progress func(string)) error {
	for r := range rounds {
		for i := range all {
			c := all[(r+i)%len(all)]
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
