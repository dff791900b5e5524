package rules

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules/document"
)

// A region's share of a limit depends on which version of the rules divides it.
// Regions learn of versions at different times, so several versions may count
// at once. A version is recorded once all regions use it. A fixed window is
// divided by the last version recorded before the window began. A version that
// may have been recorded by then, as far as this region knows, lowers the share.
//
// An example: version 1 divides 1,000 a day, {eu: 0.7, us: 0.3}. Version 2,
// {eu: 0.5, us: 0.5}, is written on Monday, and both regions use it. If it is
// recorded on that day, eu keeps its 700 until midnight, because it may have
// used them, and us keeps its 300. Then each has 500. If it is not recorded, eu
// has 500 on Tuesday and us has 300: each has the smaller of its two shares.
// TestSharesOfTwoDays has a longer example.

// clockDifference is how far the clocks of nodes may differ, in ns. Shares are
// safe for windows that begin this much earlier or later.
const clockDifference = int64(time.Second)

// MaxRecordedAt bounds HeldVersion.RecordedAt, in Unix ms: the year 2109.
const MaxRecordedAt = 1 << 42

// WithShares returns a copy of s that divides its global limits; see
// [Set.ApplyShares]. If shares is nil, the copy does not divide them.
func (s *Set) WithShares(versions *DividingVersions) *Set {
	out := *s
	out.heldVersions = nil
	out.division = nil
	if versions != nil && len(versions.Held) > 0 {
		out.heldVersions = versions
		out.division = newDivision(versions)
	}
	return &out
}

// newDivision returns what a set with shares needs to divide limits.
func newDivision(versions *DividingVersions) *division {
	d := &division{region: versions.Region, lastSufficesFrom: math.MaxInt64}
	for i, v := range versions.Held {
		// Recorded versions come first, so stop at the first that is not recorded. A
		// phase counts them in a byte. Later ones count as not recorded yet, which errs
		// on the side of smaller shares.
		if v.RecordedAt > 0 && len(d.recordedAt) == i && i < math.MaxUint8 {
			d.recordedAt = append(d.recordedAt, min(v.RecordedAt, MaxRecordedAt)*int64(time.Millisecond))
		}

		for _, name := range v.Regions {
			if !slices.Contains(d.names, name) {
				d.names = append(d.names, name)
			}
		}

		d.maxFill = max(d.maxFill, int64(v.Set.globals.maxFill))
		d.notHonouredAt = append(d.notHonouredAt, v.NotHonouredAt)
		d.doubtful = append(d.doubtful, v.Doubtful)
	}

	// A phase counts how many of these times have passed, so they must ascend. To
	// lower one is safe: the region may then seem to have honoured a version too
	// early, which only makes shares smaller.
	for i := len(d.notHonouredAt) - 2; i >= 0; i-- {
		d.notHonouredAt[i] = min(d.notHonouredAt[i], d.notHonouredAt[i+1])
	}

	slices.Sort(d.names)
	d.soleRegion = len(d.names) == 1 && d.names[0] == versions.Region

	last := len(versions.Held) - 1
	switch {
	case last == 0 || len(d.names) <= 1:
		d.lastSufficesFrom = math.MinInt64
	case len(d.recordedAt) > last:
		d.lastSufficesFrom = d.recordedAt[last]
	}

	return d
}

// DividingVersions returns the argument of WithShares. It is nil if global
// limits are not divided, as in tools and replays.
func (s *Set) DividingVersions() *DividingVersions { return s.heldVersions }

// ApplyShares replaces the limits of m's global hits with this region's shares at
// wall, in Unix nanoseconds on the clock of the node that asks. The counters
// remain the same. Call it after Match or MatchKey of s, and before
// [Rule.Lowered], which lowers the shares. It doesn't allocate while the shares
// that it last returned for a list of limits still hold.
//
// docs/design/regions.md explains which versions count and why the sum of all
// shares never exceeds the limit. A version without the limit allows any share.
func (s *Set) ApplyShares(m *Match, wall int64) {
	d := s.division
	if d == nil {
		return
	}

	for i := range m.Hits {
		h := &m.Hits[i]
		if h.Rule.Scope != GlobalScope || h.Limits[0].shareCache == nil {
			continue
		}

		// If neither is the case, this region has the whole limit.
		switch {
		case !d.lastSuffices(h.Limits, wall):
			h.Limits = s.severalVersionShares(m, h, wall)
		case !d.soleRegion || len(h.Rule.Regions) > 0:
			h.Limits = s.lastVersionShares(h)
		}
	}
}

// lastSuffices reports whether only the last version counts for limits at wall.
func (d *division) lastSuffices(limits []*Limit, wall int64) bool {
	if d.lastSufficesFrom == math.MinInt64 {
		return true
	}

	for _, l := range limits {
		start := wall - clockDifference - d.maxFill
		if !l.Kind.IsBucket() {
			start = l.WindowStart(wall - clockDifference)
		}
		if start < d.lastSufficesFrom {
			return false
		}
	}

	return true
}

