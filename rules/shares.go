package rules

import (
	"math"
	"slices"
	"time"
)

// skew is by how much the clocks of nodes may differ. A window is taken to begin so much later than the clock says.
const skew = int64(time.Second)

// MaxRecordedAt bounds View.At: in the year 2109.
const MaxRecordedAt = 1 << 42

// View is a version of the rules as far as it matters to shares: its set, and the regions that divide its global limits.
type View struct {
	Set   *Set
	Names []string // the committed regions, in order of name
	// At, Unix ms: from this wall time on no region goes by an older version. 0: that is not recorded.
	At int64
}

// Shares says what a set's global limits are in one region. It is immutable.
//
// While more than one version of the rules may be in use somewhere, a share is small enough for all of them: see
// [Set.Share].
type Shares struct {
	Region string
	// Views are the versions that still count, oldest first. The last is the set's own. Those that are recorded come first.
	Views []View
}

// division is what a set needs at hand to divide limits. It is also what tells the limits that it made from those that
// another one made, so it refers to no set: limits would keep old versions in memory.
type division struct {
	region string
	// last is the wall time, Unix ns, from which on only the last view counts in windows that begin.
	last int64
	// fill is how long any bucket of any view takes to fill at most, ns.
	fill  int64
	at    []int64  // Unix ns, of each view that is recorded
	names []string // of all views, each once
	alone bool     // the region is the only one that ever was in any view
}

// WithShares returns s for a region: a copy that has all in common with s but the shares. nil is for a set whose global
// limits count whole.
func (s *Set) WithShares(x *Shares) *Set {
	out := *s
	out.shares, out.division = x, nil
	if x == nil || len(x.Views) == 0 {
		out.shares = nil
		return &out
	}
	d := &division{region: x.Region, last: math.MaxInt64}
	for i, v := range x.Views {
		if v.At > 0 && len(d.at) == i && i < math.MaxUint8 {
			d.at = append(d.at, min(v.At, MaxRecordedAt)*int64(time.Millisecond))
		}
		for _, name := range v.Names {
			if !slices.Contains(d.names, name) {
				d.names = append(d.names, name)
			}
		}
		d.fill = max(d.fill, int64(v.Set.globals.fill))
	}
	slices.Sort(d.names)
	d.alone = len(d.names) == 1 && d.names[0] == x.Region
	switch last := len(x.Views) - 1; {
	case last == 0 || len(d.names) <= 1:
		d.last = math.MinInt64
	case len(d.at) > last:
		d.last = d.at[last]
	}
	out.division = d
	return &out
}

// Shares returns what WithShares was given, nil where global limits count whole: in tools, in replays.
func (s *Set) Shares() *Shares { return s.shares }

// Share replaces the limits of m's global hits by this region's shares of them, as they count at wall, Unix nanoseconds by
// the clock of the node that asks. They are the same counters. Match or MatchKey of s comes before it; [Rule.Lowered] comes
// after it, and lowers the shares. It allocates nothing as long as what it returned last for a list of limits still holds.
//
// What counts in a window, of whose beginning a second is taken off because clocks differ: of the recorded views, those from
// the last one on that was recorded before the window began. Its share holds, and of each later one that is no smaller for
// any region than what that region may have used of the window; another one lowers it by region. Where none was recorded
// before, that may be anything. No later beginning of the window may allow less. Views that are not recorded, the candidate
// among them, can only lower the share. A bucket's window is the time it takes to fill. A version without such a limit
// allows anything.
func (s *Set) Share(m *Match, wall int64) {
	d := s.division
	if d == nil {
		return
	}
	for i := range m.Hits {
		h := &m.Hits[i]
		if h.Rule.Scope != GlobalScope || h.Limits[0].dividing == nil {
			continue
		}
		switch {
		case !d.settled(h.Limits, wall):
			h.Limits = s.moving(m, h, wall)
		case !d.alone || len(h.Rule.Regions) > 0:
			h.Limits = s.settled(h)
		}
	}
}

// settled reports whether only the last view counts for limits at wall.
func (d *division) settled(limits []*Limit, wall int64) bool {
	if d.last == math.MinInt64 {
		return true
	}
	for _, l := range limits {
		start := wall - skew - d.fill
		if !l.Kind.Bucket() {
			start = l.WindowStart(wall - skew)
		}
		if start < d.last {
			return false
		}
	}
	return true
}

// SharesOf returns what each committed region has of a limit of a global rule, be it divided or not, in the version in
// force: of a bucket, of its burst. nil where limits count whole.
func (s *Set) SharesOf(rule *Rule, limit *Limit) map[string]int64 {
	if s.shares == nil || rule.Scope != GlobalScope {
		return nil
	}
	if limit.undivided != nil {
		limit = limit.undivided
	}
	names := s.shares.Views[len(s.shares.Views)-1].Names
	v := divide(names, names, rule, limit)
	out := make(map[string]int64, len(names))
	for i, name := range names {
		if out[name] = v.amounts[i]; limit.Kind.Bucket() {
			if out[name] = v.bursts[i]; v.amounts[i] == 0 {
				out[name] = 0
			}
		}
	}
	return out
}

// dividing keeps a list of limits as its region's shares, so that a check makes nothing. There is one for each list of
// limits of a global rule, at its first limit.
type dividing struct {
	number  int32 // of the list, in its set; from 1
	settled atomicSettled
	moving  atomicMoving
}

