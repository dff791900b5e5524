package simulation

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// The bound on what all regions together may admit in a window is the limit of
// one version of the rules: a version recorded as honoured by all before the
// window ended on any clock, and whose successor was not recorded for a time
// before the window. In that window, every region uses this version's share or
// less, whatever newer versions it knows: see [rules.Set.ApplyShares]. The
// bound is the largest limit of these versions. What G4 and G5 allow inside a
// region comes on top, as with a single region.

// judgeRegions judges a run of several regions.
func (l *Ledger) judgeRegions() (broken []Violation) {
	stories := make([][]subjectHistory, len(l.Regions))
	for r, of := range l.Regions {
		for _, v := range of.Judge() {
			broken = append(broken, Violation{v.Guarantee, fmt.Sprintf("region %s: %s", RegionName(r), v.Text)})
		}
		stories[r] = of.index()
	}

	for i := range l.Subjects {
		s := &l.Subjects[i]
		if !s.Global {
			continue
		}

		of := make([]*subjectHistory, len(l.Regions))
		for r := range of {
			of[r] = &stories[r][i]
		}

		if isFixed(s) {
			broken = append(broken, l.judgeAllRegions(i, of)...)
		} else {
			broken = append(broken, l.judgeFlow(i, of)...)
		}

		for r := range of {
			broken = append(broken, l.judgeOwnShare(i, r, of[r])...)
		}
	}

	for _, of := range l.Regions {
		l.Counts.add(&of.Counts)
	}

	return broken
}

// add adds the counts of o to c.
func (c *Counts) add(o *Counts) {
	for i := range c.By {
		c.By[i] += o.By[i]
	}

	j, k := &c.Judged, &o.Judged
	j.Windows = j.Windows + k.Windows
	j.Full = j.Full + k.Full
	j.Spans = j.Spans + k.Spans
	j.Alone = j.Alone + k.Alone
}

// countingVersions lists the versions that may have counted at a time
// from…until on the regions' clocks, in ns since
// 1970.
func (l *Ledger) countingVersions(from, until int64) (out []*Version) {
	earliest := int64(math.MaxInt64) // the slowest clock: at a record, it shows the earliest time
	for _, of := range l.Regions {
		earliest = min(earliest, of.Start.UnixNano())
	}

	// Each version counts from its record until the next one's.
	recorded := make([]*Version, 0, len(l.Versions))
	for i := range l.Versions {
		if l.Versions[i].Recorded != forever {
			recorded = append(recorded, &l.Versions[i])
		}
	}

	slices.SortStableFunc(recorded, func(a, b *Version) int { return int(a.Recorded - b.Recorded) })

	for i, v := range recorded {
		if i > 0 && earliest+int64(v.Recorded) >= until {
			break
		}
		if i+1 < len(recorded) && recorded[i+1].From*int64(time.Millisecond) <= from {
			continue
		}
		out = append(out, v)
	}

	return out
}

// largestLimit returns the most that a limit may have been at a time from…until
// on the regions' clocks.
func (l *Ledger) largestLimit(s *Subject, from, until int64) (amount, burst int64) {
	for _, v := range l.countingVersions(from, until) {
		amount, burst = max(amount, v.Limits[s.Rule].Whole), max(burst, v.Limits[s.Rule].Burst)
	}
	return amount, burst
}

