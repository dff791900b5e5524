package simulation

import (
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules"
)

// Version is a version of the rules of several regions.
type Version struct {
	Number   int64
	Written  time.Duration
	Recorded time.Duration // when the primary recorded that all honour it; forever: never
	From     int64         // as which time on its clocks, Unix ms; 0: always
	Limits   map[string]Divided

	candidate bool // all were asked to honour it
}

// Divided is a rule's limit, and what each region has of it.
type Divided struct {
	Whole, Burst   int64
	Shares, Bursts map[string]int64 // by region; 0 for others

	divide func(amount int64) map[string]int64 // shares of another amount, divided alike; nil: not known
}

// shareOf is the share of a region by this division, of the amount of a later version.
func (d *Divided) shareOf(later *Divided, name string) int64 {
	if d.divide == nil || later.Whole == d.Whole || later.Whole == 0 {
		return d.Shares[name]
	}
	return d.divide(later.Whole)[name]
}

// Hold is what a region holds of versions from a time on: places in Ledger.Versions, the last in force.
type Hold struct {
	At       time.Duration
	Versions []int
}

// Loan is what a region lent.
type Loan struct {
	At      time.Duration
	From    int // the lender's region
	Subject int
	Window  int64 // its number; 0 of buckets
	Amount  int64
}

// newVersion is a version as it is written now. It divides by itself, so that the rules' own way of doing so is judged too.
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

// divideAmount splits an amount by largest remainder. Names are in order.
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

// noteMaxShares has p know the most that its region may have of each limit, by any version that it holds or held before.
func (p *process) noteMaxShares(s *agreement.State) {
	g := p.w.globe
	g.mu.Lock()
	defer g.mu.Unlock()
	next := map[string]int64{}
	for _, h := range s.Regions.Held {
		place, known := g.versionPlaces[versionName{s.Regions.Term, h.Version}]
		if !known {
			continue
		}
		for rule, d := range g.ledger.Versions[place].Limits {
			next[rule] = max(next[rule], d.Shares[p.w.name])
		}
	}
	p.maxShares = [2]map[string]int64{p.maxShares[1], next}
}

// maxShare is the most that p's region may have of a limit.
func (p *process) maxShare(s *Subject) int64 {
	if !s.Global {
		return s.Limit.Amount
	}
	return max(p.maxShares[0][s.Rule], p.maxShares[1][s.Rule])
}

// hasAnyRules reports whether p has rules.
func (p *process) hasAnyRules() bool { return p.rules == nil || p.rules.History.Set() != nil }
