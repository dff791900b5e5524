//go:build faults

package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// reconciled says whether what was admitted in fallback, and what an owner that was cut off decided in the last moments of
// its authority, is brought to the new owner when it can be reached again. Until it is, such hits may be forgotten.
const reconciled = false

// agreeTime is how long after everything is healed all nodes may take to say the same.
const agreeTime = 10 * time.Second

// scenario runs what under load in a fresh fleet, heals, and judges all that was seen.
func scenario(t *testing.T, nodes int, what func(f *fleet, l *load)) {
	t.Helper()
	newFleet(t, nodes).run(what)
}

func (f *fleet) run(what func(f *fleet, l *load)) {
	f.t.Helper()
	l := f.load()
	f.pass(2 * time.Second)
	what(f, l)
	f.heal()
	f.whole(agreeTime)
	f.pass(time.Second)
	l.end()
	f.judge(l)
}

// pass lets time go by under load: what happens meanwhile is what is tested.
func (f *fleet) pass(d time.Duration) { time.Sleep(d) }

// between is a random time.
func (f *fleet) between(from, to time.Duration) time.Duration {
	return from + time.Duration(f.random.Int64N(int64(to-from)))
}

// judge runs the checkers.
func (f *fleet) judge(l *load) {
	f.t.Helper()
	f.judgeCounts(l)
	f.rings.end()
	f.judgeOwners()
	c := limitCheck{limit: windowLimit, nodes: int64(len(f.nodes)), window: int64(window), wall: l.shift, faults: append(f.stalled(l), f.faults...)}
	bySubject := make([][]hit, len(l.keys))
	for _, h := range l.hits {
		if l.rules[h.rule] == "ten" {
			bySubject[h.key] = append(bySubject[h.key], h)
		}
	}
	for i, hits := range bySubject {
		if err := c.check(hits); err != nil {
			f.t.Errorf("%s: %v", l.keys[i], err)
		}
	}
}

// stalled are the times in which the machine stood still: nodes could not but take each other for dead.
func (f *fleet) stalled(l *load) (list []fault) {
	for _, s := range l.stalls {
		for i := range f.nodes {
			list = append(list, fault{kind: cutOff, node: i, from: s[0], to: s[1]})
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
	f.t.Logf("%d decisions of %d partitions, %d rings since the load began", total, len(byPartition), max(0, len(f.rings.moves)-1))
	if total < 100 {
		f.t.Error("hardly any decision was recorded")
	}
	for p, list := range byPartition {
		if err := checkOwners(list, f.rings.moves); err != nil {
			f.t.Errorf("partition %d: %v", p, err)
		}
	}
}

// judgeCounts looks that nothing was forgotten that may not be, and that all nodes say the same.
func (f *fleet) judgeCounts(l *load) {
	f.t.Helper()
	for key, name := range l.keys {
		all, _ := l.admitted(0, key, 0, 0)
		excused := f.excused(l, key)
		// Debts come back a while after the nodes.
		within(f.t, settling, "the counts of "+name, func() string {
			var have []int64
			for _, n := range f.nodes {
				used, err := n.used("year", name)
				if err != nil {
					return err.Error()
				}
				have = append(have, used)
			}
			if slices.Min(have) != slices.Max(have) {
				return fmt.Sprintf("the nodes differ: %v", have)
			}
			if have[0] < all-excused {
				return fmt.Sprintf("have %d used, %d were admitted, at most %d of them may be forgotten", have[0], all, excused)
			}
			return ""
		})
	}
}

// excused is how many of a subject's hits may be forgotten.
func (f *fleet) excused(l *load, key int) (n int64) {
	if !reconciled {
		n += l.fellBack(0, key)
	}
	for _, x := range f.faults {
		var part int64
		switch {
		case x.kind == killed:
			_, part = l.admitted(0, key, x.from-int64(unpushed), x.from)
		case x.kind == cutOff && !reconciled:
			// At this node or, as the cut was made, through it.
			_, part = l.admitted(0, key, x.from-int64(unpushed), min(x.from+int64(term+unpushed), x.to+int64(unpushed)))
		}
		n += part
	}
	return n
}
