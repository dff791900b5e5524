package rules

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules/document"
)

// clockDifference is how far the clocks of nodes may differ, in ns. Shares are
// safe for windows that begin this much earlier or later.
const clockDifference = int64(time.Second)

// MaxRecordedAt bounds HeldVersion.RecordedAt, in Unix ms: the year 2109.
const MaxRecordedAt = 1 << 42

// WithShares returns a copy of s whose global limits are the shares of a
// region. It shares everything else with s. If x is nil, global limits are not
// divided.
func (s *Set) WithShares(x *Shares) *Set {
	out := *s
	out.shares = x
	out.division = nil
	if x == nil || len(x.Held) == 0 {
		out.shares = nil
		return &out
	}

	d := &division{region: x.Region, onlyLastFrom: math.MaxInt64}
	for i, v := range x.Held {
		// A phase counts recorded versions in a byte. Later ones count as not
		// recorded yet, which errs on the side of smaller shares.
		if v.RecordedAt > 0 && len(d.at) == i && i < math.MaxUint8 {
			d.at = append(d.at, min(v.RecordedAt, MaxRecordedAt)*int64(time.Millisecond))
		}

		for _, name := range v.Names {
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
	d.soleRegion = len(d.names) == 1 && d.names[0] == x.Region

	last := len(x.Held) - 1
	switch {
	case last == 0 || len(d.names) <= 1:
		d.onlyLastFrom = math.MinInt64
	case len(d.at) > last:
		d.onlyLastFrom = d.at[last]
	}

	out.division = d
	return &out
}

// Shares returns the argument of WithShares. It is nil if global limits are not
// divided, as in tools and replays.
func (s *Set) Shares() *Shares { return s.shares }

// Share replaces the limits of m's global hits with this region's shares at
// wall, in Unix nanoseconds on the clock of the node that asks. The counters
// remain the same. Call it after Match or MatchKey of s, and before
// [Rule.Lowered], which lowers the shares. It doesn't allocate while the shares
// that it last returned for a list of limits still hold.
//
// docs/design/regions.md explains which versions count and why the sum of all
// shares never exceeds the limit. A version without the limit allows any share.
func (s *Set) Share(m *Match, wall int64) {
	d := s.division
	if d == nil {
		return
	}

	for i := range m.Hits {
		h := &m.Hits[i]
		if h.Rule.Scope != GlobalScope || h.Limits[0].shareCache == nil {
			continue
		}

		switch {
		case !d.onlyLastCounts(h.Limits, wall):
			h.Limits = s.severalVersionShares(m, h, wall)
		case !d.soleRegion || len(h.Rule.Regions) > 0:
			h.Limits = s.lastVersionShares(h)
		}
	}
}

// onlyLastCounts reports whether only the last version counts for limits at wall.
func (d *division) onlyLastCounts(limits []*Limit, wall int64) bool {
	if d.onlyLastFrom == math.MinInt64 {
		return true
	}

	for _, l := range limits {
		start := wall - clockDifference - d.maxFill
		if !l.Kind.IsBucket() {
			start = l.WindowStart(wall - clockDifference)
		}
		if start < d.onlyLastFrom {
			return false
		}
	}

	return true
}

// SharesOf returns each committed region's share of a global rule's limit in
// the version in force; for a bucket, its share of the burst. limit may itself
// be a share. SharesOf returns nil if limits are not divided.
func (s *Set) SharesOf(rule *Rule, limit *Limit) map[string]int64 {
	if s.shares == nil || rule.Scope != GlobalScope {
		return nil
	}

	if limit.undivided != nil {
		limit = limit.undivided
	}

	names := s.shares.Held[len(s.shares.Held)-1].Names
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
func divide(regions, committed []string, rule *Rule, l *Limit) heldShares {
	v := heldShares{amounts: splitAmong(regions, committed, rule.Regions, l.Amount)}
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
	cache := &h.Limits[0].shareCache.sole
	if c := cache.Load(); c != nil && c.division == d {
		return c.limits
	}

	names := s.shares.Held[len(s.shares.Held)-1].Names
	rooms := make([]room, len(h.Limits))
	if region := slices.Index(names, d.region); region >= 0 {
		for i, l := range h.Limits {
			rooms[i] = divide(names, names, h.Rule, l).of(region)
		}
	}

	// Several checks may compute this at once; all get the same.
	c := &soleLimits{division: d, limits: s.reduceLimits(h, rooms, rooms)}
	cache.Store(c)
	return c.limits
}

// severalVersionShares returns the shares of a hit's limits when more than one
// version may count.
func (s *Set) severalVersionShares(m *Match, h *Hit, wall int64) []*Limit {
	d := s.division
	cache := &h.Limits[0].shareCache.moving
	held := s.shares.Held

	m.shareLists = m.shareLists[:0]
	for i := range held[:len(held)-1] {
		number := int32(0)
		_, list := held[i].limitsFor(m, h.Rule)
		if len(list) > 0 {
			number = list[0].shareCache.number
		}
		m.shareLists = append(m.shareLists, number)
	}

	c := cache.Load()
	if c == nil || c.division != d || !slices.Equal(c.lists, m.shareLists) {
		c = s.newMovingLimits(m, h)
	} else if c.stillHolds(h.Limits, wall) {
		return c.limits
	}

	// Other checks read the cached value without a lock, so it must not change.
	next := *c
	next.phases = make([]phase, len(h.Limits))
	rooms := make([]room, len(h.Limits))
	newest := make([]room, len(h.Limits))
	bases := make([][]int64, len(h.Limits))
	for i, l := range h.Limits {
		at := c.phase(i, l, wall)
		next.phases[i] = at
		rooms[i] = c.weighers[i].roomAt(at)
		bases[i] = c.weighers[i].baseDivision(at)
		newest[i] = c.weighers[i].newestRoom()
	}

	next.limits = s.reduceLimits(h, rooms, newest)
	for i, l := range h.Limits {
		if l.Kind.Windowed() {
			at := algorithms.Instant{Wall: wall + clockDifference}
			next.limits[i].Until = at.Wall + int64(l.WindowLeft(at))
		}
	}

	for i, amounts := range bases {
		if amounts != nil {
			next.limits[i].inWindow = &windowDivision{d.names, amounts}
		}
	}

	cache.Store(&next)
	return next.limits
}

// stillHolds reports whether c's limits still hold at wall.
func (c *movingLimits) stillHolds(limits []*Limit, wall int64) bool {
	for i, l := range limits {
		// An owner whose clock is ahead may be in the next window already.
		until := c.limits[i].Until
		if until != 0 && wall+clockDifference >= until ||
			c.phase(i, l, wall) != c.phases[i] {
			return false
		}
	}
	return true
}

// phase returns the phase of limit i at wall. The clock of the counter's owner
// may be a second behind or ahead.
func (c *movingLimits) phase(i int, l *Limit, wall int64) (p phase) {
	d := c.division
	if l.Kind.IsBucket() {
		p.before = d.recorded(wall - clockDifference - c.weighers[i].fillTime)
		return p
	}
	last := l.WindowStart(wall + clockDifference)
	p.before, p.after = d.recorded(l.WindowStart(wall-clockDifference)), d.recorded(last)
	// The count stops at the first version that this region certainly had not
	// honoured when the window began: one whose notHonouredAt is more than a second
	// later.
	for int(p.maybeHonoured) < len(d.notHonouredAt) && last >= d.notHonouredAt[p.maybeHonoured]-clockDifference {
		p.maybeHonoured++
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
	for _, v := range r.all() {
		if v.alternatives == nil && len(v.key) == len(other.key) || slices.Equal(v.Key, other.Key) {
			return v
		}
	}
	return nil
}

// newMovingLimits returns the weighers for a hit's limits; severalVersionShares
// computes the limits from them.
func (s *Set) newMovingLimits(m *Match, h *Hit) *movingLimits {
	d := s.division
	c := &movingLimits{division: d, lists: slices.Clone(m.shareLists), weighers: make([]weigher, len(h.Limits))}
	for i, l := range h.Limits {
		w := weigher{
			region: slices.Index(d.names, d.region), recorded: len(d.at), doubtful: d.doubtful, bucket: l.Kind.IsBucket(),
		}

		for j := range s.shares.Held {
			v := &s.shares.Held[j]
			rule, list := v.limitsFor(m, h.Rule)
			k := slices.IndexFunc(list, func(other *Limit) bool { return other.ID == l.ID })
			if k < 0 {
				w.add(nil, nil, nil, d.names)
				continue
			}
			w.add(rule, list[k], v.Names, d.names)
		}

		w.prepare()
		c.weighers[i] = w
	}

	return c
}

// add adds a version's limit, which is nil if the version has none.
func (w *weigher) add(rule *Rule, l *Limit, committed, regions []string) {
	if l == nil {
		w.held = append(w.held, unboundedShares(len(regions)))
		w.split = append(w.split, nil)
		w.amounts = append(w.amounts, 0)
		return
	}

	v := divide(regions, committed, rule, l)
	w.held = append(w.held, v)
	w.fillTime = max(w.fillTime, v.fillTime(l))
	index := -1
	if w.region >= 0 {
		index = slices.Index(committed, regions[w.region])
	}

	w.amounts = append(w.amounts, l.Amount)
	w.split = append(w.split, func(amount int64) int64 {
		if index < 0 {
			return 0
		}
		return document.Split(amount, committed, rule.Regions)[index]
	})
}

// fillTime returns the time that the slowest region's bucket takes to fill, in ns,
// or 0 for other limits.
func (v heldShares) fillTime(l *Limit) int64 {
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

// reduceLimits returns the limits of a hit reduced to rooms. newest is what the
// version in force gives the region.
func (s *Set) reduceLimits(h *Hit, rooms, newest []room) []*Limit {
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

		all[i].Amount = rooms[i].amount
		all[i].BorrowTarget = s.borrowTarget(l, max(rooms[i].amount, newest[i].amount))

		if l.Kind.IsBucket() {
			all[i].Burst = rooms[i].burst
			if rooms[i].amount == 0 || rooms[i].burst == 0 {
				all[i].Amount, all[i].Burst = 0, 0 // a bucket that never refills gives nothing
			}
		}
	}

	return out
}

// borrowTarget returns the [Limit.BorrowTarget] of l, given the region's share.
// It is 0 if the region is not committed.
func (s *Set) borrowTarget(l *Limit, share int64) int64 {
	names := s.shares.Held[len(s.shares.Held)-1].Names
	switch {
	case l.Kind != algorithms.FixedWindow || l.Amount == 0 || !slices.Contains(names, s.division.region):
		return 0
	case share > 0:
		return share
	}
	return (l.Amount-1)/int64(len(names)) + 1
}

// Division returns each region's part of a global rule's limit in the current
// window. It ignores that unrecorded versions may lower shares. limit should
// come from Share; for any other, Division returns [Set.SharesOf].
func (s *Set) Division(rule *Rule, limit *Limit) map[string]int64 {
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
// wall clock in Unix nanoseconds if the process had authority when it read the
// clock, or later; otherwise 0. The process must not have announced set as
// applied before the call.
func (h *NotHonoured) Stamp(set *Set, now int64) *Set {
	x := set.shares
	if x == nil {
		return set
	}

	at := make(map[int64]int64, len(x.Held))
	newest := h.newest
	known := false
	for _, v := range x.Held {
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

	stamped := &Shares{Region: x.Region, Held: slices.Clone(x.Held)}
	for i := range stamped.Held {
		stamped.Held[i].NotHonouredAt = at[stamped.Held[i].Set.Version]
	}

	return set.WithShares(stamped)
}
