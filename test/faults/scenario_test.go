//go:build faults

package faults

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

// agreeTime is how long after recovery all nodes may take to agree.
const agreeTime = 10 * time.Second

// scenario runs what under load in a fresh fleet, heals it, and judges everything that clients saw.
func scenario(t *testing.T, nodes int, what func(f *fleet, l *load)) {
	t.Helper()
	newFleet(t, nodes).run(what)
}

func (f *fleet) run(what func(f *fleet, l *load)) {
	f.t.Helper()
	l := f.load()
	f.seen = l
	f.pass(2 * time.Second)
	what(f, l)
	f.heal()
	f.whole(cmp.Or(f.agree, agreeTime))
	f.pass(max(f.after, time.Second))
	l.end()
	f.judge(l)
}

// pass waits under load: the events meanwhile are what is tested.
func (f *fleet) pass(d time.Duration) { time.Sleep(d) }

// between returns a random duration.
func (f *fleet) between(from, to time.Duration) time.Duration {
	return from + time.Duration(f.random.Int64N(int64(to-from)))
}

// judge runs the checkers.
func (f *fleet) judge(l *load) {
	f.t.Helper()
	f.judgeCounts(l)
	f.rings.end()
	f.judgeOwners()
	for _, err := range f.judgeLimits(l) {
		f.t.Error(err)
	}
	f.judgeService(l)
	f.judgeAnswers(l)
}

// promise returns what is promised of a rule's subjects.
func (f *fleet) promise(l *load, r *rule) promise {
	return promise{
		rule: r, nodes: int64(cmp.Or(f.fewest, len(f.nodes))), wall: l.shift,
		faults: slices.Concat(f.stalled(l), f.leaderless(), f.faults), moves: f.rings.moves,
		steps: f.steps,
	}
}

// leaderless returns the spans in which no node was connected, as far as a
// fault caused that: then all are cut off.
func (f *fleet) leaderless() (all []fault) {
	const look = time.Second // nodes get their authority back one after another
	for _, t := range f.rings.alone {
		from, to := t[0]-int64(look), t[1]+int64(look)
		if !slices.ContainsFunc(f.faults, func(x fault) bool {
			return x.from < to && from < x.to+int64(settling) && x.kind != stepped && x.kind != apart
		}) {
			continue
		}
		for node := range f.nodes {
			all = append(all, fault{kind: split, node: node, from: from, made: t[0], eased: t[1], to: to})
		}
	}
	return all
}

// judgeLimits checks that no more was admitted than promised.
func (f *fleet) judgeLimits(l *load) (wrong []error) {
	for i := range l.rules {
		r := &l.rules[i]
		if !r.bounded() {
			continue
		}
		var check interface{ check(hits []hit) error } = &spanCheck{f.promise(l, r)}
		if r.algorithm == "fixed-window" {
			check = &limitCheck{f.promise(l, r)}
		}
		for key := range r.keys {
			if err := check.check(of(l.hits, i, key)); err != nil {
				wrong = append(wrong, fmt.Errorf("%s %s: %w", r.name, l.keys[key], err))
			}
		}
	}
	return wrong
}

// judgeService checks that enough was admitted where nothing was wrong, and
// that no subject was locked out.
func (f *fleet) judgeService(l *load) {
	f.t.Helper()
	for i := range l.rules {
		r := &l.rules[i]
		if !r.bounded() {
			continue
		}
		c := serviceCheck{f.promise(l, r), l.began, l.ended}
		healed := l.began
		for _, x := range f.faults {
			if x.kind != stepped {
				healed = max(healed, x.to)
			}
		}
		all := gains{least: 1000}
		for key := range r.keys {
			hits, refused := of(l.hits, i, key), of(l.refused, i, key)
			g, err := c.check(hits, refused)
			if err == nil {
				err = c.checkLockout(hits, refused, healed)
			}
			if err != nil && l.stalled() {
				f.t.Logf("%s %s: %v, but the machine stalled", r.name, l.keys[key], err)
			} else if err != nil {
				f.t.Errorf("%s %s: %v", r.name, l.keys[key], err)
			}
			all.windows, all.whole, all.least = all.windows+g.windows, all.whole+g.whole, min(all.least, g.least)
		}
		if all.windows > 0 {
			f.t.Logf("%s: %d quiet windows, %d of them to the last unit, the least %.1f %%", r.name,
				all.windows, all.whole, float64(all.least)/10)
		}
	}
}

