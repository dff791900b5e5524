package limiter

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// inlineQuery returns a query for an inline subject with the given limits.
func inlineQuery(key string, limits ...document.InlineLimit) *Query {
	one := Subject{InlineSubject: rules.InlineSubject{Namespace: "n", Key: []string{key}, Limits: limits, Exact: true}}
	return &Query{Subjects: []Subject{one}}
}

func (q Query) costing(costs ...UnitCost) *Query {
	q.Subjects = append([]Subject(nil), q.Subjects...)
	q.Subjects[0].Costs = costs
	return &q
}

// inlineKeyOf returns the key of an inline subject that n owns.
func (w *testCluster) inlineKeyOf(n *testNode) string {
	for i := range 100_000 {
		key := fmt.Sprintf("k%d", i)
		if u, err := n.Locate(inlineQuery(key)); err == nil && w.place[ring.PartitionOf(u.Hash.Hi)].owner == n.id {
			return key
		}
	}
	w.t.Fatal("no such key")
	return ""
}

// Usage, adjustments and resets of an inline subject work on any node, with its limits and without.
func TestUsageOfInlineSubjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules: []")
		nextWindow(time.Hour)
		owner, other := w.nodes[0], w.nodes[1]
		key := w.inlineKeyOf(owner)
		hour := document.InlineLimit{Limit: 100, Per: "1h", Algorithm: "fixed-window", Name: "hour"}
		log := document.InlineLimit{Limit: 10, Per: "1h", Algorithm: "sliding-window-log", Unit: "tokens"}
		sliding := document.InlineLimit{Limit: 50, Per: "2h", Algorithm: "sliding-window", Unit: "tokens"}
		three := []document.InlineLimit{hour, log, sliding}
		take := *inlineQuery(key, three...)
		other.check(*take.costing(UnitCost{document.Requests, 3}, UnitCost{"tokens", 4}))
		have := func(n *testNode, q *Query, unknown int, want ...int64) {
			t.Helper()
			u, err := n.Usage(q)
			if err != nil || len(u.Limits) != len(want) || u.Unknown != unknown || u.Namespace != "n" {
				t.Fatalf("have %+v, %v; want %v and %d unknown", u, err, want, unknown)
			}
			sum, wanted := int64(0), int64(0)
			for i := range want {
				sum, wanted = sum+u.Limits[i].Used, wanted+want[i]
				if len(q.Subjects[0].Limits) > 0 && u.Limits[i].Used != want[i] {
					t.Errorf("%s: have %d used, want %d", u.Limits[i].Limit.Name, u.Limits[i].Used, want[i])
				}
			}
			if sum != wanted { // without limits, their order is not known
				t.Errorf("have %+v, want %v", u.Limits, want)
			}
		}
		for _, n := range w.nodes {
			have(n, inlineQuery(key, three...), 0, 3, 4, 4)
			have(n, inlineQuery(key, three[2], three[0]), 0, 4, 3)
		}
		have(other, inlineQuery(key), 0, 3, 4, 4)
		bigger := hour
		bigger.Limit = 200
		if u, err := other.Adjust(inlineQuery(key, bigger,
			sliding).costing(UnitCost{document.Requests, -1}, UnitCost{"tokens", 50})); err != nil ||
			u.Limits[0].Used != 2 || u.Limits[0].Remaining != 198 || u.Limits[1].Used != 54 {
			t.Errorf("adjusted: have %+v, %v", u, err)
		}
		if u, err := other.Usage(inlineQuery(key)); err != nil || len(u.Limits) != 3 {
			t.Errorf("have %+v, %v", u, err)
		} else {
			for i := range u.Limits {
				if l := u.Limits[i].Limit; l.Name == "hour" && l.Amount != 200 {
					t.Errorf("have an amount of %d, want the largest", l.Amount)
				}
			}
		}
		if _, err := other.Adjust(inlineQuery(key,
			hour).costing(UnitCost{"tokens", 1})); !errors.Is(err, ErrNoLimitInUnit) {
			t.Errorf("no such unit: have %v", err)
		}
		if u, err := w.nodes[2].Reset(inlineQuery(key, hour)); err != nil || u.Limits[0].Used != 0 {
			t.Errorf("have %+v, %v", u, err)
		}
		have(other, inlineQuery(key, three...), 0, 0, 4, 54)
		// Notes beside the counters don't count as counters, and survive a reset.
		if _, err := other.Adjust(&Query{Subjects: inlineQuery(key,
			hour).costing(UnitCost{document.Requests, 7}).Subjects, RequestID: "seven"}); err != nil {
			t.Error(err)
		}
		all := *inlineQuery(key)
		all.RequestID = "all"
		if u, err := w.nodes[2].Reset(&all); err != nil || len(u.Limits) != 0 {
			t.Errorf("have %+v, %v", u, err)
		}
		have(owner, inlineQuery(key, three...), 0, 0, 0, 0)
		have(owner, inlineQuery(key), 0)
		if u, err := owner.Adjust(&Query{Subjects: inlineQuery(key,
			hour).costing(UnitCost{document.Requests, 7}).Subjects, RequestID: "seven"}); err != nil ||
			u.Limits[0].Used != 7 {
			t.Errorf("the same id: have %+v, %v", u, err)
		}
		have(owner, inlineQuery(key, hour), 0, 0)
		other.check(*take.costing(UnitCost{document.Requests, 3}))
		if _, err := other.Reset(&all); err != nil {
			t.Error(err)
		}
		have(other, inlineQuery(key, hour), 0, 3)
		changed := *inlineQuery(key, hour)
		changed.RequestID = "all"
		if _, err := other.Reset(&changed); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("another reset with the id: have %v", err)
		}
	})
}

// A node that does not know a subject's limits reports how many counters it
// can't describe. A reset covers all of them, even more than one list holds,
// but none of another subject.
func TestResetOfManyInlineCounters(t *testing.T) {
	if testing.Short() {
		t.Skip("five million counters and a real-time deadline: too slow with the race detector")
	}
	table := counters.New(5_000_000)
	t.Cleanup(table.Close)
	clock := NewClock()
	t.Cleanup(func() { clock.Close() })
	l := New(table, clock)
	l.SetRules(compile(t, 1, "rules: []"))
	u, err := l.Locate(inlineQuery("k"))
	expect.NoError(t, err)
	now, limit := l.clock.Now(), rules.Limit{}
	limit.Limit.Kind, limit.Amount, limit.Limit.Window = 1, 9, time.Hour
	put := func(subject, counter uint64) {
		t.Helper()
		k := counters.Key{Subject: subject, Counter: counters.InlineCounter(counter << 48)}
		expect.NoError(t,
			l.table.Amend(now, &counters.Amendment{Ops: []counters.Op{{Key: k, Limit: &limit.Limit, Cost: 1}}}))
	}
	for i := range uint64(3 * maxListed / 2) {
		put(u.Hash.Hi, i)
	}
	put(u.Hash.Hi+1, 1)
	if u, err := l.Usage(inlineQuery("k")); err != nil || u.Unknown != maxListed || len(u.Limits) > 0 {
		t.Errorf("have %+v, %v", u, err)
	}
	if _, err := l.Reset(inlineQuery("k")); err != nil {
		t.Fatal(err)
	}
	if u, err := l.Usage(inlineQuery("k")); err != nil || u.Unknown != 0 {
		t.Errorf("have %+v, %v", u, err)
	}
	expect.Equal(t, len(l.table.InlineOps(u.Hash.Hi+1, 10)), 1, "of the other subject counters are left")
}
