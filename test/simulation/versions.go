package simulation

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
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

// Hold is the versions that a region holds from a time on, as indexes in
// Ledger.Versions. The last is in force.
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

// sharedStates is what a ledger has noted of the regions' agreed states.
type sharedStates struct {
	places       map[versionName]int // indexes in Ledger.Versions
	primaryEpoch int64               // the highest so far
}

// versionName identifies a version. Different primaries may write the same number.
type versionName struct{ primaryEpoch, number int64 }

// afterAll is added to the latest reported clock to get the time at which a
// record takes effect: no check takes longer.
const afterAll = time.Second

// RegionName returns the name of a simulated region.
func RegionName(region int) string { return fmt.Sprintf("r%02d", region) }

// NoteState records what a region has committed at a time: the versions that it
// holds and, for the primary, which versions exist and which are recorded. Call
// it for each new state of each region, in order of time.
func (l *Ledger) NoteState(region int, rg *agreement.Regions, at time.Duration) {
	st, clock := &l.states, l.Regions[region].Start.Add(at).UnixMilli()
	if st.places == nil {
		st.places = map[versionName]int{}
	}

	fresh := rg.PrimaryEpoch > st.primaryEpoch
	st.primaryEpoch = max(st.primaryEpoch, rg.PrimaryEpoch)
	hold := Hold{At: at}

	// A record covers all versions up to the one that all regions honour. That one
	// may have been the candidate for too short a time to be seen.
	newest := -1
	for i := range rg.Held {
		if rg.Held[i].RecordedAt != 0 {
			newest = i
		}
	}

	for i, h := range rg.Held {
		if len(h.Regions) == 0 {
			continue // the region has not met the others yet
		}

		name := versionName{rg.PrimaryEpoch, h.Version}
		place, known := st.places[name]
		if !known && fresh {
			place, known = st.places[versionName{rg.PrimaryEpoch - 1, h.Version}]
			if known {
				st.places[name] = place // the new primary continues with the old one's version
			}
		}

		if !known {
			place = len(l.Versions)
			st.places[name] = place
			l.Versions = append(l.Versions, newVersion(&h, at))
		}

		v := &l.Versions[place]
		v.candidate = v.candidate || h.Candidate || i == newest
		if rg.Primary == RegionName(region) && v.Recorded == forever && v.candidate && h.RecordedAt != 0 {
			// A version that divides like an earlier one takes over its record.
			v.Recorded, v.From = at, max(h.RecordedAt, clock+afterAll.Milliseconds())
			l.Counts.Recorded++
		}

		hold.Versions = append(hold.Versions, place)
	}

	l.Regions[region].Holds = append(l.Regions[region].Holds, hold)
}

// MaxShare returns the largest share of a subject's limit that a region has had
// since a time, by any version that it held.
func (l *Ledger) MaxShare(region int, s *Subject, since time.Duration) (share int64) {
	holds := l.Regions[region].Holds
	for i, h := range holds {
		if i+1 < len(holds) && holds[i+1].At < since {
			continue
		}
		for _, place := range h.Versions {
			share = max(share, l.Versions[place].Limits[s.Rule].Shares[RegionName(region)])
		}
	}
	return share
}

// newVersion describes a version that was just written. It divides limits by
// its own code, so that the rules' code is judged, too.
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
			Shares: divideAmount(l.Amount, h.Regions, r.Regions), Bursts: divideAmount(l.Burst, h.Regions, r.Regions),
			divide: func(amount int64) map[string]int64 { return divideAmount(amount, h.Regions, r.Regions) },
		}
	}

	return v
}

// divideAmount splits an amount by the largest-remainder method. names must be sorted.
func divideAmount(amount int64, names []string, parts []document.Region) map[string]int64 {
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
