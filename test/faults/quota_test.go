//go:build faults

package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// quotaCheck computes what a quota over all regions may admit: G8, and in each
// region what G4, G5 and G7 allow beyond.
type quotaCheck struct {
	quota *quota
	wall  int64                      // from boottime to the wall clock
	limit func(from, to int64) int64 // in force in a span, on boottime; the largest of several
	// regions are the promises of each region about its share; a hit's node is its
	// index in the region.
	regions []promise
	home    func(node int) (region, place int)
}

// quotaCheck is the checker of one subject.
func (g *globe) quotaCheck(q *quota) *quotaCheck {
	c := &quotaCheck{quota: q, wall: g.shift, limit: func(from, to int64) int64 {
		limit, _ := g.limitIn(q, from, to)
		return limit
	}}
	size := len(g.regions[0].nodes)
	c.home = func(node int) (int, int) { return node / size, node % size }
	for r, f := range g.regions {
		part := q.rule
		part.limit, part.burst = q.share(r), (q.burst+2)/3
		c.regions = append(c.regions,
			promise{rule: &part, nodes: int64(size), wall: g.shift, faults: f.faults, moves: f.rings.moves})
	}
	return c
}

// byRegion splits hits by region, and records who the owners were.
func (c *quotaCheck) byRegion(hits []hit) [][]hit {
	list := make([][]hit, len(c.regions))
	for _, h := range hits {
		region, place := c.home(h.node)
		h.node = place
		list[region] = append(list[region], h)
	}
	for r := range c.regions {
		c.regions[r].see(list[r])
	}
	return list
}

// windowSum is what one window certainly admitted.
type windowSum struct {
	sum     int64
	region  [3]int64
	excused [3]int64 // at most this much may be missing in the counters, or was decided without them
}

// windows sums up hits by window; between holds hits around a turn, by the earlier window.
func (c *quotaCheck) windows(hits []hit) (windows, between map[int64]*windowSum) {
	windows, between = map[int64]*windowSum{}, map[int64]*windowSum{}
	w := int64(c.quota.per)
	for r, list := range c.byRegion(hits) {
		uses, turns := map[int64]*windowUse{}, map[int64]*windowUse{}
		check := limitCheck{c.regions[r]}
		for _, h := range list {
			first, last := (h.sent+c.wall-int64(edge))/w, (h.got+c.wall+int64(edge))/w
			to := uses
			if first+1 == last {
				to = turns
			} else if first != last {
				continue
			}
			if to[first] == nil {
				to[first] = &windowUse{alone: map[int]int64{}}
			}
			check.add(to[first], h)
		}
		c.addUp(windows, r, uses)
		c.addUp(between, r, turns)
	}
	return windows, between
}

func (c *quotaCheck) addUp(windows map[int64]*windowSum, r int, uses map[int64]*windowUse) {
	for at, u := range uses {
		if windows[at] == nil {
			windows[at] = &windowSum{}
		}
		windows[at].sum += u.sum()
		windows[at].region[r] = u.sum()
		windows[at].excused[r] = c.excuse(r, at, u)
	}
}

// excuse returns how much of a region's hits in a window its counters may not
// know, as its guarantees allow.
func (c *quotaCheck) excuse(r int, window int64, u *windowUse) int64 {
	p := &c.regions[r]
	from, to := window*int64(c.quota.per)-c.wall, (window+1)*int64(c.quota.per)-c.wall
	share := p.rule.limit
	n := u.tail + u.cut
	for _, alone := range u.alone {
		n += min(alone, p.share(share))
	}
	if u.standby > 0 {
		n += min(u.standby, p.share(share)*int64(max(1, p.faultsBefore(to)-p.faultsBefore(from))))
	}
	// Counters that were lost with their copy, or come from a checkpoint, begin
	// with a share that may have been spent or lent.
	if slices.ContainsFunc(p.faults,
		func(f fault) bool { return (f.kind == together || f.kind == saved) && f.from < to && from < f.to }) {
		n += share
	}
	return n
}

func (c *quotaCheck) name(w int64) string {
	return "window at " + time.Unix(0, w*int64(c.quota.per)).UTC().Format("15:04:05")
}

// check judges the admitted hits of one subject of a fixed window. A hit whose
// window is uncertain counts only where two windows are judged together.
func (c *quotaCheck) check(hits []hit) error {
	windows, between := c.windows(hits)
	excused := func(s *windowSum) int64 { return s.excused[0] + s.excused[1] + s.excused[2] }
	may := func(w int64) int64 {
		per := int64(c.quota.per)
		return c.limit(w*per-c.wall, (w+1)*per-c.wall) + excused(windows[w])
	}
	for w, s := range windows {
		if s.sum > may(w) {
			return fmt.Errorf("%s: %+v: %d admitted in all regions, at most %d may be", c.name(w), *s, s.sum, may(w))
		}
	}
	for w, s := range between {
		a, b := windows[w], windows[w+1]
		if a == nil || b == nil {
			continue
		}
		if most := may(w) + may(w+1) + excused(s); a.sum+s.sum+b.sum > most {
			return fmt.Errorf("%s and the next: %d, %+v in between, %d: at most %d together",
				c.name(w), a.sum, *s, b.sum, most)
		}
	}
	return nil
}

