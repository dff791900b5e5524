package partitions

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// TestTheEndedAreAsked: a node that is ended while alive, because its disk
// hangs, sends its counters to a new owner that has no complete copy. It does
// not know that it was ended.
func TestTheEndedAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b, c, d := f.add(), f.add(), f.add(), f.add()
		f.bring(a, b, c, d)
		f.ring(a, b, c, d)
		f.settle()
		const keys, hits = 300, 20
		for i := range keys * hits {
			if _, ok, err := f.take(b, keyOf(i%keys)); err != nil || !ok {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		// The owner applies no more entries, so it does not notice that its standby
		// dies and is replaced.
		a.lag.Store(int64(time.Hour))
		f.agree(agreement.Empty{})
		c.kill()
		f.end(c)
		time.Sleep(5 * time.Second)
		f.end(a)
		f.eventually("all partitions have owners", func() bool {
			for p := range ring.Partitions {
				if !b.table.Load().IsOpen(p) && !d.table.Load().IsOpen(p) {
					return false
				}
			}
			return true
		})
		lost := 0
		for i := range keys {
			if have := f.used(keyOf(i)); have < hits {
				lost++
				t.Logf("key %d: %d of %d", i, have, hits)
			}
		}
		if lost > 0 {
			t.Errorf("%d of %d subjects have forgotten hits", lost, keys)
		}
	})
}

// TestARestartedStandbyAsksTheEnded: the standby of a node that is about to be
// ended restarts. It applies the log before or after the end. Only the ended
// node has the hits that were admitted in between.
func TestARestartedStandbyAsksTheEnded(t *testing.T) {
	for name, starts := range map[string]func(f *fleet, owner, standby *node){
		"before the end": func(f *fleet, owner, standby *node) {
			standby.start(2)
			f.end(owner)
			f.agree(agreement.Empty{})
		},
		"after the end": func(f *fleet, owner, standby *node) {
			f.end(owner)
			standby.start(2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newThreeNodes(t)
				a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
				a.lag.Store(int64(time.Hour))
				f.agree(agreement.Empty{})
				b.kill()
				keys := 0
				const hits = 20
				for i := range 300 {
					if p := ring.PartitionOf(keyOf(i).Subject); f.state.To.Owner(p) != a.id ||
						f.state.To.Standby(p) != b.id {
						continue
					}
					keys++
					for range hits {
						if _, ok, err := f.take(a, keyOf(i)); err != nil || !ok {
							t.Fatal(err)
						}
					}
				}
				b.table.Store(newTable())
				before := f.state.To
				starts(f, a, b)
				f.bring(b)
				f.eventually("all partitions have owners", func() bool {
					for p := range ring.Partitions {
						if !b.table.Load().IsOpen(p) && !c.table.Load().IsOpen(p) {
							return false
						}
					}
					return true
				})
				lost := 0
				for i := range 300 {
					p := ring.PartitionOf(keyOf(i).Subject)
					if before.Owner(p) == a.id && before.Standby(p) == b.id && f.used(keyOf(i)) < hits {
						lost++
					}
				}
				if lost > 0 || keys == 0 {
					t.Errorf("%d of %d subjects have forgotten hits", lost, keys)
				}
			})
		})
	}
}

// TestDebtsOutliveAnOldTurnAsOwner: a node that applies no entries is promoted
// in place of a dead owner, and then ended because it does not take over. When
// it catches up, it is the owner for the time of one entry. It still owes the
// present owner the costs that it admitted alone.
func TestDebtsOutliveAnOldTurnAsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b, c, d := f.add(), f.add(), f.add(), f.add()
		f.bring(a, b, c, d)
		f.ring(a, b, c, d)
		f.settle()
		i := 0
		for p := ring.PartitionOf(keyOf(i).Subject); f.state.To.Owner(p) != a.id ||
			f.state.To.Standby(p) != b.id; p = ring.PartitionOf(keyOf(i).Subject) {
			i++
		}
		b.lag.Store(int64(time.Hour))
		f.agree(agreement.Empty{})
		a.kill()
		f.end(a)
		turn := f.state
		time.Sleep(time.Second)
		f.end(b)
		f.eventually("another node continues", func() bool {
			p := ring.PartitionOf(keyOf(i).Subject)
			return c.table.Load().IsOpen(p) || d.table.Load().IsOpen(p)
		})
		const hits = 7
		for range hits {
			if v := b.keeper.Load().DecideAlone(now(),
				[]counters.Op{{Key: keyOf(i), Limit: &limit, Cost: 1}}); v != counters.Admitted {
				t.Fatal(v)
			}
		}
		b.keeper.Load().Adopt(turn)
		b.keeper.Load().Adopt(f.state)
		f.agree(agreement.RegisterProcess{Node: b.id, Boot: b.boot})
		b.keeper.Load().Adopt(f.state)
		b.authority.Store(true)
		f.eventually("the debts are reported", func() bool { return f.used(keyOf(i)) == hits })
	})
}