// SharesOf returns each committed region's share of a global rule's limit in
// the version in force; for a bucket, its share of the burst. limit may itself
// be a share. SharesOf returns nil if limits are not divided.
func (s *Set) SharesOf(rule *Rule, limit *Limit) map[string]int64 {
	if s.heldVersions == nil || rule.Scope != GlobalScope {
		return nil
	}

	if limit.undivided != nil {
		limit = limit.undivided
	}

	names := s.heldVersions.Held[len(s.heldVersions.Held)-1].Regions
	v := divide(names, names, rule, limit)

	out := make(map[string]int64, len(names))
	for i, name := range names {
		out[name] = v.amounts[i]
		if limit.Kind.IsBucket() {
			out[name] = v.bursts[i]
			if v.amounts[i] == 0 {
				out[name] = 0
			}
		}
	}

	return out
}

// divide returns what each of regions gets of a limit of rule. Only those in
// committed get anything.
func divide(regions, committed []string, rule *Rule, l *Limit) versionShares {
	v := versionShares{amounts: splitAmong(regions, committed, rule.Regions, l.Amount)}
	v.bursts = v.amounts
	if l.Kind.IsBucket() && l.Burst != l.Amount {
		v.bursts = splitAmong(regions, committed, rule.Regions, l.Burst)
	}
	return v
}

// splitAmong returns the share of each of regions in amount, which is divided
// among committed.
func splitAmong(regions, committed []string, parts []document.Region, amount int64) []int64 {
	shares := document.Split(amount, committed, parts)
	out := make([]int64, len(regions))
	for i, name := range regions {
		if j := slices.Index(committed, name); j >= 0 {
			out[i] = shares[j]
		}
	}
	return out
}

// lastVersionShares returns the shares of a hit's limits when only the last
// version counts.
func (s *Set) lastVersionShares(h *Hit) []*Limit {
	d := s.division
	cache := &h.Limits[0].shareCache.lastOnly
	if c := cache.Load(); c != nil && c.division == d {
		return c.limits
	}

	names := s.heldVersions.Held[len(s.heldVersions.Held)-1].Regions
	bounds := make([]bound, len(h.Limits))
	if region := slices.Index(names, d.region); region >= 0 {
		for i, l := range h.Limits {
			bounds[i] = divide(names, names, h.Rule, l).of(region)
		}
	}

	// Several checks may compute this at once; all get the same.
	c := &lastOnlyLimits{division: d, limits: s.reduceLimits(h, bounds, bounds)}
	cache.Store(c)
	return c.limits
}

// severalVersionShares returns the shares of a hit's limits when more than one
// version may count.
func (s *Set) severalVersionShares(m *Match, h *Hit, wall int64) []*Limit {
	s.setShareLists(m, h)

	d := s.division
	cache := &h.Limits[0].shareCache.several
	c := cache.Load()
	if c == nil || c.division != d || !slices.Equal(c.lists, m.shareLists) {
		c = s.newSeveralLimits(m, h)
	} else if c.stillHolds(h.Limits, wall) {
		return c.limits
	}

	// Other checks read the cached value without a lock, so it must not change.
	next := *c
	next.phases = make([]phase, len(h.Limits))
	for i, l := range h.Limits {
		next.phases[i] = c.phase(i, l, wall)
	}

	next.limits = s.limitsIn(&next, h, wall)
	cache.Store(&next)
	return next.limits
}

// setShareLists sets m.shareLists: for each version before the last, the
// number of the list of limits that it has for h's rule and m's subject.
func (s *Set) setShareLists(m *Match, h *Hit) {
	m.shareLists = m.shareLists[:0]
	held := s.heldVersions.Held
	for i := range held[:len(held)-1] {
		number := int32(0)
		_, list := held[i].limitsFor(m, h.Rule)
		if len(list) > 0 {
			number = list[0].shareCache.number
		}
		m.shareLists = append(m.shareLists, number)
	}
}

// limitsIn returns the shares of a hit's limits in the phases of c, which
// contain wall.
func (s *Set) limitsIn(c *severalLimits, h *Hit, wall int64) []*Limit {
	bounds := make([]bound, len(h.Limits))
	newest := make([]bound, len(h.Limits))
	for i := range h.Limits {
		bounds[i] = c.bounders[i].boundAt(c.phases[i])
		newest[i] = c.bounders[i].newestBound()
	}

	limits := s.reduceLimits(h, bounds, newest)
	for i, l := range h.Limits {
		if l.Kind.Windowed() {
			at := algorithms.Instant{Wall: wall + clockDifference}
			limits[i].ValidUntil = at.Wall + int64(l.WindowLeft(at))
		}

		amounts := c.bounders[i].baseDivision(c.phases[i])
		if amounts != nil {
			limits[i].inWindow = &windowDivision{s.division.names, amounts}
		}
	}

	return limits
}

