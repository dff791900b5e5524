package rules

import (
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// clockDifference is how far the clocks of nodes may differ, in ns. Shares are
// safe for windows that begin this much earlier or later.
const clockDifference = int64(time.Second)

// MaxRecordedAt bounds HeldVersion.RecordedAt, in Unix ms: the year 2109.
const MaxRecordedAt = 1 << 42

// HeldVersion is the part of a rules version that shares depend on: its set,
// and the regions that divide its global limits.
type HeldVersion struct {
	Set   *Set
	Names []string // the committed regions, sorted
	// RecordedAt is the wall time, in Unix ms, from which no region uses an older
	// version. It is 0 until the version is recorded.
	RecordedAt int64
	// Doubtful means that RecordedAt was not recorded yet when the primary
	// changed, so the previous primary may have recorded an earlier time.
	Doubtful bool
	// NotHonouredAt is a wall time, in Unix ns on the clock of the process that
	// uses the versions, at which its region had certainly not honoured the
	// version yet. It is 0 if unknown. See [NotHonoured].
	NotHonouredAt int64
}

// Shares determines a set's global limits in one region. It is immutable.
//
// While regions may use different versions of the rules, a share is small
// enough for all of them; see [Set.Share].
type Shares struct {
	Region string
	// Held are the versions that still count, oldest first; recorded ones precede
	// the rest. The last is the set's own.
	Held []HeldVersion
}

// division holds what a set needs to divide limits. Cached limits are tagged
// with their division, so it must not refer to a set: that would keep old
// versions in memory.
type division struct {
	region string
	// onlyLastFrom is a wall time in Unix ns. Windows that begin at or after it
	// depend only on the last version.
	onlyLastFrom int64
	// maxFill bounds the time that any bucket of any version takes to fill, in ns.
	maxFill       int64
	at            []int64  // Unix ns, for each recorded version
	notHonouredAt []int64  // for each version: HeldVersion.NotHonouredAt, but no later than that of any later version
	doubtful      []bool   // for each version
	names         []string // the regions of all versions, each once
	soleRegion    bool     // no version has any other region
}

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

	// The times are made to ascend, so that a phase need only count how many
	// there are.
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
			h.Limits = s.movingShares(m, h, wall)
		case !d.soleRegion || len(h.Rule.Regions) > 0:
			h.Limits = s.soleShares(h)
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

// shareCache caches a region's shares of a list of limits, so that a check
// allocates nothing. The first limit of each list of a global rule has one.
type shareCache struct {
	number int32 // of the list, in its set; from 1
	sole   atomicSole
	moving atomicMoving
}

// soleLimits holds the shares when only the last version counts.
type soleLimits struct {
	division *division
	limits   []*Limit
}

// movingLimits holds the shares when several versions count.
type movingLimits struct {
	division *division
	lists    []int32 // the list number that each earlier version has for the same subject; 0 for none
	weighers []weigher
	phases   []phase // for each limit, at the time for which limits was computed
	limits   []*Limit
}

// phase determines which versions count for one limit at one moment.
type phase struct {
	// before and after are the numbers of versions recorded when the window began:
	// before if the clock of the counter's owner is a second behind, after if it is
	// a second ahead. For a bucket, after is 0.
	before, after uint8
	// maybeHonoured is the number of versions that this region may have honoured by then.
	maybeHonoured uint8
}

// room is the amount and burst that a share may have.
type room struct{ amount, burst int64 }

// soleShares returns the shares of a hit's limits when only the last version counts.
func (s *Set) soleShares(h *Hit) []*Limit {
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

// movingShares returns the shares of a hit's limits when more than one version may count.
func (s *Set) movingShares(m *Match, h *Hit, wall int64) []*Limit {
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

	// The cached value is in use by other checks, which take no lock.
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
	// A version whose notHonouredAt is more than a second after the window began
	// is left out: when the window began, this region had not honoured it.
	for int(p.maybeHonoured) < len(d.notHonouredAt) && last >= d.notHonouredAt[p.maybeHonoured]-clockDifference {
		p.maybeHonoured++
	}
	return p
}

// recorded returns the number of versions recorded by start, in Unix ns.
func (d *division) recorded(start int64) uint8 {
	n := len(d.at)
	for n > 0 && d.at[n-1] > start {
		n--
	}
	return uint8(n)
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

// newMovingLimits returns the weighers for a hit's limits; movingShares
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

		// The share gets a cache of its own: the old one has the undivided limits,
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

// borrowTarget returns how much of a fixed window a region tries to keep
// available by borrowing, given its share; see [Limit.BorrowTarget]. It is 0 if
// the region is not committed.
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

// windowDivision is how regions divide a limit in the current window.
type windowDivision struct {
	names   []string
	amounts []int64
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
// applied it. A process that has authority and has not applied a version thus
// proves that its region has not honoured it. A process without authority
// proves nothing, because the region does not wait for it.
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