// judgeAnswers judges how nodes answered while they were cut off.
func (f *fleet) judgeAnswers(l *load) {
	f.t.Helper()
	all := slices.Concat(l.hits, l.refused)
	for i := range f.faults {
		x := &f.faults[i]
		if x.kind != cutOff && x.kind != split || !x.observed {
			continue
		}
		w, err := checkAnswers(x, all, l.lost)
		f.t.Logf("n%d cut off: first answers within %v, then median %v, longest %v, %d of %d above %v", x.node+1, w.first.Round(time.Millisecond),
			w.median.Round(10*time.Microsecond), w.most.Round(time.Millisecond), len(w.late), w.n, laterAnswer)
		for _, h := range w.late[:min(len(w.late), 20)] {
			f.t.Logf("late: asked %v after the cut, answered %v later by %s, %s of %s; the tests waited %v of it for a processor",
				time.Duration(h.sent-x.made).Round(time.Millisecond),
				time.Duration(h.got-h.sent).Round(time.Millisecond), h.by,
				l.rules[h.rule].name, l.keys[h.key], time.Duration(l.lost(h.sent, h.got)).Round(time.Millisecond))
		}
		if err != nil && l.stalled() {
			f.t.Logf("%v, but the machine stalled", err)
		} else if err != nil {
			f.t.Error(err)
		}
	}
}

// stalled returns the spans in which the machine stalled, so that nodes must
// have taken each other for dead.
func (f *fleet) stalled(l *load) (list []fault) {
	for _, s := range l.stalls {
		for i := range f.nodes {
			list = append(list, fault{kind: cutOff, node: i, from: s[0], made: s[1], to: s[1]})
		}
	}
	return list
}

// judgeOwners compares the records of all processes.
func (f *fleet) judgeOwners() {
	f.t.Helper()
	byPartition, total := map[uint32][]decision{}, 0
	for i, n := range f.nodes {
		for _, file := range n.records {
			count, err := readRecords(file, i, byPartition)
			if err != nil {
				f.t.Error(err)
			}
			total += count
		}
	}
	f.t.Logf("%d decisions of %d partitions, %d rings since the load began", total,
		len(byPartition), max(0, len(f.rings.moves)-1))
	if total < 100 {
		f.t.Error("hardly any decision was recorded")
	}
	for p, list := range byPartition {
		if err := checkOwners(list, f.rings.moves); err != nil {
			f.t.Errorf("partition %d: %v", p, err)
		}
	}
}

// judgeCounts checks that nothing was forgotten beyond what is allowed, and that all nodes agree.
func (f *fleet) judgeCounts(l *load) {
	f.t.Helper()
	fallback, forgot, may := int64(0), int64(0), int64(0)
	for key, name := range l.keys {
		all, _ := l.admitted(year, key, 0, 0)
		excused := f.excused(l, key)
		have := int64(0)
		// Debts arrive a while after the nodes have returned.
		within(f.t, settling, "the counts of "+name, func() string {
			var told []int64
			for _, n := range f.started() {
				used, err := n.used(&l.rules[year], key, name)
				if err != nil {
					return err.Error()
				}
				told = append(told, used)
			}
			if slices.Min(told) != slices.Max(told) {
				return fmt.Sprintf("the nodes differ: %v", told)
			}
			have = told[0]
			if have < all-excused {
				return fmt.Sprintf("have %d used, %d were admitted, at most %d of them may be forgotten", have, all, excused)
			}
			return ""
		})
		fallback, forgot, may = fallback+l.fellBack(year, key), forgot+max(0, all-have), may+excused
	}
	f.t.Logf("year: %d admitted in fallback, %d forgotten, %d might have been", fallback, forgot, may)
}

// excused returns how many of a subject's hits may be forgotten: debits that no
// standby has acknowledged. Hits admitted in fallback are debts, and come back.
func (f *fleet) excused(l *load, key int) (n int64) {
	for _, x := range f.faults {
		var part int64
		switch {
		case x.kind == killed:
			// Whatever made the tests wait for a processor also delayed the push.
			late := l.lost(x.from-int64(settling), x.made)
			_, part = l.admitted(year, key, x.from-int64(unpushed)-late, x.made)
		case x.kind == saved:
			_, part = l.admitted(year, key, x.from-int64(unsaved), x.made)
		case x.kind == together:
			_, part = l.admitted(year, key, 0, x.made)
		case x.kind == cutOff:
			// At this node or, when the cut was made, through it.
			_, part = l.admitted(year, key, x.from-int64(unpushed),
				min(x.made+int64(term+unpushed), x.to+int64(unpushed)))
		}
		n += part
	}
	return n
}
