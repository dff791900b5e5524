package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	// clusterKeys are checked at all three nodes: few enough that each node sees
	// each of them often enough for leases to pay, and enough that no lock is
	// contended.
	clusterKeys = 1000
	refusedKeys = 1000 // over their limit, owned by other nodes than the one that gets the checks
	idleKeys    = 100
	clusterSize = 3
)

// fleet is a cluster of three nodes, and a lone node.
type fleet struct {
	*bench
	one   *node
	three []*node
}

// inCluster measures S4, S5, S7 and S15.
func (b *bench) inCluster(ctx context.Context) error {
	one, err := b.startOne(ctx, b.program, "alone", b.host(1), benchRules+slotRules)
	if err != nil {
		return err
	}

	defer one.stop()

	var addresses []string
	for i := range clusterSize {
		addresses = append(addresses, b.host(11+i))
	}

	three, err := b.startCluster(ctx, addresses)
	if err != nil {
		return err
	}

	defer stopAll(three)

	f := &fleet{bench: b, one: one, three: three}
	if b.wants("S4") || b.wants("S7") {
		if err := f.underLoad(ctx); err != nil {
			return err
		}
	}

	if b.wants("S15") {
		if err := f.slots(ctx); err != nil {
			return err
		}
	}

	if b.wants("S5") {
		return f.idle(ctx)
	}

	return nil
}

// traffic is one of the loads that take turns.
type traffic struct {
	name    string
	targets []target
	asked   []*node // nodes whose decisions are counted
	rule    string
	refused bool // all answers must be refusals, rather than none

	rates    series
	p50, p99 series
	cpu      series             // of one and three nodes together, microseconds per check
	decided  map[string]float64 // by decided_by
	share    float64            // of refusals, in the last round
	idle     series             // load of the other nodes meanwhile, as a fraction of a processor
}

// round loads once. The warm-up is long, because leases and remembered refusals
// of the last round have expired, and only the steady state counts.
func (t *traffic) round(ctx context.Context, f *fleet) error {
	before, err := t.decisions(ctx)
	if err != nil {
		return err
	}

	others := f.three
	if t.asked[0] != f.one {
		others = []*node{f.one}
	}

	used, err := f.used(others)
	if err != nil {
		return err
	}

	start := time.Now()
	l := load{targets: t.targets, connections: connections, duration: f.time, warm: f.time / 2}
	o, err := l.run(ctx)
	if err != nil {
		return err
	}

	now, err := f.used(others)
	if err != nil {
		return err
	}

	after, err := t.decisions(ctx)
	if err != nil {
		return err
	}
	t.share = float64(o.refused) / float64(o.count)
	if !t.refused && o.refused > 0 || t.refused && t.share < 0.95 {
		return fmt.Errorf("%d of %d answers are refusals", o.refused, o.count)
	}

	t.rates = append(t.rates, o.rate())
	t.p50 = append(t.p50, micros(o.quantile(0.5)))
	t.p99 = append(t.p99, micros(o.quantile(0.99)))
	t.cpu = append(t.cpu, micros(now.asked-used.asked)/float64(o.all))
	t.idle = append(t.idle, float64(now.others-used.others)/float64(time.Since(start)))

	for by, n := range after {
		t.decided[by] += n - before[by]
	}

	return nil
}

// processorTimes are the times of the loaded nodes, and of the others.
type processorTimes struct{ asked, others time.Duration }

func (f *fleet) used(others []*node) (processorTimes, error) {
	beside, err := processorTimeOf(others)
	if err != nil {
		return processorTimes{}, err
	}
	all, err := processorTimeOf(append([]*node{f.one}, f.three...))
	return processorTimes{all - beside, beside}, err
}

func (t *traffic) decisions(ctx context.Context) (map[string]float64, error) {
	total := make(map[string]float64)
	for _, n := range t.asked {
		m, err := n.metrics(ctx)
		if err != nil {
			return nil, err
		}
		for by, count := range decisions(m, t.rule) {
			total[by] += count
		}
	}
	return total, nil
}

// ways lists how checks were decided, the most frequent way first.
func (t *traffic) ways() string {
	total, text := 0.0, ""
	for _, n := range t.decided {
		total += n
	}

	for _, by := range []string{"owner", "lease", "forward", "standby", "fallback"} {
		if n := t.decided[by]; n > 0 {
			if text != "" {
				text += ", "
			}
			text += fmt.Sprintf("%s %.1f %%", by, 100*n/total)
		}
	}

	return "decided by: " + text
}

func (f *fleet) newTraffic(name, rule string, asked []*node, requests [][]byte) *traffic {
	t := &traffic{name: name, rule: rule, asked: asked, decided: make(map[string]float64)}
	for _, n := range asked {
		t.targets = append(t.targets, target{n.data, requests})
	}
	return t
}