// stillHolds reports whether c's limits still hold at wall.
func (c *severalLimits) stillHolds(limits []*Limit, wall int64) bool {
	for i, l := range limits {
		// An owner whose clock is ahead may be in the next window already.
		until := c.limits[i].ValidUntil
		if until != 0 && wall+clockDifference >= until ||
			c.phase(i, l, wall) != c.phases[i] {
			return false
		}
	}
	return true
}

// phase returns the phase of limit i at wall. The clock of the counter's owner
// may be a second behind or ahead.
func (c *severalLimits) phase(i int, l *Limit, wall int64) (p phase) {
	d := c.division
	if l.Kind.IsBucket() {
		p.fewestRecorded = d.countRecorded(wall - clockDifference - c.bounders[i].fillTime)
		return p
	}

	latestStart := l.WindowStart(wall + clockDifference)
	p.fewestRecorded = d.countRecorded(l.WindowStart(wall - clockDifference))
	p.mostRecorded = d.countRecorded(latestStart)

	// Count the versions that this region may have honoured when the window began.
	// Stop at the first that it certainly had not honoured by then: its
	// notHonouredAt is more than a second after the latest possible start.
	for int(p.mostHonoured) < len(d.notHonouredAt) &&
		latestStart >= d.notHonouredAt[p.mostHonoured]-clockDifference {
		p.mostHonoured++
	}
	return p
}

// limitsFor returns the rule that v has in place of a global rule, and the
// limits of that rule for m's subject. Both are nil if v has no such rule.
func (v *HeldVersion) limitsFor(m *Match, rule *Rule) (*Rule, []*Limit) {
	r := v.Set.byName[rule.Name]
	if r == nil || r.Scope != GlobalScope {
		return nil, nil
	}
	r = r.variantLike(rule)
	if r == nil {
		return nil, nil
	}
	return r, r.limitsOf(m, rule, nil)
}

// variantLike returns the variant of r with the same key as other, a rule of
// the same name in another version, or nil. Without alternatives, it only
// compares the number of attributes.
func (r *Rule) variantLike(other *Rule) *Rule {
	if (r.alternatives == nil) != (other.alternatives == nil) {
		return nil
	}
	for _, v := range r.variants() {
		if v.alternatives == nil && len(v.key) == len(other.key) || slices.Equal(v.Key, other.Key) {
			return v
		}
	}
	return nil
}

// newSeveralLimits returns the bounders for a hit's limits. limitsIn computes
// the limits from them.
func (s *Set) newSeveralLimits(m *Match, h *Hit) *severalLimits {
	d := s.division
	c := &severalLimits{
		division: d,
		lists:    slices.Clone(m.shareLists),
		bounders: make([]shareBounder, len(h.Limits)),
	}

	for i, l := range h.Limits {
		sb := shareBounder{
			region:   slices.Index(d.names, d.region),
			recorded: len(d.recordedAt),
			doubtful: d.doubtful,
			bucket:   l.Kind.IsBucket(),
		}

		for j := range s.heldVersions.Held {
			v := &s.heldVersions.Held[j]
			rule, list := v.limitsFor(m, h.Rule)
			k := slices.IndexFunc(list, func(other *Limit) bool { return other.ID == l.ID })
			if k < 0 {
				sb.add(nil, nil, nil, d.names)
				continue
			}
			sb.add(rule, list[k], v.Regions, d.names)
		}

		sb.prepare()
		c.bounders[i] = sb
	}

	return c
}

// add adds a version's limit, which is nil if the version has none.
func (sb *shareBounder) add(rule *Rule, l *Limit, committed, regions []string) {
	if l == nil {
		sb.versions = append(sb.versions, unboundedShares(len(regions)))
		sb.split = append(sb.split, nil)
		sb.amounts = append(sb.amounts, 0)
		return
	}

	v := divide(regions, committed, rule, l)
	sb.versions = append(sb.versions, v)
	sb.fillTime = max(sb.fillTime, v.fillTime(l))
	index := -1
	if sb.region >= 0 {
		index = slices.Index(committed, regions[sb.region])
	}

	sb.amounts = append(sb.amounts, l.Amount)
	sb.split = append(sb.split, func(amount int64) int64 {
		if index < 0 {
			return 0
		}
		return document.Split(amount, committed, rule.Regions)[index]
	})
}

