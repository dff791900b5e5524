package limiter

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// keptQuery returns a check of a key that has one counter.
func keptQuery(namespace, key string, limit, burst int64, per time.Duration, cost int64) Query {
	l := document.InlineLimit{Limit: limit, PerMS: per.Milliseconds(), Burst: burst, Algorithm: "token-bucket"}
	if namespace == rules.IncrexNamespace {
		l.Algorithm, l.From, l.Burst = "fixed-window", "first", 0
	}
	one := Subject{InlineSubject: rules.InlineSubject{Namespace: namespace, Key: []string{key},
		Limits: []document.InlineLimit{l}, Exact: true}}
	one.Costs = []UnitCost{{document.Requests, cost}}
	return Query{Subjects: []Subject{one}}
}

// A key of CL.THROTTLE or INCREX has one counter, whatever limits come with its
// calls. It keeps its window, at any node and while it moves. Nobody needs its
// limits to read or drop it.
func TestKeysKeepOneCounter(t *testing.T) {
	for namespace, want := range map[string]struct {
		used        int64         // after a call with another limit
		left, other time.Duration // after three; after that call
	}{
		rules.CellNamespace:     {4, 3 * time.Second, 10 * time.Second},
		rules.ThrottleNamespace: {4, 3 * time.Second, 10 * time.Second},
		rules.IncrexNamespace:   {3, 5 * time.Second, 5 * time.Second},
	} {
		t.Run(namespace, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3, "rules: []")
				everywhere := func(what string, want KeyUsage) {
					t.Helper()
					for i, n := range w.nodes {
						if have, err := n.KeyUsage(namespace, "k"); err != nil || have != want {
							t.Errorf("%s, node %d: have %+v, %v, want %+v", what, i, have, err, want)
						}
					}
				}
				everywhere("before", KeyUsage{})
				for i := range 3 {
					w.nodes[i].check(keptQuery(namespace, "k", 5, 5, 5*time.Second, 1))
				}
				everywhere("three", KeyUsage{3, want.left})

				// In the window of 5 s, two in an hour are two in 5 s.
				a := w.nodes[1].check(keptQuery(namespace, "k", 2, 5, time.Hour, 1))
				if isIncrex := namespace == rules.IncrexNamespace; a.Allowed == isIncrex ||
					!isIncrex && a.Limits[0].ResetAfter != 10*time.Second {
					t.Errorf("another limit: have %+v", a.Limits[0])
				}
				used := want.used
				everywhere("another limit", KeyUsage{used, want.other})

				u, err := w.nodes[0].locateKept(namespace, "k")
				expect.NoError(t, err)
				for _, n := range w.nodes {
					w.handOver(ring.PartitionOf(u.Hash.Hi), n)
					everywhere("moved", KeyUsage{used, want.other})
				}
				time.Sleep(time.Second)
				everywhere("a second later", KeyUsage{used, want.other - time.Second})

				for _, n := range w.nodes {
					n.check(keptQuery(namespace, "other", 5, 5, 5*time.Second, 1))
				}
				if had, err := w.nodes[2].ResetKey(namespace, "k"); err != nil || had.Used != used {
					t.Errorf("dropped: have %+v, %v", had, err)
				}
				everywhere("dropped", KeyUsage{})
				if had, err := w.nodes[0].ResetKey(namespace, "k"); err != nil || had.Used != 0 {
					t.Errorf("dropped again: have %+v, %v", had, err)
				}
				if other, err := w.nodes[0].KeyUsage(namespace, "other"); err != nil || other.Used != 3 {
					t.Errorf("another key: have %+v, %v", other, err)
				}
				a = w.nodes[0].check(keptQuery(namespace, "k", 1, 1, time.Minute, 1))
				if everywhere("begun again", KeyUsage{1, time.Minute}); !a.Allowed {
					t.Errorf("begun again: have %+v", a.Limits[0])
				}
			})
		})
	}
}

// A refused call drains the bucket at its own rate from then on: it may go on
// when it was told so, whatever others asked before.
func TestRefusedCallsSeeTheirOwnRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules: []")
		slow := keptQuery(rules.CellNamespace, "k", 1, 5, 10*time.Second, 1)
		for range 5 {
			w.nodes[0].check(slow)
		}
		fast := keptQuery(rules.CellNamespace, "k", 100, 5, 10*time.Second, 1)
		a := w.nodes[1].check(fast)
		if a.Allowed || a.Limits[0].RetryAfter != 100*time.Millisecond {
			t.Fatalf("have %+v", a.Limits[0])
		}
		time.Sleep(100 * time.Millisecond)
		if a := w.nodes[2].check(fast); !a.Allowed {
			t.Errorf("after that time: have %+v", a.Limits[0])
		}
		// A peek changes nothing.
		peek := slow
		peek.Subjects = []Subject{slow.Subjects[0]}
		peek.Subjects[0].Mode = counters.PeekMode
		before, _ := w.nodes[0].KeyUsage(rules.CellNamespace, "k")
		w.nodes[0].check(peek)
		if after, err := w.nodes[0].KeyUsage(rules.CellNamespace, "k"); err != nil || after != before {
			t.Errorf("after a peek: have %+v, %v, want %+v", after, err, before)
		}
	})
}

// Namespaces that the document does not allow are refused.
func TestKeptKeysNeedTheirNamespace(t *testing.T) {
	w := newTestCluster(t, 1, "inline: {namespaces: [cl]}\nrules: []")
	if _, err := w.nodes[0].KeyUsage(rules.CellNamespace, "k"); err != nil {
		t.Error(err)
	}
	if _, err := w.nodes[0].ResetKey(rules.IncrexNamespace, "k"); !errors.Is(err, rules.ErrNamespace) {
		t.Errorf("have %v", err)
	}
}
