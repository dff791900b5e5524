//go:build faults

package faults

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// worldQuotas are the quotas of nearly all scenarios with regions: n subjects
// of a fixed window, each with its own pattern of demand, and buckets.
func worldQuotas(t *testing.T, n int) []quota {
	window := quota{rule: rule{name: "window", algorithm: "fixed-window", limit: 900, per: tenth,
		hybrid: true, cost: 5}}
	bucket := quota{rule: rule{name: "bucket", algorithm: "token-bucket", limit: 900, burst: 90,
		per: time.Minute, hybrid: true, cost: 1}}
	large := quota{rule: rule{name: "large", algorithm: "token-bucket", limit: 900, burst: 300,
		per: tenth, hybrid: true, cost: 3}}
	mine := (seed + runs[t.Name()]) * 1000
	for i := range n {
		window.demands = append(window.demands, pattern(&window, mine+uint64(i)))
	}
	for i := range 2 {
		bucket.demands = append(bucket.demands, pattern(&bucket, mine+uint64(i)))
	}
	large.demands = append(large.demands, pattern(&large, mine+500))
	return []quota{window, bucket, large}
}

// only returns a demand in one region.
func only(key string, region int, rate float64) (d demand) {
	d.key, d.rate[region] = key, rate
	return d
}

// run runs what under demand, undoes all faults, and judges what clients saw.
// It returns what was measured of windows.
func (g *globe) run(what func(m *market)) (*market, tally) {
	g.t.Helper()
	for _, f := range g.regions {
		f.rings.watch(f)
	}
	m := g.market()
	what(m)
	g.mend()
	for _, f := range g.regions {
		f.heal()
	}
	g.whole(agreeTime + 5*time.Second)
	m.end()
	for _, f := range g.regions {
		f.rings.end()
		f.faults = slices.Concat(f.stalled(&m.watch), f.leaderless(), f.faults)
	}
	for _, err := range m.judgeQuotas() {
		g.t.Error(err)
	}
	t, wrong := m.service()
	g.t.Logf("%d windows in which all was asked for, %d of them exactly the limit, the least %.1f %%; %d of regions cut off, %d of them exactly the share, the least %.1f %%",
		t.windows, t.exact, float64(t.least)/10, t.alone, t.shares, float64(t.minAlone)/10)
	for _, err := range wrong {
		if len(m.watch.stalls) > 0 {
			g.t.Logf("%v, but the machine stalled", err)
		} else {
			g.t.Error(err)
		}
	}
	return m, t
}

// TestG8_OneQuota: without faults, if only one region has demand, the others
// lend it their shares; if all have, they admit the limit together. Checks take
// no longer than without regions.
func TestG8_OneQuota(t *testing.T) {
	list := worldQuotas(t, 10)
	const rate = 1.5 * 900 / 10
	list = append(list,
		quota{rule: rule{name: "near", algorithm: "fixed-window", limit: 900, per: tenth,
			hybrid: true, cost: 1}, regional: true},
		quota{rule: rule{name: "far", algorithm: "fixed-window", limit: 900, per: tenth, hybrid: true, cost: 1}},
		quota{rule: rule{name: "minute", algorithm: "fixed-window", limit: 900, per: time.Minute,
			hybrid: true, cost: 1}})
	near, far, minute := &list[len(list)-3], &list[len(list)-2], &list[len(list)-1]
	for i := range 2 {
		near.demands = append(near.demands, only(fmt.Sprintf("near-%d", i), 1, rate))
		far.demands = append(far.demands, only(fmt.Sprintf("far-%d", i), 1, rate))
	}
	if !testing.Short() {
		minute.demands = []demand{only("minute", 2, 1.5*900/60)}
	}
	g := newGlobe(t, 2, list)
	m, tally := g.run(func(m *market) {
		g.turn(tenth, 0)
		if testing.Short() {
			g.pass(2 * tenth)
		} else {
			g.turn(time.Minute, time.Minute)
		}
	})
	m.noneAlone()
	if tally.exact < tally.windows && len(m.watch.stalls) == 0 {
		t.Errorf("only %d of %d windows admitted the limit to the last unit", tally.exact, tally.windows)
	}
	if tally.windows == 0 {
		t.Error("there was no window to judge")
	}
	m.compare(near, far)
}

// noneAlone fails if a check was decided without its owner.
func (m *market) noneAlone() {
	m.globe.t.Helper()
	n := 0
	for _, s := range m.all {
		for _, h := range slices.Concat(s.hits, s.refused) {
			if h.by == "fallback" || h.by == "standby" {
				n++
			}
		}
	}
	if n > 0 && len(m.watch.stalls) > 0 {
		m.globe.t.Logf("%d checks were decided without an owner, but the machine stalled", n)
	} else if n > 0 {
		m.globe.t.Errorf("%d checks were decided without an owner", n)
	}
}