// settledLimits are shares by the last view.
type settledLimits struct {
	by     *division
	limits []*Limit
}

// movingLimits are shares by several views.
type movingLimits struct {
	by     *division
	lists  []int32 // what the views before say about the same subject: numbers of lists, 0 for none
	spans  []int64 // of each limit that is a bucket, the time it takes to fill; ns
	tables [][]room
	phases []uint8 // of each limit, how many views were recorded before its window began
	limits []*Limit
}

// room is what a share has room for.
type room struct{ amount, burst int64 }

// settled is the shares of a hit's limits while only the last view counts.
func (s *Set) settled(h *Hit) []*Limit {
	d, kept := s.division, &h.Limits[0].dividing.settled
	if c := kept.Load(); c != nil && c.by == d {
		return c.limits
	}
	names := s.shares.Views[len(s.shares.Views)-1].Names
	rooms := make([]room, len(h.Limits))
	if own := slices.Index(names, d.region); own >= 0 {
		for i, l := range h.Limits {
			rooms[i] = divide(names, names, h.Rule, l).of(own)
		}
	}
	c := &settledLimits{by: d, limits: shared(h.Limits, rooms)}
	kept.Store(c)
	return c.limits
}

// moving is the shares of a hit's limits while more than one view may count.
func (s *Set) moving(m *Match, h *Hit, wall int64) []*Limit {
	d, kept := s.division, &h.Limits[0].dividing.moving
	views := s.shares.Views
	m.lists = m.lists[:0]
	for i := range views[:len(views)-1] {
		number := int32(0)
		if _, list := views[i].list(m, h.Rule); len(list) > 0 {
			number = list[0].dividing.number
		}
		m.lists = append(m.lists, number)
	}
	c := kept.Load()
	if c == nil || c.by != d || !slices.Equal(c.lists, m.lists) {
		c = s.weigh(m, h)
	} else if c.holds(h.Limits, wall) {
		return c.limits
	}
	next := *c
	next.phases = make([]uint8, len(h.Limits))
	rooms := make([]room, len(h.Limits))
	for i, l := range h.Limits {
		next.phases[i] = c.phase(i, l, wall)
		rooms[i] = c.tables[i][next.phases[i]]
	}
	next.limits = shared(h.Limits, rooms)
	kept.Store(&next)
	return next.limits
}

// holds reports whether c's limits are those at wall.
func (c *movingLimits) holds(limits []*Limit, wall int64) bool {
	for i, l := range limits {
		if c.phase(i, l, wall) != c.phases[i] {
			return false
		}
	}
	return true
}

// phase is how many views were recorded before the present window of limit i began.
func (c *movingLimits) phase(i int, l *Limit, wall int64) uint8 {
	start := wall - skew
	if l.Kind.Bucket() {
		start -= c.spans[i]
	} else {
		start = l.WindowStart(start)
	}
	recorded := len(c.by.at)
	for recorded > 0 && c.by.at[recorded-1] > start {
		recorded--
	}
	return uint8(recorded)
}

// list is what a view says about m's subject of a global rule, and by which rule: nothing, if the view has no such rule.
func (v *View) list(m *Match, rule *Rule) (*Rule, []*Limit) {
	r := v.Set.byName[rule.Name]
	if r == nil || r.Scope != GlobalScope || len(r.key) != len(rule.key) {
		return nil, nil
	}
	return r, r.limitsOf(m, rule)
}

// weigh works out what each of a hit's limits leaves to the region, whenever its window began.
func (s *Set) weigh(m *Match, h *Hit) *movingLimits {
	d := s.division
	c := &movingLimits{by: d, lists: slices.Clone(m.lists), spans: make([]int64, len(h.Limits)), tables: make([][]room, len(h.Limits))}
	for i, l := range h.Limits {
		vectors := make([]vector, 0, len(s.shares.Views))
		for j := range s.shares.Views {
			v := &s.shares.Views[j]
			rule, list := v.list(m, h.Rule)
			k := slices.IndexFunc(list, func(other *Limit) bool { return other.ID == l.ID })
			if k < 0 {
				vectors = append(vectors, boundless(len(d.names)))
				continue
			}
			vectors = append(vectors, divide(d.names, v.Names, rule, list[k]))
			c.spans[i] = max(c.spans[i], vectors[j].span(list[k]))
		}
		c.tables[i] = rooms(vectors, len(d.at), slices.Index(d.names, d.region))
	}
	return c
}

// shared makes limits that have room for no more than rooms.
func shared(limits []*Limit, rooms []room) []*Limit {
	all := make([]Limit, len(limits))
	out := make([]*Limit, len(limits))
	for i, l := range limits {
		all[i], out[i] = *l, &all[i]
		all[i].undivided, all[i].Whole = l, l.Capacity()
		all[i].dividing = nil
		if l.lowering != nil {
			all[i].lowering = &lowering{}
		}
		all[i].Amount = rooms[i].amount
		if l.Kind.Bucket() {
			if all[i].Burst = rooms[i].burst; rooms[i].amount == 0 || rooms[i].burst == 0 {
				all[i].Amount, all[i].Burst = 0, 0 // what never comes back is never given
			}
		}
	}
	return out
}