// fillTime returns the time that the slowest region's bucket takes to fill, in ns,
// or 0 for other limits.
func (v versionShares) fillTime(l *Limit) int64 {
	if !l.Kind.IsBucket() {
		return 0
	}

	longest := int64(0)
	for i, amount := range v.amounts {
		if amount == 0 {
			continue // it refuses everything
		}
		hi, lo := bits.Mul64(uint64(v.bursts[i]), uint64(l.Limit.Window))
		// The quotient has no room in 64 bits: Div64 would panic.
		if hi >= uint64(amount) {
			return int64(algorithms.Forever)
		}
		fill, _ := bits.Div64(hi, lo, uint64(amount))
		// The time is rounded up: with a shorter one, an earlier version would stop
		// counting too soon.
		longest = max(longest, int64(min(fill, uint64(algorithms.Forever)-1))+1)
	}

	return longest
}

// reduceLimits returns the limits of a hit reduced to bounds. newest is what
// the version in force gives the region.
func (s *Set) reduceLimits(h *Hit, bounds, newest []bound) []*Limit {
	limits := h.Limits
	all := make([]Limit, len(limits))

	out := make([]*Limit, len(limits))
	for i, l := range limits {
		all[i] = *l
		out[i] = &all[i]
		all[i].undivided, all[i].configured = l, l.Configured()
		all[i].WholeCapacity, all[i].WholeAmount = l.Capacity(), l.Amount
		// A share is not divided again.
		all[i].shareCache = nil

		// The share needs a cache of its own: that of l holds the undivided limits,
		// lowered.
		if l.loweredCache != nil {
			all[i].loweredCache = &loweredCache{}
		}

		all[i].Amount = bounds[i].amount
		all[i].BorrowTarget = s.borrowTarget(l, max(bounds[i].amount, newest[i].amount))

		if l.Kind.IsBucket() {
			all[i].Burst = bounds[i].burst
			if bounds[i].amount == 0 || bounds[i].burst == 0 {
				all[i].Amount, all[i].Burst = 0, 0 // a bucket that never refills gives nothing
			}
		}
	}

	return out
}

// borrowTarget returns the [Limit.BorrowTarget] of l, given the region's share.
// It is 0 if the region is not committed.
func (s *Set) borrowTarget(l *Limit, share int64) int64 {
	names := s.heldVersions.Held[len(s.heldVersions.Held)-1].Regions
	switch {
	case l.Kind != algorithms.FixedWindow || l.Amount == 0 || !slices.Contains(names, s.division.region):
		return 0
	case share > 0:
		return share
	}
	return (l.Amount-1)/int64(len(names)) + 1 // without a share: an equal part, rounded up
}

// WindowShares returns each region's part of a global rule's limit in the current
// window. It ignores that unrecorded versions may lower shares. limit should
// come from ApplyShares; for any other, WindowShares returns [Set.SharesOf].
func (s *Set) WindowShares(rule *Rule, limit *Limit) map[string]int64 {
	if limit.inWindow == nil {
		return s.SharesOf(rule, limit)
	}
	out := make(map[string]int64, len(limit.inWindow.names))
	for i, name := range limit.inWindow.names {
		out[name] = limit.inWindow.amounts[i]
	}
	return out
}

// NotHonoured records times at which a process's region had certainly not
// honoured a version yet. The zero value, for a process that has just started,
// knows of none. It is not safe for concurrent use.
//
// A region honours a version once all its nodes that may have authority have
// applied the version. So if a process has authority and has not applied a
// version, its region has not honoured that version. A process without
// authority proves nothing, because the region does not wait for it.
type NotHonoured struct {
	newest int64           // versions up to it are not new
	at     map[int64]int64 // HeldVersion.NotHonouredAt of the versions in the last set
}

// Stamp returns set, which the process is about to apply, with
// HeldVersion.NotHonouredAt filled in where it is known. now is the process's
// wall clock in Unix nanoseconds if the process had authority when, or after,
// it read the clock; otherwise 0. The process must not have announced set as
// applied before the call.
func (h *NotHonoured) Stamp(set *Set, now int64) *Set {
	versions := set.heldVersions
	if versions == nil {
		return set
	}

	at := make(map[int64]int64, len(versions.Held))
	newest := h.newest
	known := false
	for _, v := range versions.Held {
		n := v.Set.Version
		notHonoured, seen := h.at[n]
		if !seen && n > h.newest {
			notHonoured = now
		}
		at[n] = notHonoured
		newest = max(newest, n)
		known = known || notHonoured != 0 && (v.RecordedAt == 0 || v.Doubtful) // it does not matter for other versions
	}

	h.at = at
	h.newest = newest
	if !known {
		return set
	}

	stamped := &DividingVersions{Region: versions.Region, Held: slices.Clone(versions.Held)}
	for i := range stamped.Held {
		stamped.Held[i].NotHonouredAt = at[stamped.Held[i].Set.Version]
	}

	return set.WithShares(stamped)
}