// compare fails if checks of one quota take clearly longer than those of
// another with the same demand. Checks during which the tests did not get a
// processor don't count: a pause of the machine delays about as many checks as
// p99 leaves out, and would decide the result.
func (m *market) compare(near, far *quota) {
	m.globe.t.Helper()
	took := func(q *quota) (median, late time.Duration, n int) {
		var all []time.Duration
		for _, s := range m.all {
			if s.quota != q {
				continue
			}
			for _, h := range slices.Concat(s.hits, s.refused) {
				if m.watch.lost(h.sent-int64(lag), h.got) == 0 {
					all = append(all, time.Duration(h.got-h.sent))
				}
			}
		}
		const least = 1000 // of more than 5,000
		if len(all) < least {
			m.globe.t.Fatalf("only %d checks of %s had a processor, want at least %d", len(all), q.rule.name, least)
		}

		slices.Sort(all)
		return all[len(all)/2], all[len(all)*99/100], len(all)
	}
	a, b, n := took(near)
	c, d, k := took(far)
	m.globe.t.Logf("checks without regions: median %v, p99 %v of %d; of a global limit: median %v, p99 %v of %d", a, b, n, c, d, k)
	const noise = 5 * time.Millisecond // of a loaded machine; the way to another region takes 80 ms
	if d > 2*b+noise && len(m.watch.stalls) == 0 {
		m.globe.t.Errorf("p99 of a global limit: have %v, want about %v as without regions", d, b)
	}
}

// oneCut is a kind of cut between regions.
type oneCut struct {
	what string
	do   func(*router)
}

