package main

import (
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// These tests run real processes on a machine that may be slow, so they only
// log how long things took. The same tests on virtual time assert that a check
// is decided within a second and that the whole limit is available within five.

// exactRules has one rule without leases, whose window does not turn during a test.
func exactRules(limit int) string {
	return fmt.Sprintf("version: 1\nrules:\n  - {name: year, key: [ip], consistency: exact, limits: [{limit: %d, per: 8760h, algorithm: fixed-window}]}\n", limit)
}

func TestThreeNodesFormOneCluster(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.nodes = append(f.nodes, f.newNode(4, 0))
	f.nodes[3].startProcess()
	f.awaitWhole()
}

func TestG1_ExactlyTheLimitFromAllNodes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.nodes[1].apply(exactRules(300))
	l := f.startTraffic("year", subjects(3), 12, 4*time.Millisecond)
	process.Eventually(t, "more than the limits is requested", func() bool { return l.refused.Load() > 300 })
	l.end()
	for i := range l.keys {
		expect.Equal(t, l.admitted[i].Load(), 300, "%s: admitted", l.keys[i])
	}
	if l.failed.Load() > 0 {
		t.Errorf("%d checks failed", l.failed.Load())
	}
}

// Under load, nodes are restarted one after another, and one joins and leaves for good.
func TestG6_RollingRestartForgetsNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.nodes[0].apply(exactRules(1_000_000))
	keys := subjects(300)
	l := f.startTraffic("year", keys, 3, 10*time.Millisecond)
	for _, m := range f.nodes {
		m.signal(syscall.SIGTERM)
		expect.Equal(t, m.awaitExit(), 0, "%s: exit code", m.name)
		m.startProcess()
		f.awaitWhole()
	}
	l.end()
	if l.failed.Load() > 0 {
		t.Errorf("%d checks failed", l.failed.Load())
	}
	f.checkTotals(l)
}

// checkTotals compares what was admitted with what the owners have counted. If
// the machine stalled for almost a second, the standby or the fallback may have
// decided a check that the owner may have counted, too.
func (f *fleet) checkTotals(l *traffic) {
	f.t.Helper()
	alone := int64(0)
	for _, by := range []string{"fallback", "standby"} {
		if n, ok := l.by.Load(by); ok {
			alone += n.(*atomic.Int64).Load()
		}
	}
	for i, key := range l.keys {
		used, want := f.nodes[i%len(f.nodes)].used("year", key), l.admitted[i].Load()
		if used < want-alone || used > want+alone {
			f.t.Errorf("%s: have %d used, want %d, give or take %d", key, used, want, alone)
		}
	}
}

func TestG5_KilledOwner_long(t *testing.T) {
	long(t)
	const limit = 1200
	f := newFleet(t, 3)
	f.nodes[0].apply(exactRules(limit))
	keys := subjects(1)
	owner := f.ownerOf(f.nodes[0], "year", keys[0])
	l := f.startTraffic("year", keys, 4, 8*time.Millisecond)
	process.Eventually(t, "a third is used", func() bool { return l.total() > limit/3 })
	before := l.total()
	time.Sleep(100 * time.Millisecond)
	lastMoments := l.total() - before
	killed := time.Now()
	owner.kill()
	process.Eventually(t, "the whole limit is available again", func() bool { return l.total() >= limit })
	whole := time.Since(killed)
	time.Sleep(300 * time.Millisecond)
	l.end()
	t.Logf("the whole limit was available after %v; %d were admitted in the 100 ms before the kill", whole, lastMoments)
	if n := l.total(); n > limit+2*lastMoments {
		t.Errorf("have %d admitted, want at most %d and the %d of the last 100 ms", n, limit, lastMoments)
	}
	if l.failed.Load() > 0 {
		t.Errorf("%d checks failed", l.failed.Load())
	}
}

// A paused owner does not decide after it resumes until it has authority again;
// the same holds for the leader.
func TestG5_PausedOwnerAndLeader_long(t *testing.T) {
	t.Parallel()
	long(t)
	for _, leads := range []bool{true, false} {
		t.Run(fmt.Sprint("leads: ", leads), func(t *testing.T) {
			t.Parallel()
			pausedOwner(t, leads)
		})
	}
}

// pausedOwner pauses the leader, which most probably owns some of the subjects,
// or an owner that doesn't lead.
func pausedOwner(t *testing.T, leads bool) {
	const limit = 120
	f := newFleet(t, 3)
	f.nodes[0].apply(exactRules(limit))
	c, err := f.nodes[0].cluster()
	expect.NoError(t, err)
	keys, victim := subjects(12), f.byName(c.Leader)
	for _, key := range keys {
		if m := f.ownerOf(f.nodes[0], "year", key); !leads && m.name != c.Leader {
			victim = m
		}
	}
	l := f.startTraffic("year", keys, 3, 25*time.Millisecond)
	process.Eventually(t, "some is requested", func() bool { return l.total()+l.refused.Load() > limit/4 })
	by := victim.pause(5*time.Second, "year", keys)
	t.Logf("the first checks afterwards were decided by %v", by)
	if slices.Contains(by, "owner") {
		t.Errorf("it decided as an owner after the pause: %v", by)
	}
	f.awaitWhole()
	l.end()
	if l.failed.Load() > 0 {
		t.Errorf("%d checks failed", l.failed.Load())
	}
	f.nodes[0].apply(exactRules(limit + 1)) // as one more write
	f.nodes[0].apply(exactRules(limit))
	for i, key := range keys {
		if used := f.nodes[i%3].used("year", key); used > limit {
			t.Errorf("%s: have %d used, want at most %d", key, used, limit)
		}
	}
}