// An owner that applies no entries decides alone, and is ended. The next owner
// pulls its copy, which has what it decided alone. Once it has caught up, it
// does not owe that again.
func TestDebtsInAPulledCopyAreNotOwedAgain(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		keys := f.keysOf(a, b, 20)
		a.lag.Store(int64(time.Hour))
		f.agree(agreement.Empty{})
		b.kill()
		a.authority.Store(false)
		for _, i := range keys {
			decideAlone(t, a, i, counters.Admitted)
			decideAlone(t, a, i, counters.Admitted)
		}
		b.table.Store(newTable())
		b.start(2)
		f.end(a)
		f.agree(agreement.Empty{})
		f.bring(b)
		f.eventually("they are in the copy", func() bool { return f.usedIs(keys, 2) })

		a.keeper.Load().Adopt(f.state)
		f.agree(agreement.RegisterProcess{Node: a.id, Boot: a.boot})
		a.keeper.Load().Adopt(f.state)
		a.authority.Store(true)
		f.eventually("the debts are reported", func() bool { return a.keeper.Load().Stats().Debts == 0 })
		if !f.usedIs(keys, 2) {
			t.Errorf("what was decided alone is counted twice: %d used, want 2", f.used(keyOf(keys[0])))
		}
	})
}

// A node that was ended, and does not know it, keeps its counters. Once another
// node has owned the partition since, nothing of them counts any more: neither
// hits that were reset since, nor that it would have all slots.
func TestCopiesOfTheEndedGrowOld(t *testing.T) {
	for name, tt := range map[string]struct{ standbyLives, slotsAreLost bool }{
		"the standby lives":   {standbyLives: true},
		"the standby is lost": {slotsAreLost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newThreeNodes(t)
				a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
				key := keyOf(f.keysOf(a, b, 1)[0])
				for range 20 {
					if _, ok, err := f.take(a, key); err != nil || !ok {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second) // its standby has them

				a.lag.Store(int64(time.Hour))
				f.agree(agreement.Empty{})
				f.end(a)
				f.eventually("the standby owns it", func() bool { return f.used(key) == 20 })

				reset := &counters.Amendment{Ops: []counters.Op{{Key: key, Limit: &limit}}, Reset: counters.ResetSubject}
				if err := b.table.Load().Amend(now(), reset); err != nil {
					t.Fatal(err)
				}
				if _, ok, err := f.take(b, key); err != nil || !ok {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second) // its next standby has a copy

				b.kill()
				b.table.Store(newTable())
				if !tt.standbyLives {
					c.kill()
					c.table.Store(newTable())
					c.start(3)
					f.bring(c)
				}
				b.start(2)
				f.bring(b)
				f.eventually("it has an owner", func() bool { return f.used(key) >= 0 })

				if used := f.used(key); tt.standbyLives && used != 1 {
					t.Errorf("got %d used after a reset and one hit, want 1", used)
				}
				lp := b.table.Load().Notes().Lock(ring.PartitionOf(key.Subject), now().Steady)
				_, lost := lp.LostAt(key.Subject)
				lp.Unlock()
				if lost != tt.slotsAreLost {
					t.Errorf("slots count as lost: got %v, want %v", lost, tt.slotsAreLost)
				}
			})
		})
	}
}

// A node that said that its copy is complete, and restarted before it sent it,
// has sent less: what it sends counts as whole only if it is what it spoke of.
func TestACopyOfAnotherProcessIsNotWhole(t *testing.T) {
	for name, restarted := range map[string]bool{"the same process": false, "another process": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newThreeNodes(t)
				defer f.closeAll()
				a, b := f.nodes[0], f.nodes[1]
				p := ringPartition(f.keysOf(a, b, 1)[0])
				k := a.keeper.Load()

				said := version{lineage: 7, tenure: 1, round: 3}
				sent := said
				if restarted {
					sent = version{} // of the last checkpoint, of unknown age
				}

				k.mu.Lock()
				s := &search{since: time.Now(), found: map[ring.NodeID]copyInfo{b.id: {whole: true, version: said}}}
				k.parts[p].search = s
				k.parts[p].copyComplete = false
				k.adoptCopy(b.id, &incomingCopy{section: section{p: p, version: sent}})
				whole := s.gotWhole
				k.mu.Unlock()

				// What its next process says of its copies changes nothing.
				asked := copyRequest{[]int{p}, []*search{s}}
				k.handleCopyInfo(b.id, 2, asked, map[int]copyInfo{p: {}}, nil)

				k.mu.Lock()
				later := s.gotWhole
				k.parts[p].search = nil
				k.mu.Unlock()

				if whole == restarted || later == restarted {
					t.Errorf("got %v, and %v after the next process's answer; want %v", whole, later, !restarted)
				}
			})
		})
	}
}

// A partition that left and came back is searched anew. An answer to the search
// before says nothing about it: the copies that came with the answer were
// ignored, so they must be asked for again.
func TestAnAnswerToAnEarlierSearchIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		defer f.closeAll()
		a, b := f.nodes[0], f.nodes[1]
		p := ringPartition(f.keysOf(a, b, 1)[0])
		k := a.keeper.Load()

		earlier := copyRequest{[]int{p}, []*search{{since: time.Now(), found: map[ring.NodeID]copyInfo{}}}}
		found := map[ring.NodeID]copyInfo{b.id: {boot: 1, whole: true}}
		k.mu.Lock()
		k.parts[p].search = &search{since: time.Now(), found: found}
		k.mu.Unlock()

		k.handlePullReply(b.id, earlier, nil)
		k.handleCopyInfo(b.id, 2, earlier, map[int]copyInfo{}, nil)

		k.mu.Lock()
		got := found[b.id]
		k.parts[p].search = nil
		k.mu.Unlock()
		expect.Equal(t, got, copyInfo{boot: 1, whole: true}, "what the search knows of the node")
	})
}
