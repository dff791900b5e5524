//go:build faults

package faults

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const (
	// slowed is how far behind its course a clock may be that was set back: 1/64
	// of a run of a minute.
	slowed = int64(time.Second)
	// lost is the same of a clock that was carried to another process: it may
	// have stood still since its reading was written.
	lost = slowed + int64(5*time.Second)
)

// behind is how far behind the machine's a node's clock may be: it reads two
// clocks each second and slows down by 1/64 if they seem to differ, as they do
// if it is held up between the two.
const behind = 50 * time.Millisecond

// setting is an offset from the machine's wall clock by which a subject's
// windows may have been numbered from one time to another, on boottime.
type setting struct {
	from, to  int64
	low, high int64
}

// timeline is what happened to the clocks of a fleet.
type timeline struct {
	fleet   *fleet
	changes []change
	owners  map[[2]int]int // the node that owned a rule's subject at first
}

// change is a step of a node's clock, or a new process of it, whose clock has
// the offset to which it was last set.
type change struct {
	node       int
	from, made int64
	shift      int64
	process    bool
}

func (f *fleet) newTimeline(l *load) *timeline {
	f.t.Helper()
	tl := &timeline{fleet: f, owners: map[[2]int]int{}}
	for rule := range l.rules {
		for key := range l.rules[rule].keys {
			if l.rules[rule].inline(key) {
				continue // nobody tells the owner of a subject that comes with calls
			}
			name, _, err := f.nodes[0].ownerOf(l.rules[rule].name, l.keys[key])
			i := f.byName(name)
			if err != nil || i < 0 {
				f.t.Fatalf("owner: got %q (%v), want a node", name, err)
			}
			tl.owners[[2]int{rule, key}] = i
		}
	}
	return tl
}

// set sets a node's clock, under load.
func (tl *timeline) set(n *node, shift time.Duration) {
	tl.fleet.setWall(n, shift)
	s := tl.fleet.steps[len(tl.fleet.steps)-1]
	tl.changes = append(tl.changes, change{
		node: s.node, from: s.from, made: s.made + int64(stepTime), shift: s.shift,
	})
}

// restart stops a node in good order and starts it again.
func (tl *timeline) restart(n *node) {
	f := tl.fleet
	f.t.Logf("%s: %s is restarted", clockTime(), n.name)
	from := boottime()
	n.stop()
	n.up()
	f.whole(agreeTime)
	tl.note(n, from)
}

// killAll kills all nodes at once and starts them again. Each returns with its
// own checkpoint: of most partitions, there are then copies of several ages,
// and nobody knows their order.
func (tl *timeline) killAll() {
	f := tl.fleet
	from := boottime()
	f.killTogether(saved, f.nodes...)
	f.pass(f.between(0, 2*time.Second))
	for _, n := range f.nodes {
		f.suspect(split, n, from) // until they have found each other
	}
	f.heal()
	f.whole(patience)
	for _, n := range f.nodes {
		tl.note(n, from)
	}
}

// note notes that a node has a new process, which is ready now. The last one
// began to end at the given time.
func (tl *timeline) note(n *node, from int64) {
	c := change{node: tl.fleet.index(n), from: from, made: boottime(), process: true}
	for _, s := range tl.fleet.steps {
		if s.node == c.node {
			c.shift = s.shift
		}
	}
	tl.changes = append(tl.changes, c)
}

// settings returns the offsets by which a subject's windows may have been
// numbered. In doubt, there is one more: what counts for several windows is
// judged with all of them.
func (tl *timeline) settings(rule, key int) []setting {
	owner, known := tl.owners[[2]int{rule, key}]
	alone := len(tl.fleet.nodes) == 1
	if alone {
		owner = 0
		known = true
	}

	list := []setting{{from: 0, to: 1 << 62}}
	highest := int64(0) // offset of the process's own clock
	for _, c := range tl.changes {
		if c.process && !alone {
			// It handed its partitions over, and got others back: from now on any
			// node's clock may count, and each one's that has counted before.
			for _, before := range tl.changes {
				if before.from <= c.from {
					list = append(list, setting{c.from, 1 << 62, before.shift - lost, before.shift})
				}
			}
			list = append(list, setting{c.from, 1 << 62, -lost, 0})
			known = false
			continue
		}
		if known && c.node != owner {
			continue
		}

		if c.shift < highest && !c.process {
			// The clock only slows down.
			for i := range list {
				list[i].low = min(list[i].low, list[i].high-slowed)
			}
			continue
		}
		for i := range list {
			s := &list[i]
			if c.process {
				s.low = s.high - lost
			}
			if known && c.shift >= s.high {
				s.to = min(s.to, c.made) // a clock that has passed a window never returns to it
			}
		}
		list = append(list, setting{c.from, 1 << 62, c.shift, c.shift})
		highest = c.shift
	}
	return list
}