// checkSpans judges the admitted hits of one subject of a bucket: over any span
// D at most burst + rate × (D + TTL), and a unit per region, because a partly
// owed unit counts as a whole one.
func (c *quotaCheck) checkSpans(hits []hit) error {
	s := stream{what: "in all regions", capacity: c.quota.capacity(), limit: c.limit(0, 1<<62),
		ttl: c.quota.ttl(), slack: int64(len(c.regions))}
	for r, list := range c.byRegion(hits) {
		for _, h := range list {
			if h.by != "fallback" && h.by != "standby" && c.regions[r].excuseOf(h) == none {
				s.hits = append(s.hits, h)
			}
		}
	}
	return s.check(&spanCheck{promise{rule: &c.quota.rule, wall: c.wall}})
}

// judgeQuotas checks that no more was admitted than promised.
func (m *market) judgeQuotas() (wrong []error) {
	for _, s := range m.all {
		if s.quota.regional {
			continue
		}
		c := m.globe.quotaCheck(s.quota)
		check := c.check
		if s.quota.algorithm != "fixed-window" {
			check = c.checkSpans
		}
		if err := check(s.hits); err != nil {
			wrong = append(wrong, fmt.Errorf("%s %s %v: %w", s.quota.name, s.demand.key, s.demand.rate, err))
		}
	}
	return wrong
}

// tally is what was measured of whole windows.
type tally struct {
	windows, exact int   // in which there was demand for all and nothing was cut; exactly the limit
	least          int64 // in thousandths of the limit
	alone, shares  int   // windows of a busy region that was cut off from all others; exactly its share
	minAlone       int64 // in thousandths of its share
}

// service counts the windows with enough demand, and what was admitted in them.
// Hits at a turn count in both windows, so that a deficit is proven.
func (m *market) service() (t tally, wrong []error) {
	t.least, t.minAlone = 1000, 1000
	g := m.globe
	for _, s := range m.all {
		q, w := s.quota, int64(s.quota.per)
		if q.regional || q.algorithm != "fixed-window" {
			continue
		}
		for n := (m.begun+g.shift)/w + 1; (n+1)*w <= m.closed+g.shift; n++ {
			from, to := n*w-g.shift, (n+1)*w-g.shift
			if m.stalled(from, to) {
				continue
			}
			all, region := s.generous(g, from, to)
			limit, settled := g.limitIn(q, from, to)
			if settled && q.exhausted(s.demand) && g.calm(from, to, settling) {
				t.windows++
				t.least = min(t.least, all*1000/limit)
				if all >= limit {
					t.exact++
				} else if all*1000 < limit*(1000-stingy) {
					wrong = append(wrong,
						fmt.Errorf("%s %s %v: window at %s: only %d %v of %d admitted", q.name,
							s.demand.key, s.demand.rate, clockOf(from+g.shift), all, region, limit))
				}
			}
			for r := range g.regions {
				if len(g.eras) > 0 || !q.busy(s.demand, r) || !g.alone(r, from, to) {
					continue
				}
				share := q.share(r)
				t.alone++
				t.minAlone = min(t.minAlone, region[r]*1000/share)
				if region[r] >= share {
					t.shares++
				} else if region[r]*1000 < share*(1000-stingy) {
					wrong = append(wrong,
						fmt.Errorf("%s %s: window at %s: %s was cut off and admitted only %d of its share of %d", q.name, s.demand.key, clockOf(from+g.shift), regionNames[r], region[r], share))
				}
			}
		}
	}
	return t, wrong
}

// generous returns what may have been admitted in a span, in all regions and by region.
func (s *seen) generous(g *globe, from, to int64) (all int64, region [3]int64) {
	for _, h := range s.hits {
		if h.got+int64(edge) > from && h.sent-int64(edge) < to {
			all += h.cost
			region[g.home[h.node]] += h.cost
		}
	}
	return all, region
}

func clockOf(wall int64) string { return time.Unix(0, wall).UTC().Format("15:04:05.000") }

