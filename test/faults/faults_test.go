//go:build faults

package faults

import (
	"testing"
	"time"
)

// long returns how long a lasting fault lasts: d, or less in a short run.
func long(d time.Duration) time.Duration {
	if testing.Short() {
		return d / 5
	}
	return d
}

// onlyLong skips a scenario in a short run.
func onlyLong(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short")
	}
}

// ownerAndStandby returns the owner and the standby of a random subject.
func (f *fleet) ownerAndStandby(l *load) (owner, standby *node) {
	f.t.Helper()
	o, s, err := f.any().ownerOf("ten", l.keys[f.random.IntN(len(l.keys)/2)])
	if err != nil || f.byName(o) < 0 || f.byName(s) < 0 {
		f.t.Fatalf("owner %q, standby %q: %v", o, s, err)
	}
	return f.nodes[f.byName(o)], f.nodes[f.byName(s)]
}

// noneBy fails if checks were decided in one of these ways. It allows them
// while the machine stalled, because nodes may then take each other for dead.
func (l *load) noneBy(ways ...string) {
	l.fleet.t.Helper()
	for _, way := range ways {
		switch n := l.count()[way]; {
		case n > 0 && l.stalled():
			l.fleet.t.Logf("%d checks were decided by %s, but the machine stalled", n, way)
		case n > 0:
			l.fleet.t.Errorf("%d checks were decided by %s", n, way)
		}
	}
}

// ownerAndAnother returns the owner of a hot subject, and a node that can only lease from it.
func (f *fleet) ownerAndAnother(l *load) (owner, other *node) {
	f.t.Helper()
	name, _, err := f.any().ownerOf("hot", l.keys[0])
	i := f.byName(name)
	if err != nil || i < 0 {
		f.t.Fatalf("owner %q: %v", name, err)
	}
	return f.nodes[i], f.nodes[(i+1+f.random.IntN(len(f.nodes)-1))%len(f.nodes)]
}

func (l *load) stalled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.stalls) > 0
}

// TestG1_Calm also tests the rig itself: without faults, no check is decided without its owner.
func TestG1_Calm(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		f.pass(f.between(11*time.Second, 12*time.Second))
		l.noneBy("fallback", "standby")
	})
}

func TestG5_OwnerKilled(t *testing.T) {
	scenario(t, 3, func(f *fleet, l *load) {
		owner, _ := f.ownerAndStandby(l)
		f.kill(owner)
		f.pass(f.between(6*time.Second, 10*time.Second))
	})
}

// A node that is killed and returns before its eviction has lost its memory,
// and recovers it from the standbys.
func TestG5_OwnerKilledAndBackAtOnce(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		for range 3 {
			owner, _ := f.ownerAndStandby(l)
			f.kill(owner)
			f.pass(f.between(0, time.Second))
			f.heal()
			f.whole(agreeTime)
		}
	})
}

// If two of five are killed at once, partitions that only they had begin anew.
// The other nodes are still a majority.
func TestG5_OwnerAndHolderKilled(t *testing.T) {
	onlyLong(t)
	scenario(t, 5, func(f *fleet, l *load) {
		owner, other := f.ownerAndAnother(l)
		f.killTogether(together, owner, other)
		f.pass(f.between(6*time.Second, 9*time.Second))
	})
}

// A node that owns nothing of a hot subject, and spends its leases.
func TestG5_HolderKilled(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		_, holder := f.ownerAndAnother(l)
		f.kill(holder)
		f.pass(f.between(6*time.Second, 9*time.Second))
	})
}

func TestOwnerAndHolderPaused(t *testing.T) {
	onlyLong(t)
	scenario(t, 5, func(f *fleet, l *load) {
		f.pauseTogether(f.ownerAndAnother(l))
		f.pass(30 * time.Second)
	})
}

// The counters of the last checkpoints come back.
func TestG7_AllKilled(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		at := boottime()
		f.killTogether(saved, f.nodes...)
		f.pass(f.between(0, 2*time.Second))
		for _, n := range f.nodes {
			f.suspect(split, n, at) // until they have found each other
		}
		f.heal()
		f.whole(patience)
		f.pass(6 * time.Second)
	})
}

func TestOwnerPaused(t *testing.T) {
	scenario(t, 3, func(f *fleet, l *load) {
		leader := f.leader()
		owner := leader
		for owner == leader {
			owner, _ = f.ownerAndStandby(l)
		}
		f.pause(owner)
		f.pass(long(30 * time.Second))
	})
}

func TestLeaderPaused(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		f.pause(f.leader())
		f.pass(long(30 * time.Second))
	})
}

// Pauses are about as long as authority lasts.
func TestPausedAgainAndAgain(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		f.fewest = 2 // the next node may be paused before the last one has its partitions again
		for range 8 {
			f.pause(f.any())
			f.pass(f.between(100*time.Millisecond, 4*time.Second))
			f.heal()
			f.pass(f.between(0, 3*time.Second))
		}
	})
}

