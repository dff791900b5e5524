package simulation

import (
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules"
)

// Version is a version of the rules that regions share.
type Version struct {
	Number   int64
	Written  time.Duration
	Recorded time.Duration // when the primary recorded that all honour it; forever if never
	From     int64         // the recorded time, Unix ms on the regions' clocks; 0 for always
	Limits   map[string]Divided

	candidate bool // all regions were asked to honour it
}

// Divided is a rule's limit and each region's share of it.
type Divided struct {
	Whole, Burst   int64
	Shares, Bursts map[string]int64 // by region; 0 if absent

	divide func(amount int64) map[string]int64 // divides another amount in the same way; nil if unknown
}

// shareOf returns a region's share of a later version's amount by this division.
func (d *Divided) shareOf(later *Divided, name string) int64 {
	if d.divide == nil || later.Whole == d.Whole || later.Whole == 0 {
		return d.Shares[name]
	}
	return d.divide(later.Whole)[name]
}

// Hold is the versions that a region holds from a time on, as indexes in Ledger.Versions. The last is in force.
type Hold struct {
	At       time.Duration
	Versions []int
}

// Loan is cost that a region lent.
type Loan struct {
	At      time.Duration
	From    int // the lending region
	Subject int
	Window  int64 // the window's number; 0 for buckets
	Amount  int64
}

// newVersion describes a version that was just written. It divides limits by its own code, so that the rules' code is
// judged, too.
func newVersion(h *agreement.Held, now time.Duration) Version {
	v := Version{Number: h.Version, Written: now, Recorded: forever, Limits: map[string]Divided{}}
	for _, r := range h.Set.Rules {
		if r.Scope != rules.GlobalScope {
			continue
		}

		var m rules.Match
		if err := h.Set.MatchKey(r, []string{"k0"}, &m); err != nil || len(m.Hits) == 0 {
			continue
		}

		l := m.Hits[0].Limits[0]
		v.Limits[r.Name] = Divided{
			Whole: l.Amount, Burst: l.Burst,
			Shares: divideAmount(l.Amount, h.Names, r.Regions), Bursts: divideAmount(l.Burst, h.Names, r.Regions),
			divide: func(amount int64) map[string]int64 { return divideAmount(amount, h.Names, r.Regions) },
		}
	}

	return v
}

// divideAmount splits an amount by the largest-remainder method. names must be sorted.
func divideAmount(amount int64, names []string, parts []rules.Region) map[string]int64 {
	weights := map[string]float64{}
	all := false
	for _, p := range parts {
		weights[p.Name] = p.Part
		all = all || slices.Contains(names, p.Name)
	}

	if !all {
		clear(weights)
		for _, name := range names {
			weights[name] = 1
		}
	}

	sum := 0.0
	var order []string
	for name, x := range weights {
		sum += x
		order = append(order, name)
	}

	slices.Sort(order)
	out := map[string]int64{}
	rest := map[string]float64{}

	left := amount
	for _, name := range order {
		quota := weights[name] / sum * float64(amount)
		floor := math.Floor(quota + 1e-6)
		out[name], rest[name] = int64(floor), quota-floor
		left -= int64(floor)
	}

	slices.SortStableFunc(order, func(a, b string) int {
		switch d := rest[b] - rest[a]; {
		case d > 1e-6:
			return 1
		case d < -1e-6:
			return -1
		}
		return 0
	})

	for _, name := range order[:left] {
		out[name]++
	}

	for name := range out {
		if !slices.Contains(names, name) {
			delete(out, name)
		}
	}

	return out
}

// noteMaxShares records the largest shares of p's region, by any version that p holds or held before.
func (p *process) noteMaxShares(s *agreement.State) {
	g := p.w.globe
	g.mu.Lock()
	defer g.mu.Unlock()

	next := map[string]int64{}
	for _, h := range s.Regions.Held {
		place, known := g.versionPlaces[versionName{s.Regions.PrimaryEpoch, h.Version}]
		if !known {
			continue
		}
		for rule, d := range g.ledger.Versions[place].Limits {
			next[rule] = max(next[rule], d.Shares[p.w.name])
		}
	}

	p.maxShares = [2]map[string]int64{p.maxShares[1], next}
}

// maxShare returns the largest share of a limit that p's region may have.
func (p *process) maxShare(s *Subject) int64 {
	if !s.Global {
		return s.Limit.Amount
	}
	return max(p.maxShares[0][s.Rule], p.maxShares[1][s.Rule])
}

// hasAnyRules reports whether p has rules to decide by.
func (p *process) hasAnyRules() bool { return p.rules == nil || p.rules.History.Set() != nil }