func TestCheckQuotas(t *testing.T) {
	const second = int64(time.Second)
	hits := func(n int, by string, node int, at int64) (list []hit) {
		for range n {
			list = append(list, hit{by: by, node: node, cost: 1, sent: at, got: at + 1})
		}
		return list
	}
	join := func(lists ...[]hit) []hit { return slices.Concat(lists...) }
	kill := []fault{{kind: killed, node: 0, from: 15 * second, made: 15 * second, to: 16 * second}}
	both := []fault{{kind: together, node: 0, from: 15 * second, made: 15 * second, to: 16 * second}}
	for _, test := range []struct {
		name   string
		hits   []hit
		most   int64
		faults []fault // in the first region
		wrong  string
	}{
		{name: "the limit, in each window", hits: join(hits(9, "owner", 0, 15*second), hits(9, "lease", 5, 25*second))},
		{name: "the limit, in all regions",
			hits: join(hits(4, "owner", 0, 15*second), hits(3, "owner", 2, 15*second), hits(2, "lease", 5, 18*second))},
		{name: "one more, in another region",
			hits:  join(hits(9, "owner", 0, 15*second), hits(1, "owner", 4, 16*second)),
			wrong: "at most 9"},
		{name: "one more, in each region less than its share",
			hits:  join(hits(3, "owner", 0, 11*second), hits(3, "owner", 2, 15*second), hits(4, "lease", 5, 18*second)),
			wrong: "at most 9"},
		{name: "in between", hits: join(hits(9, "owner", 0, 15*second), hits(1, "owner", 4, 20*second))},
		{name: "in between, too much for both",
			hits:  join(hits(9, "owner", 0, 15*second), hits(1, "owner", 4, 20*second), hits(9, "owner", 2, 22*second)),
			wrong: "together"},
		{name: "a limit that was larger", hits: hits(12, "owner", 0, 15*second), most: 12},
		{name: "more than the larger limit", hits: hits(13, "owner", 0, 15*second), most: 12, wrong: "at most 12"},
		{name: "killed, forgotten",
			hits: join(hits(2, "owner", 0, 15*second-1000), hits(3, "owner", 1, 18*second),
				hits(6, "owner", 4, 18*second)),
			faults: kill},
		{name: "killed, another region's hits",
			hits: join(hits(3, "owner", 0, 14*second), hits(2, "owner", 2, 15*second-1000),
				hits(5, "owner", 4, 18*second)),
			faults: kill, wrong: "at most 9"},
		{name: "killed, a standby",
			hits: join(hits(9, "owner", 4, 14*second), hits(2, "standby", 1, 16*second)), faults: kill},
		{name: "killed, a standby above its share",
			hits: join(hits(9, "owner", 4, 14*second), hits(3, "standby", 1, 16*second)), faults: kill,
			wrong: "at most 11"},
		{name: "begun anew, with a share",
			hits: join(hits(9, "owner", 4, 14*second), hits(3, "owner", 1, 17*second)), faults: both},
		{name: "begun anew, with more",
			hits: join(hits(9, "owner", 4, 14*second), hits(4, "owner", 1, 17*second)), faults: both,
			wrong: "at most 12"},
	} {
		g := &globe{t: t,
			regions: []*fleet{{nodes: make([]*node, 2), faults: test.faults},
				{nodes: make([]*node, 2)}, {nodes: make([]*node, 2)}}}
		c := g.quotaCheck(&quota{rule: rule{name: "nine", algorithm: "fixed-window", limit: 9,
			per: tenth, hybrid: true}})
		if test.most > 0 {
			c.limit = func(from, to int64) int64 { return test.most }
		}
		if err := c.check(test.hits); (err == nil) != (test.wrong == "") || err != nil &&
			!strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: have %v, want %q", test.name, err, test.wrong)
		}
	}
	g := &globe{t: t,
		regions: []*fleet{{nodes: make([]*node, 2)}, {nodes: make([]*node, 2)}, {nodes: make([]*node, 2)}}}
	c := g.quotaCheck(&quota{rule: rule{name: "b", algorithm: "token-bucket", limit: 100, burst: 30,
		per: tenth, hybrid: true}})
	// 30, five in the life of a lease, and one per region.
	for n, want := range map[int]string{38: "", 39: "39 admitted"} {
		list := join(hits(10, "lease", 0, second), hits(10, "owner", 2, second), hits(n-20, "owner", 5, second))
		if err := c.checkSpans(list); (err == nil) != (want == "") || err != nil &&
			!strings.Contains(err.Error(), want) {
			t.Errorf("%d of a bucket: have %v, want %q", n, err, want)
		}
	}
}

func TestEras(t *testing.T) {
	g := &globe{eras: []era{{from: 100, limits: map[string]int64{"q": 1200}},
		{from: 200, limits: map[string]int64{"q": 1200}, settled: true},
		{from: 300, limits: map[string]int64{"q": 600}, settled: true}}}
	q := &quota{rule: rule{name: "q", limit: 900}}
	for _, test := range []struct {
		from, to, want int64
		settled        bool
	}{{0, 50, 900, true}, {50, 150, 1200, false}, {120, 150, 1200, false}, {120, 250, 1200,
		false}, {220, 250, 1200, true}, {250, 350, 1200, false}, {350, 400, 600, true}} {
		if have, settled := g.limitIn(q, test.from, test.to); have != test.want || settled != test.settled {
			t.Errorf("from %d to %d: have %d, %v, want %d, %v", test.from, test.to, have, settled,
				test.want, test.settled)
		}
	}
}

func TestShares(t *testing.T) {
	for limit, want := range map[int64][3]int64{900: {300, 300, 300}, 10: {3, 3, 4}, 11: {4, 3, 4}, 2: {1, 0, 1}} {
		q := quota{rule: rule{limit: limit}}
		expect.Equal(t, [3]int64{q.share(0), q.share(1), q.share(2)}, want, "shares of %d", limit)
	}
}