// cutTime is how long nodes are cut off: two windows that begin without any
// authority left, and those in which the other nodes must have the whole limit
// again.
func cutTime() time.Duration {
	if testing.Short() {
		return 13 * time.Second
	}
	return 21 * time.Second
}

func TestG4_CutOff(t *testing.T) {
	f := newFleet(t, 3)
	f.after = window + 2*time.Second // to check that no subject is locked out
	f.run(func(f *fleet, l *load) {
		f.cut(f.any(), f.random.IntN(2) == 0)
		f.pass(cutTime())
	})
}

// TestG4_NoMajority: no part has a majority, though two nodes reach each other.
// Of four nodes, three are voters. So in two halves, one would have a majority.
func TestG4_NoMajority(t *testing.T) {
	onlyLong(t)
	f := newFleet(t, 4)
	f.after = window + 2*time.Second
	f.run(func(f *fleet, l *load) {
		voters, others := f.voters()
		f.random.Shuffle(len(voters), func(i, j int) { voters[i], voters[j] = voters[j], voters[i] })
		parts := [][]*node{append(others, voters[0])}
		for _, n := range voters[1:] {
			parts = append(parts, []*node{n})
		}
		f.islands(parts...)
		f.pass(cutTime())
	})
}

// TestG4_EachAlone: every node is alone.
func TestG4_EachAlone(t *testing.T) {
	onlyLong(t)
	f := newFleet(t, 3)
	f.after = window + 2*time.Second
	f.run(func(f *fleet, l *load) {
		f.islands(f.nodes[:1], f.nodes[1:2], f.nodes[2:])
		f.pass(cutTime())
	})
}

func TestG4_LeaderCutOff(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		f.cut(f.leader(), f.random.IntN(2) == 0)
		f.pass(20 * time.Second)
	})
}

// TestDeaf: one direction of a link is cut.
func TestDeaf(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		i := f.random.IntN(3)
		a, b := f.nodes[i], f.nodes[(i+1+f.random.IntN(2))%3]
		f.part(a, b, true)
		f.pass(20 * time.Second)
		l.noneBy("fallback")
	})
}

func TestG6_RollingRestarts(t *testing.T) {
	f := newFleet(t, 3)
	var seen *load
	f.run(func(f *fleet, l *load) {
		seen = l
		for range int(long(2*time.Second)/time.Second) + 1 {
			for _, i := range f.random.Perm(3) {
				n := f.nodes[i]
				t.Logf("%s: %s is stopped", clockTime(), n.name)
				n.stop()
				f.pass(f.between(0, 2*time.Second))
				n.up()
				f.whole(agreeTime)
			}
		}
		l.noneBy("fallback", "standby")
	})
	for key, name := range seen.keys {
		used, err := f.nodes[key%3].used(&f.rules[year], key, name)
		all, _ := seen.admitted(0, key, 0, 0)
		most := all + seen.unknown[[2]int{0, key}]
		if err != nil || used < all || used > most && !seen.stalled() {
			t.Errorf("%s: have %d used (%v), want %d to %d", name, used, err, all, most)
		}
	}
}

// TestG9_RulesUnderFaults: clients on all nodes read and write rules while leaders change.
func TestG9_RulesUnderFaults(t *testing.T) {
	nodes := 5
	if testing.Short() {
		nodes = 3
	}
	f := newFleet(t, nodes)
	h := f.history(6)
	f.run(func(f *fleet, l *load) {
		for end := time.Now().Add(long(60 * time.Second)); time.Now().Before(end); {
			leader := f.leader()
			switch f.random.IntN(4) {
			case 0:
				f.kill(leader)
			case 1:
				f.pause(leader)
			case 2:
				f.cut(leader, false)
			case 3:
				f.cut(leader, true)
			}
			f.pass(f.between(500*time.Millisecond, 6*time.Second))
			f.heal()
			f.whole(agreeTime)
			f.pass(f.between(0, time.Second))
		}
		h.end()
	})
	h.judge()
}

// TestRandom causes one random fault after another in a larger cluster.
func TestRandom(t *testing.T) {
	onlyLong(t)
	scenario(t, 5, func(f *fleet, l *load) {
		for end := time.Now().Add(lasting()); time.Now().Before(end); {
			f.disturb()
			f.pass(f.between(100*time.Millisecond, 6*time.Second))
			f.heal()
			f.whole(agreeTime)
			f.pass(f.between(0, 2*time.Second))
		}
	})
}

// disturb disturbs a random node. At most a minority is disturbed at any time.
func (f *fleet) disturb() {
	n := f.any()
	if f.random.IntN(3) == 0 {
		n = f.leader()
	}
	other := f.nodes[(f.index(n)+1+f.random.IntN(len(f.nodes)-1))%len(f.nodes)]
	switch f.random.IntN(7) {
	case 0:
		f.kill(n)
	case 1:
		f.pause(n)
	case 2:
		f.cut(n, false)
	case 3:
		f.cut(n, true)
	case 4:
		f.part(n, other, false)
	case 5:
		f.part(n, other, true)
	case 6:
		f.t.Logf("%s: %s is stopped", clockTime(), n.name)
		n.stop()
	}
}
