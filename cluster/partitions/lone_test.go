package partitions

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// collectable counts the counters with changes that were not yet collected for copy targets.
func (n *node) collectable(t *testing.T) (count int) {
	err := n.table.Load().Replicate(func(int) bool { return true }, func(_ int, records []counters.Record) error {
		count += len(records)
		return nil
	})
	expect.NoError(t, err)
	return count
}

// While a node has never been in a ring with others, its changes are not
// collected. The first node that joins gets all counters, and from then on
// changes are collected, even when the node is alone again.
func TestNothingIsCollectedForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 300
		f := newFleet(t)
		a := f.add()
		f.bring(a)
		f.ring(a)
		f.settle()
		taken := int64(0)
		takeAll := func() {
			for i := range keys {
				if _, allowed, err := f.take(a, keyOf(i)); err != nil || !allowed {
					t.Fatalf("key %d: allowed %v, %v", i, allowed, err)
				}
			}
			taken++
			time.Sleep(time.Second)
		}
		takeAll()
		if have := a.collectable(t); have != keys {
			t.Errorf("%d of %d changes are collectable, want all", have, keys)
		}
		takeAll()
		b := f.add()
		f.bring(b)
		f.ring(a, b)
		f.settle()
		takeAll()
		moved := 0
		for i := range keys {
			expect.Equal(t, f.used(keyOf(i)), taken, "key %d, used", i)
			if !a.table.Load().IsOpen(keyOf(i).Partition()) {
				moved++
			}
		}
		if moved == 0 {
			t.Error("no key has moved")
		}
		f.leave(b)
		f.settle()
		takeAll()
		expect.Equal(t, a.collectable(t), 0, "changes were not collected")
		for i := range keys {
			expect.Equal(t, f.used(keyOf(i)), taken, "key %d, alone again, used", i)
		}
		a.close()
		b.close()
	})
}

// A node that came back lacks copies until the owners have sent them. It lacks
// none while no owner can be reached.
func TestLacking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b := f.nodes[0], f.nodes[1]
		f.eventually("all copies are there",
			func() bool { return !a.keeper.Load().LacksCopies() && !b.keeper.Load().LacksCopies() })
		f.net.Delay(30 * time.Millisecond) // slow down the copies
		b.kill()
		b.restart()
		f.bring(b)
		f.eventually("it lacks copies", func() bool { return b.keeper.Load().LacksCopies() })
		f.eventually("its copies are there", func() bool {
			return b.keeper.Load().AdoptedRevision() == f.state.Revision &&
				!b.keeper.Load().IsRecovering() && !b.keeper.Load().LacksCopies()
		})
		for p := range ring.Partitions {
			if f.state.From.Standby(p) == b.id && !b.keeper.Load().holdsCopy(p) {
				t.Fatalf("partition %d: no complete copy", p)
			}
		}
		b.kill()
		b.restart()
		f.bring(b)
		f.eventually("it lacks copies again", func() bool { return b.keeper.Load().LacksCopies() })
		a.kill()
		f.nodes[2].kill()
		f.eventually("no owner can send copies", func() bool { return !b.keeper.Load().LacksCopies() })
		b.close()
	})
}

// holdsCopy reports whether k has a complete copy of p.
func (k *Keeper) holdsCopy(p int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.parts[p].copyComplete
}