// stepCheck judges what was admitted while clocks were set.
type stepCheck struct {
	promise
	timeline *timeline
}

// check returns how many times the bound a subject's hits are, and why they are
// more than promised. Hits that an owner's fault may have made it forget, and
// those without an owner, have bounds of their own.
func (c *stepCheck) check(hits []hit, rule, key int) (ratio float64, why string) {
	c.see(hits)
	hits = slices.DeleteFunc(hits, func(h hit) bool {
		return h.by == "fallback" || h.by == "standby" || c.excuseOf(h) != none
	})
	slices.SortFunc(hits, func(a, b hit) int { return cmp.Compare(a.got, b.got) })

	r := c.rule
	if r.algorithm == "fixed-window" && !r.first {
		return c.checkWindows(hits, c.timeline.settings(rule, key))
	}

	// A hand-over may cost a fraction of a unit, and there is one at the end of
	// each fault, too.
	changes := int64(len(c.timeline.changes))
	whole := stream{
		what: "in all", capacity: r.capacity(), limit: r.limit, ttl: r.ttl(),
		slack: 1 + changes + 2*int64(len(c.faults)), hits: hits,
	}
	streams := []*stream{&whole}
	quick := r.per < time.Second
	if quick {
		// Whoever takes over may not know of the present window.
		whole.capacity += r.limit * int64(len(c.faults))
	}
	switch {
	case changes == 0:
	case quick:
		// Each step or hand-over may end a window early, which is little to one
		// second and much to fifty windows.
		streams = c.between(whole)
	case r.algorithm == "sliding-window":
		// Each may bring a window in which nothing was used: a new process, where
		// counters go to and where they come back from.
		streams = append(c.between(whole), &whole)
		whole.capacity *= 1 + 2*changes
	}

	spans := spanCheck{c.promise}
	for _, s := range streams {
		ratio = max(ratio, s.worst(r))
		if err := s.check(&spans); err != nil && why == "" {
			why = err.Error()
		}
	}
	return ratio, why
}

// between returns the hits between two changes of clocks: there, nothing but
// time brings a sliding window forward.
func (c *stepCheck) between(whole stream) (list []*stream) {
	from := int64(0)
	for i := range len(c.timeline.changes) + 1 {
		to := int64(1 << 62)
		next := to
		if i < len(c.timeline.changes) {
			to = c.timeline.changes[i].from
			next = c.timeline.changes[i].made
		}
		part := whole
		part.what = fmt.Sprintf("before change %d of the clocks", i+1)
		part.capacity = c.rule.capacity()
		part.hits = nil
		for _, h := range whole.hits {
			if h.sent >= from && h.got < to {
				part.hits = append(part.hits, h)
			}
		}
		list = append(list, &part)
		from = next
	}
	return list
}

// checkWindows judges spans of a fixed window: what was admitted in one fits
// into the windows that its hits may have been in.
func (c *stepCheck) checkWindows(hits []hit, settings []setting) (ratio float64, why string) {
	numbers := make([][]int64, len(hits))
	for i, h := range hits {
		numbers[i] = c.numbersOf(h, settings)
	}

	const starts = 200
	for k := range min(starts, len(hits)) {
		first := hits[k*len(hits)/min(starts, len(hits))].sent
		sum := int64(0)
		windows := map[int64]bool{}
		for i, h := range hits {
			if h.sent < first {
				continue
			}
			sum += h.cost
			for _, n := range numbers[i] {
				windows[n] = true
			}

			most := int64(len(windows)) * c.rule.limit
			if over := float64(sum) / float64(most); over > ratio {
				ratio = over
				if sum > most {
					why = fmt.Sprintf("%d admitted in %v from %s on, in at most %d windows of %d",
						sum, time.Duration(h.got-first), time.Unix(0, first+c.wall).UTC().Format("15:04:05.000"),
						len(windows), c.rule.limit)
				}
			}
		}
	}
	return ratio, why
}