// underLoad measures S4 and S7, compared with S2's load on one node.
func (f *fleet) underLoad(ctx context.Context) error {
	single := f.newTraffic("one node", "plenty", []*node{f.one}, checks(plenty, keysUpTo(singleKeys)))
	all := []*traffic{single}
	var hybrid, exactly, window, bucket *traffic
	if f.wants("S4") {
		hybrid = f.newTraffic("three nodes, hybrid", "plenty", f.three, checks(plenty, keysUpTo(clusterKeys)))
		exactly = f.newTraffic("three nodes, exact", "exact", f.three, checks(exact, keysUpTo(clusterKeys)))
		all = append(all, hybrid, exactly)
	}

	if f.wants("S7") {
		var err error
		if window, err = f.overLimit(ctx, "over the limit at a non-owner, fixed-window",
			"small-window", smallWindow); err != nil {
			return err
		}
		if bucket, err = f.overLimit(ctx, "over the limit at a non-owner, token-bucket",
			"small-bucket", smallBucket); err != nil {
			return err
		}
		all = append(all, window, bucket)
	}

	var turns []contender
	for _, t := range all {
		turns = append(turns, contender{t.name, func(ctx context.Context) error { return t.round(ctx, f) }})
	}

	if err := takeTurns(ctx, f.rounds, turns, f.progress); err != nil {
		return err
	}

	f.reportS4(single, hybrid, exactly)
	f.reportS7(single, window, bucket)

	for i, t := range all {
		id := "S4"
		if t.refused || i == 0 && !f.wants("S4") {
			id = "S7"
		}
		f.report.figure(id, t.name, "", "checks/s", t.rates)
		f.report.figure(id, t.name, "p50", "µs", t.p50)
		f.report.figure(id, t.name, "p99", "µs", t.p99)
		f.report.figure(id, t.name, "processor time of all its nodes", "µs a check", t.cpu)
	}

	f.report.note("Three idle nodes took %s of a processor while the one node was loaded.",
		percent(single.idle.median()))
	return nil
}

func percent(part float64) string { return fmt.Sprintf("%.1f %%", 100*part) }

func (f *fleet) reportS4(single, hybrid, exactly *traffic) {
	if hybrid == nil {
		return
	}
	f.report.add("S4", "three nodes, hybrid, in total ÷ one node", atLeast(0.9, "≥ 0.9"),
		over(hybrid.rates, single.rates), hybrid.ways())
	f.report.add("S4", "three nodes, exact, in total ÷ one node", atLeast(0.5, "≥ 0.5"),
		over(exactly.rates, single.rates), exactly.ways())
}

func (f *fleet) reportS7(single, window, bucket *traffic) {
	if window == nil {
		return
	}
	for _, t := range []*traffic{window, bucket} {
		f.report.add("S7", t.name+" ÷ checks on one node", atLeast(0.95, "≥ 0.95"), over(t.rates, single.rates),
			percent(t.share)+" refused; "+t.ways())
	}
}

// overLimit is traffic of subjects that the first node does not own and that are over their limits.
func (f *fleet) overLimit(ctx context.Context, name, rule, attribute string) (*traffic, error) {
	f.progress(name + ": filling up")
	keys, err := f.three[0].keysBy(ctx, attribute, "forward", refusedKeys)
	if err != nil {
		return nil, err
	}

	t := f.newTraffic(name, rule, f.three[:1], checks(attribute, keys))
	t.refused = true

	if err := f.useUp(ctx, attribute, keys); err != nil {
		return nil, err
	}

	const most = 30 // seconds until nearly all are refused
	for range most {
		l := load{targets: t.targets, connections: connections, duration: time.Second}
		o, err := l.run(ctx)
		if err != nil {
			return nil, err
		}
		if o.count > 0 && float64(o.refused) >= 0.99*float64(o.count) {
			return t, nil
		}
	}

	return nil, fmt.Errorf("after %d s of checks some subjects are not over their limit", most)
}

// useUp uses up the small limits, with a check for each subject.
func (f *fleet) useUp(ctx context.Context, attribute string, keys []string) error {
	for from := 0; from < len(keys); from += batchSize {
		var bodies []string
		for _, key := range keys[from:min(from+batchSize, len(keys))] {
			bodies = append(bodies,
				strings.TrimSuffix(checkBody(attribute, key), "}")+fmt.Sprintf(`,"cost":%d}`, smallLimit))
		}
		if _, _, err := f.one.call.post(ctx, f.three[0].data, batchRequest(bodies)); err != nil {
			return err
		}
	}
	return nil
}

// idle measures S5: one caller that waits for each answer.
func (f *fleet) idle(ctx context.Context) error {
	n := f.three[0]

	// Each path without changes, and with processors that never sleep.
	var all []*traffic

	var turns []contender
	for _, by := range []string{"owner", "forward"} {
		keys, err := n.keysBy(ctx, exact, by, idleKeys)
		if err != nil {
			return err
		}

		for _, awake := range []bool{false, true} {
			name := "one caller, decided by " + by
			if awake {
				name += ", processors kept awake"
			}
			t := f.newTraffic(name, "exact", f.three[:1], checks(exact, keys))
			all = append(all, t)
			turns = append(turns,
				contender{name, func(ctx context.Context) error { return f.idleRound(ctx, t, awake) }})
		}
	}

	if err := takeTurns(ctx, f.rounds, turns, f.progress); err != nil {
		return err
	}

	const figure = "p50 of a forwarded check, idle ÷ that of one at its owner"
	f.report.add("S5", figure, atMost(6.5, "≤ 6.5"), over(all[2].p50, all[0].p50), "")
	f.report.add("S5", figure+", processors kept awake", atMost(4.4, "≤ 4.4"), over(all[3].p50, all[1].p50), "")

	for _, t := range all {
		f.report.figure("S5", t.name+", p50", "", "µs", t.p50)
		f.report.figure("S5", t.name+", p50", "p99", "µs", t.p99)
	}

	return nil
}

// idleRound makes one check after another.
func (f *fleet) idleRound(ctx context.Context, t *traffic, awake bool) error {
	if awake {
		rest, err := f.keepAwake(ctx)
		if err != nil {
			return err
		}
		defer rest()
	}

	l := load{targets: t.targets, connections: 1, duration: f.time / 2, warm: f.warm()}
	o, err := l.run(ctx)
	if err != nil {
		return err
	}

	t.p50 = append(t.p50, micros(o.quantile(0.5)))
	t.p99 = append(t.p99, micros(o.quantile(0.99)))
	return nil
}