// judgeAllRegions is G8 for a fixed-window limit.
func (l *Ledger) judgeAllRegions(subject int, histories []*subjectHistory) (broken []Violation) {
	s := &l.Subjects[subject]
	all := newWindowTotals()
	for r, in := range histories {
		for _, c := range in.checks {
			if c.Admitted && c.By != limiter.ByFallback {
				all.add(l.Regions[r], c)
				l.Counts.Judged.Admissions++
			}
		}
	}

	l.Counts.Judged.Whole += len(all.certain)
	length := int64(s.Limit.Window)
	excused := map[int64]bool{}
	bound := func(w int64) int64 {
		limit, _ := l.largestLimit(s, w*length, (w+1)*length)
		most := limit
		for r, in := range histories {
			region := l.Regions[r]
			for _, lost := range in.losses {
				if region.windowOf(s, lost.At) != w {
					continue
				}
				most += lost.Amount
				if lost.Anew {
					most += limit // the region's share is no larger
				}
				excused[w] = true
			}

			for _, act := range in.acts {
				if region.windowOf(s, act.At) == w {
					most += act.Cost
					excused[w] = true
				}
			}
		}

		if most == limit {
			l.Counts.Judged.Exact++
		}

		return most
	}

	for w, n := range all.certain {
		limit, _ := l.largestLimit(s, w*length, (w+1)*length)
		if n*10 >= limit*9 {
			l.Counts.Judged.Filled++
		}
	}

	all.findExceeded(bound, func(w, admitted, most int64) {
		name := "G8"
		if excused[w] {
			name = "G5"
		}
		broken = append(broken,
			l.violation(name, subject, "in the window from %v, all regions together admitted %d; the bound is %d:%s",
				l.windowStart(s, w), admitted, most, l.describeShares(s, w, histories)))
	})
	return broken
}

// describeShares lists what each region admitted and lent in a window.
func (l *Ledger) describeShares(s *Subject, w int64, histories []*subjectHistory) (text string) {
	for r, in := range histories {
		sum, lent := int64(0), int64(0)
		for _, c := range in.checks {
			if c.Admitted && c.By != limiter.ByFallback && l.Regions[r].windowOf(s, c.Began) == w {
				sum += c.Cost
			}
		}

		for i := range l.Loans {
			if x := &l.Loans[i]; x.From == r && &l.Subjects[x.Subject] == s && x.Window == w {
				lent += x.Amount
			}
		}

		if sum > 0 || lent > 0 {
			text += fmt.Sprintf(" %s admitted %d and lent %d;", RegionName(r), sum, lent)
		}
	}

	return text
}

// judgeOwnShare is the other half of G8: while demand lasts, a region admits
// nearly all of its own share, less what it lent.
func (l *Ledger) judgeOwnShare(subject, r int, history *subjectHistory) (broken []Violation) {
	s, region := &l.Subjects[subject], l.Regions[r]
	if !isFixed(s) {
		return nil
	}

	seen := int64(math.MinInt64)
	for _, c := range history.checks {
		w := region.windowOf(s, c.Began)
		if w <= seen {
			continue
		}

		seen = w
		own := region.leastShare(l.Versions, s, RegionName(r), w)
		for i := range l.Loans {
			if x := &l.Loans[i]; x.From == r && x.Subject == subject && x.Window == w {
				own -= x.Amount
			}
		}

		if own <= 0 {
			continue
		}

		if v := region.judgeWindow(subject, w, own, history); v != nil {
			broken = append(broken,
				Violation{"G8", fmt.Sprintf("region %s, with a share of %d: %s", RegionName(r), own, v.Text)})
		}
	}

	return broken
}

// catchUpTime is how long nodes of a region may still use a version that the
// region no longer holds.
const catchUpTime = 2*time.Second + aftermath

// leastShare returns the least that a region's share of a limit may have been
// in a window, by any version that it held.
func (l *Ledger) leastShare(versions []Version, s *Subject, name string, w int64) int64 {
	least := int64(math.MaxInt64)
	begins, ends := l.windowStart(s, w), l.windowStart(s, w+1)
	for i, h := range l.Holds {
		if h.At >= ends || i+1 < len(l.Holds) && l.Holds[i+1].At < begins-catchUpTime-s.Limit.Window {
			continue
		}

		for j, place := range h.Versions {
			// The division of a version that counts also applies to the amounts of later versions.
			of := versions[place].Limits[s.Rule]
			for _, later := range h.Versions[j:] {
				d := versions[later].Limits[s.Rule]
				least = min(least, of.shareOf(&d, name))
			}
		}
	}

	if len(l.Holds) == 0 || l.Holds[0].At > begins {
		return 0 // it had no version at first
	}

	return least
}