// numbersOf returns the windows in which a hit may have been counted.
func (c *stepCheck) numbersOf(h hit, settings []setting) (list []int64) {
	per := int64(c.rule.per)
	for _, s := range settings {
		if h.got < s.from || h.sent > s.to {
			continue
		}
		first := (h.sent + c.wall + s.low - int64(behind)) / per
		last := (h.got + c.wall + s.high + int64(edge)) / per
		for n := first; n <= last; n++ {
			if !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
	}
	return list
}

// TestExact_ClockSteppedAndRestarted sets the clock of the only node, by a
// second to two hours, while batches are being decided. Then it restarts it.
func TestExact_ClockSteppedAndRestarted(t *testing.T) { steppedUnderBatches(t, 1) }

// TestExact_ClockSteppedAndHandedOver sets the clock of one of three nodes.
// Then this node restarts, so the others get its counters, and it theirs.
func TestExact_ClockSteppedAndHandedOver(t *testing.T) { steppedUnderBatches(t, 3) }

func steppedUnderBatches(t *testing.T, nodes int) {
	f := exactFleet(t, nodes, true)
	l := f.batches()
	f.pass(time.Second)
	tl := f.newTimeline(l)
	n := f.ownerHolderOrLeader()

	for i := range f.pauses() {
		shift := f.drawShift()
		if i%2 == 1 {
			shift = 0 // right again
		}
		tl.set(n, shift)
		f.pass(stepTime + f.between(200*time.Millisecond, time.Second))
		if f.random.IntN(2) == 0 {
			f.pass(time.Second) // until a checkpoint knows of the step
			tl.restart(n)
			f.pass(f.between(200*time.Millisecond, time.Second))
		}
	}
	l.end()
	f.rings.end()
	f.judgeExact(l, tl)
}

// drawShift draws by how much a clock is wrong.
func (f *fleet) drawShift() time.Duration {
	shifts := []time.Duration{
		time.Second, 7 * time.Second, time.Minute, time.Hour, 2 * time.Hour,
	}
	shift := shifts[f.random.IntN(len(shifts))]
	if f.random.IntN(3) == 0 {
		return -shift
	}
	return shift
}

// TestExact_ClockSteppedAndKilled sets the clock of the only node and kills it.
// It returns with its last checkpoint.
func TestExact_ClockSteppedAndKilled(t *testing.T) { killedUnderBatches(t, 1) }

// TestExact_ClocksSteppedAndAllKilled sets the clocks of some of three nodes,
// has them hand counters over, and kills all at once. What comes back are
// checkpoints of several nodes, with windows that were numbered by several
// clocks.
func TestExact_ClocksSteppedAndAllKilled(t *testing.T) { killedUnderBatches(t, 3) }

func killedUnderBatches(t *testing.T, nodes int) {
	f := exactFleet(t, nodes, true)
	l := f.batches()
	f.pass(time.Second)
	tl := f.newTimeline(l)

	for range max(1, f.pauses()/2) {
		for range 1 + f.random.IntN(nodes) {
			tl.set(f.any(), f.drawShift())
		}
		f.pass(stepTime + f.between(200*time.Millisecond, time.Second))
		if nodes > 1 && f.random.IntN(2) == 0 {
			tl.restart(f.any())
		}

		// What is younger than a checkpoint may be forgotten, and is not judged.
		f.pass(unsaved + f.between(0, time.Second))
		tl.killAll()
		f.pass(f.between(time.Second, 3*time.Second))
	}
	l.end()
	f.rings.end()
	f.judgeExact(l, tl)
}

func TestStepCheck(t *testing.T) {
	const second = int64(time.Second)
	const start = 3600 * 1000 * second // a turn of hours
	hits := func(cost int64, at int64) hit {
		return hit{by: "owner", cost: cost, sent: start + at*second, got: start + at*second + 1}
	}
	step := func(at, shift int64) change {
		return change{from: start + at*second, made: start + (at+2)*second, shift: shift * second}
	}
	restart := func(at, shift int64) change {
		c := step(at, shift)
		c.process = true
		return c
	}

	for _, test := range []struct {
		name    string
		hits    []hit
		changes []change
		wrong   bool
	}{
		{"the limit", []hit{hits(9, 100), hits(9, 3700)}, nil, false},
		{"one more", []hit{hits(9, 100), hits(10, 3700)}, nil, true},
		{"forward", []hit{hits(9, 100), hits(9, 110)}, []change{step(105, 3600)}, false},
		{"forward, and again", []hit{hits(9, 100), hits(9, 110), hits(1, 120)},
			[]change{step(105, 3600)}, true},
		{"forward, too early", []hit{hits(9, 100), hits(9, 104)}, []change{step(105, 3600)}, true},
		{"back: nothing is free", []hit{hits(9, 100), hits(1, 110)}, []change{step(105, -3600)}, true},
		{"back, and a new process", []hit{hits(9, 100), hits(9, 110), hits(1, 111)},
			[]change{step(105, -3600), restart(107, -3600)}, true},
		{"forward and back", []hit{hits(9, 100), hits(9, 110), hits(1, 120)},
			[]change{step(105, 3600), step(115, 0)}, true},
	} {
		hour := rule{name: "nine", algorithm: "fixed-window", limit: 9, per: time.Hour, keys: 1}
		tl := &timeline{fleet: &fleet{nodes: make([]*node, 1)}, changes: test.changes}
		c := stepCheck{promise{rule: &hour, nodes: 1}, tl}
		if _, why := c.check(test.hits, 0, 0); (why != "") != test.wrong {
			t.Errorf("%s: got %q, want a violation: %v", test.name, why, test.wrong)
		}
	}
}

// The judge must never accuse nodes that are right. This model of one counts
// by a clock that follows steps as a node's does, and that never falls behind
// what the process before it has counted by. It also forgets, on purpose.
type steppedModel struct {
	random *rand.Rand
	per    int64
	limit  int64

	now     int64 // on boottime
	own     int64 // offset of the process's clock
	reached int64 // the latest reading that was counted by
	window  int64
	used    int64
	changes []change
	hits    []hit
}

// run lasts for forty seconds, in each of which something may happen.
func (m *steppedModel) run(forgets bool) {
	shift := int64(0)
	follows := int64(0) // when the clock follows its last step
	for end := m.now + int64(40*time.Second); m.now < end; m.now += int64(time.Millisecond) {
		if m.now%int64(4*time.Second) == 0 && m.random.IntN(2) == 0 {
			steps := []int64{0, 1, 7, 60, 3600, 7200, -1, -7, -3600, -7200}
			shift = steps[m.random.IntN(len(steps))] * int64(time.Second)
			follows = m.now + m.random.Int64N(int64(stepTime))
			m.changes = append(m.changes, change{from: m.now, made: m.now + int64(stepTime), shift: shift})
		}
		if m.now >= follows {
			// Forward at once, and back by a 64th of its pace.
			m.own = max(shift, m.own-int64(time.Millisecond)/slew)
		}
		if m.now%int64(4*time.Second) == int64(3*time.Second) && m.random.IntN(2) == 0 {
			from := m.now
			m.now += int64(700 * time.Millisecond)
			m.own = shift
			m.changes = append(m.changes, change{from: from, made: m.now, shift: shift, process: true})
		}

		m.reached = max(m.reached+int64(time.Millisecond)*63/64, m.now+m.own)
		if n := m.reached / m.per; n > m.window || forgets && m.random.IntN(8000) == 0 {
			m.window = n
			m.used = 0
		}
		m.ask()
	}
}

// ask makes a call of many checks, which was sent a while before it is decided.
func (m *steppedModel) ask() {
	cost := min(m.random.Int64N(4), m.limit-m.used)
	if cost == 0 {
		return
	}
	m.used += cost
	late := int64(time.Millisecond) << m.random.IntN(10)
	m.hits = append(m.hits, hit{
		by: "owner", cost: cost, sent: m.now - m.random.Int64N(late),
		got: m.now + 1 + m.random.Int64N(late),
	})
}

func TestStepCheck_AcceptsTheReference(t *testing.T) {
	for _, per := range []time.Duration{2 * time.Second, window, time.Hour} {
		found := 0
		for seed := range uint64(60) {
			for _, forgets := range []bool{false, true} {
				start := (1_000_000*3600 + int64(seed)*60) * int64(time.Second)
				m := steppedModel{
					random: rand.New(rand.NewPCG(seed, 1)), per: int64(per), limit: 20, now: start,
				}
				m.run(forgets)
				r := rule{name: "r", algorithm: "fixed-window", limit: m.limit, per: per, keys: 1}
				tl := &timeline{fleet: &fleet{nodes: make([]*node, 1)}, changes: m.changes}
				c := stepCheck{promise{rule: &r, nodes: 1}, tl}

				_, why := c.check(m.hits, 0, 0)
				if why != "" && !forgets {
					t.Errorf("per %v, seed %d: got %s, want no violation", per, seed, why)
				}
				if why != "" && forgets {
					found++
				}
			}
		}
		t.Logf("per %v: found %d of 60 that forget", per, found)
		if found == 0 {
			t.Errorf("per %v: got no violation of those that forget, want some", per)
		}
	}
}