// cuts returns all kinds of cuts, of random regions, in random order.
func (g *globe) cuts() []oneCut {
	a := g.random.IntN(3)
	b := (a + 1 + g.random.IntN(2)) % 3
	one, other := regionNames[a], regionNames[b]
	list := []oneCut{
		{one + " is cut off", func(r *router) { r.off(a + 1) }},
		{"all are cut off", func(r *router) { r.apart() }},
		{one + " and " + other + " are cut off from each other", func(r *router) { r.pair(a+1, b+1) }},
		{one + " does not hear " + other + " any more", func(r *router) { r.oneWay(b+1, a+1) }},
		{one + " is not heard any more", func(r *router) {
			for _, w := range r.ways {
				if w.from == a+1 {
					r.oneWay(w.from, w.to)
				}
			}
		}},
	}
	g.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// TestG8_Cut cuts regions off from each other in all ways, each in the middle
// of loans and until a window later.
func TestG8_Cut(t *testing.T) {
	list := worldQuotas(t, 5)
	list[0].demands = append(list[0].demands, only("one", 0, 150), demand{key: "all", rate: [3]float64{60, 60, 60}},
		demand{key: "late", rate: [3]float64{100, 100, 100}, late: [3]bool{false, true, true}})
	g := newGlobe(t, 2, list)
	g.net.router.lag(farDelay, 10*time.Millisecond)
	m, tally := g.run(func(m *market) {
		g.turn(tenth, 0)
		cuts := g.cuts()
		all := slices.IndexFunc(cuts, func(c oneCut) bool { return strings.HasPrefix(c.what, "all") })
		cuts[0], cuts[all] = cuts[all], cuts[0] // with every seed; the others are random
		cuts = cuts[:2]
		if testing.Short() {
			cuts = cuts[:1]
		}
		for _, one := range cuts {
			g.turn(tenth, g.between(100*time.Millisecond, 3*time.Second))
			g.cut(one.what, one.do)
			g.turn(tenth, -500*time.Millisecond)
			m.read()
			g.turn(tenth, g.between(0, time.Second))
			g.turn(tenth, g.between(0, time.Second))
			g.mend()
		}
		g.turn(tenth, 0)
	})
	m.noneAlone()
	m.judgeBooks()

	switch {
	case tally.alone > 0:
	case m.stalled(m.begun, m.closed):
		t.Log("no region that was cut off was judged, but the machine stalled")
	default:
		t.Error("no region that was cut off was judged")
	}
}

// TestG8_Flapping cuts and heals links between regions faster than loans are made.
func TestG8_Flapping(t *testing.T) {
	onlyLong(t)
	g := newGlobe(t, 2, worldQuotas(t, 6))
	g.net.router.lag(farDelay, 30*time.Millisecond)
	m, _ := g.run(func(m *market) {
		g.turn(tenth, 0)
		for end := time.Now().Add(2 * tenth); time.Now().Before(end); {
			cuts := g.cuts()
			g.cut(cuts[0].what, cuts[0].do)
			g.pass(g.between(20*time.Millisecond, 800*time.Millisecond))
			g.mend()
			g.pass(g.between(0, 500*time.Millisecond))
		}
	})
	m.noneAlone()
}

// TestG8_KilledDuringLoans kills lending owners, borrowing owners and any other
// node while loans are made.
func TestG8_KilledDuringLoans(t *testing.T) {
	list := worldQuotas(t, 4)
	for i := range 3 {
		list[0].demands = append(list[0].demands, only(fmt.Sprintf("one-%d", i), i, 150))
	}
	g := newGlobe(t, 2+int((seed+runs[t.Name()])%2), list)
	kills := 4
	if testing.Short() {
		kills = 2
	}
	g.run(func(m *market) {
		for i := range kills {
			g.turn(tenth, g.between(200*time.Millisecond, 2500*time.Millisecond))
			busy := g.random.IntN(3)
			region, what := busy, "borrows"
			if i%2 == 0 {
				region, what = (busy+1+g.random.IntN(2))%3, "lends"
			}
			f := g.regions[region]
			victim := f.any()
			if name, _, err := victim.ownerOf("window", fmt.Sprintf("one-%d", busy)); err == nil &&
				f.byName(name) >= 0 && g.random.IntN(4) > 0 {
				victim = f.nodes[f.byName(name)]
			} else {
				what = "may be asked for a loan"
			}
			g.t.Logf("%s: %s in %s, which %s", clockTime(), victim.name, regionNames[region], what)
			f.kill(victim)
			g.pass(g.between(0, 6*time.Second))
			f.heal()
			f.whole(agreeTime)
		}
		g.turn(tenth, 0)
	})
}

// TestG8_Changed changes limits and shares while a region is cut off, in the
// middle of loans. Afterwards the new ones are in force, to the last unit.
func TestG8_Changed(t *testing.T) {
	lowered := quota{rule: rule{name: "lowered", algorithm: "fixed-window", limit: 900, per: tenth,
		hybrid: true, cost: 1}}
	raised, shared := lowered, lowered
	raised.name, shared.name = "raised", "shared"
	// In the end, one region has no share at all, and so cannot borrow either.
	for i, q := range []*quota{&lowered, &raised, &shared} {
		q.demands = []demand{only(q.name+"-one", i%2, 180), {key: q.name + "-all", rate: [3]float64{75, 75, 75}}}
	}
	g := newGlobe(t, 2, []quota{lowered, raised, shared})
	changes := 2
	if testing.Short() {
		changes = 1
	}
	m, _ := g.run(func(m *market) {
		g.turn(tenth, 0)
		for i := range changes {
			away := g.random.IntN(3)
			g.turn(tenth, g.between(200*time.Millisecond, 3*time.Second))
			g.cut(regionNames[away]+" is cut off", func(r *router) { r.off(away + 1) })
			g.pass(g.between(0, 2*time.Second))
			g.change(i+1,
				map[string]int64{"lowered": 900 - int64(i+1)*150, "raised": 900 + int64(i+1)*150, "shared": 900},
				func() {
					g.rules[2].parts = []string{"{eu: 0.7, us: 0.2, ap: 0.1}", "{us: 0.5, eu: 0.5}"}[i]
				})
			g.turn(tenth, g.between(0, 2*time.Second))
			g.mend()
			g.whole(agreeTime + 5*time.Second)
			g.settled()
			g.turn(tenth, 0)
			g.turn(tenth, 0)
		}
		g.turn(tenth, 0)
	})
	m.noneAlone()
}

// change writes limits at a node of the primary, which is always reachable in its own region.
func (g *globe) change(number int, limits map[string]int64, more func()) {
	g.t.Helper()
	old := map[string]int64{}
	text := slices.Clone(g.rules)
	more()
	for i := range text {
		text[i] = g.rules[i]
		old[text[i].name] = g.limitNow(&g.rules[i])
		text[i].limit = limits[text[i].name]
	}
	both := map[string]int64{}
	for name, n := range limits {
		both[name] = max(n, old[name])
	}
	g.eras = append(g.eras, era{from: boottime(), limits: both})
	version := g.write(g.regions[0].any(), quotasText(number, text))
	g.t.Logf("%s: version %d: %v, shares %s", clockTime(), version, limits, g.rules[2].parts)
	g.next = limits
}

// settled records that the change is in force everywhere.
func (g *globe) settled() {
	// A raise takes effect in the first window that begins after its record; clocks
	// may differ by a second.
	g.eras = append(g.eras, era{from: boottime() + int64(2500*time.Millisecond), limits: g.next, settled: true})
}

// TestG8_NoPrimary: while a region can't reach the primary, writes there fail
// and say why; once it can again, all have the same rules within 5 s.
func TestG8_NoPrimary(t *testing.T) {
	const soon = 5 * time.Second
	g := newGlobe(t, 2, worldQuotas(t, 2))
	m, _ := g.run(func(m *market) {
		for i, one := range []oneCut{
			{"us and the primary are cut off from each other", func(r *router) { r.pair(1, 2) }},
			{"us does not hear the primary any more", func(r *router) { r.oneWay(1, 2) }},
			{"the primary does not hear us any more", func(r *router) { r.oneWay(2, 1) }},
			{"the primary is cut off", func(r *router) { r.off(1) }},
		} {
			if testing.Short() && i > 0 {
				break
			}
			before, err := g.nodes[2].cluster()
			expect.NoError(t, err)
			g.cut(one.what, one.do)
			at := g.regions[1].any()
			refused(t, at, quotasText(1000+i, g.rules))
			writer := g.regions[2].any()
			if i == 3 {
				refused(t, writer, quotasText(2000+i, g.rules))
				writer = g.regions[0].any() // needs no other region for its own rules
			}
			version := g.write(writer, quotasText(3000+i, g.rules))
			if c, err := at.cluster(); err != nil || c.RulesVersion != before.RulesVersion {
				t.Errorf("%s: version %d (%v) while it can't follow, want %d", at.name,
					c.RulesVersion, err, before.RulesVersion)
			}
			g.pass(g.between(0, 3*time.Second))
			g.mend()
			mended := time.Now()
			g.same(soon, version, 3000+i)
			t.Logf("all have version %d %v after all was mended", version, time.Since(mended).Round(time.Millisecond))
			g.whole(agreeTime)
		}
	})
	m.noneAlone()
}

// refused writes rules at a node until the answer is that there is no primary.
// Every other answer must be an error, too.
func refused(t *testing.T, n *node, text string) {
	t.Helper()
	within(t, 5*time.Second, n.name+" says that the primary is away", func() string {
		began := time.Now()
		status, _, answer, err := n.call("PUT", 8081, "/v1/rules", text, nil)
		if err != nil {
			return err.Error()
		}
		if status < 500 {
			t.Errorf("%s wrote rules without the primary: %d %s", n.name, status, answer)
		}
		var problem struct{ Code string }
		if err := json.Unmarshal([]byte(answer), &problem); err != nil || status != 503 ||
			problem.Code != "no-primary" {
			return fmt.Sprintf("%d %s after %v", status, answer, time.Since(began))
		}
		t.Logf("%s: no-primary after %v", n.name, time.Since(began).Round(time.Millisecond))
		return ""
	})
}

// same waits until all nodes have a version of the rules, with a number in it.
func (g *globe) same(d time.Duration, version int64, number int) {
	g.t.Helper()
	within(g.t, d, "all have the same rules", func() string {
		for _, n := range g.nodes {
			have, value, _, err := readRules(n)
			if err != nil {
				return err.Error()
			}
			if have != version || value != number {
				return fmt.Sprintf("%s has version %d with %d, want %d with %d", n.name, have, value, version, number)
			}
		}
		return ""
	})
}

// TestG8_CheckersFindWhatIsNotDebited builds nodes that lend and lease without
// debiting, and checks that the checkers notice.
func TestG8_CheckersFindWhatIsNotDebited(t *testing.T) {
	wrong := filepath.Join(workDir, "rlnode-nodebit")
	expect.NoError(t, build(wrong, "faults,nodebit"))
	list := worldQuotas(t, 1)
	list[0].demands = []demand{only("one", 0, 150), {key: "all", rate: [3]float64{60, 60, 60}}}
	list[1].demands = []demand{only("one", 0, 30)}
	list[2].demands = []demand{{key: "all", rate: [3]float64{60, 60, 60}}}
	// Without leases, only loans can cause an excess.
	loans := quota{rule: rule{name: "loans", algorithm: "fixed-window", limit: 900, per: tenth, cost: 1}}
	loans.demands = []demand{{key: "uneven", rate: [3]float64{120, 40, 0}}}
	list = append(list, loans)
	g := emptyGlobe(t, 2, list)
	t.Cleanup(g.close)
	for _, n := range g.nodes {
		n.program = wrong
	}
	g.open()
	m := g.market()
	g.turn(tenth, 0)
	g.pass(2 * tenth)
	m.end()
	found := map[string]int{}
	for _, err := range m.judgeQuotas() {
		name, _, _ := strings.Cut(err.Error(), " ")
		found[name]++
		if found[name] == 1 {
			t.Logf("found: %v", err)
		}
	}
	for i := range g.rules {
		if name := g.rules[i].name; found[name] == 0 {
			t.Errorf("%s: nothing was found", name)
		}
	}
}
