package partitions

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// newThreeNodes brings up three nodes with a settled ring.
func newThreeNodes(t *testing.T) *fleet {
	f := newFleet(t)
	a, b, c := f.add(), f.add(), f.add()
	f.bring(a, b, c)
	f.ring(a, b, c)
	f.settle()
	return f
}

// onThreeNodes runs a test with newThreeNodes on virtual time.
func onThreeNodes(t *testing.T, test func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		defer f.closeAll()
		test(t, f)
	})
}

// After StopDeciding, no change of the agreed state opens a gate again, and
// nothing is decided as a standby.
func TestKeeper_StopDeciding(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		key := keyOf(f.keysOf(b, a, 1)[0])
		a.keeper.Load().StopDeciding()
		b.kill()
		f.end(b) // a would own what b had
		time.Sleep(time.Second)

		for p := range ring.Partitions {
			if a.table.Load().IsOpen(p) {
				t.Fatalf("partition %d is open", p)
			}
		}
		ops := []counters.Op{{Key: key, Limit: &limit, Cost: 1}}
		verdict := a.keeper.Load().DecideAsStandby(now(), ops, []algorithms.Limit{limit}, Unreachable)
		expect.Equal(t, verdict, counters.Undecided, "a decision as the standby")
	})
}

// The standby has what an owner has counted until it stopped deciding.
func TestKeeper_StopDecidingPushesTheLastChanges(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		key := keyOf(f.keysOf(a, b, 1)[0])
		for range 20 {
			_, _, err := f.take(a, key)
			expect.NoError(t, err)
			time.Sleep(7 * time.Millisecond)
		}
		a.keeper.Load().StopDeciding()

		used, _ := b.table.Load().Usage(now(), key, &limit)
		expect.Equal(t, used, 20, "used, at the standby")
	})
}

// Requests at a node that has stopped deciding wait in peace: a wait that ended
// at once would be repeated at once.
func TestKeeper_WaitWhilePendingAfterStopDeciding(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		keeper := a.keeper.Load()
		p := ring.PartitionOf(keyOf(f.keysOf(a, b, 1)[0]).Subject)
		keeper.StopDeciding()
		expect.Equal(t, keeper.Route(p).Location, Pending, "the place of an own partition")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		keeper.WaitWhilePending(ctx, p)
		expect.Equal(t, time.Since(began), time.Second, "waited")
	})
}

// Planned joins and leaves forget nothing. No two nodes decide the same
// partition, and every check is decided.
func TestG6_PlannedMovesForgetNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		stop := make(chan struct{})
		var watching sync.WaitGroup
		f.watch(stop, &watching)
		l := f.load(500, func() []*node { return f.all()[:3] })
		time.Sleep(300 * time.Millisecond)
		d := f.add()
		f.bring(d)
		f.ring(f.nodes...)
		f.settle()
		time.Sleep(200 * time.Millisecond)
		f.leave(f.nodes[1])
		f.settle()
		time.Sleep(200 * time.Millisecond)
		f.ring(f.nodes[0], f.nodes[2], d)
		f.settle()
		time.Sleep(200 * time.Millisecond)
		f.ring(f.nodes...)
		f.settle()
		time.Sleep(200 * time.Millisecond)
		l.stop()
		close(stop)
		watching.Wait()
		if n := l.failed.Load(); n > 0 {
			t.Errorf("%d checks were not decided", n)
		}
		total := int64(0)
		for i := range l.admitted {
			expect.Equal(t, f.used(keyOf(i)), l.admitted[i].Load(), "key %d, used", i)
			total += l.admitted[i].Load()
		}
		if total == 0 {
			t.Error("no check was admitted")
		}
		for _, n := range f.nodes {
			t.Logf("%s: %+v", n.ip, n.keeper.Load().Stats())
			n.close()
		}
	})
}

// A receiver declines a token just while changes are being collected, without
// those in this partition. The standby must get a new copy: otherwise it would
// lack the first changes after the partition opens again.
func TestADeclinedTokenWhileChangesAreCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		time.Sleep(time.Second)
		k := f.nodes[0].keeper.Load()
		p := 0
		for k.adopted.Load().From.Owner(p) != k.config.Self {
			p++
		}
		standby := k.adopted.Load().From.Standby(p)
		receiver := f.nodes[1]
		if receiver.id == standby {
			receiver = f.nodes[2]
		}
		k.mu.Lock()
		pt, before := &k.parts[p], k.targets.progressOf(p, standby)
		pt.receiver, k.collecting = receiver.id, true
		k.setPhase(p, flipping)
		k.mu.Unlock()
		k.handleTokensReply(receiver.id,
			&tokenMessage{boot: receiver.boot, partitions: []int{p}, flipNumbers: []uint64{pt.flipNumber}},
			nil, nil)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.collecting = false
		if before == nil || k.targets.progressOf(p, standby) == before || pt.phase != owning {
			t.Errorf("the standby's copy counts as complete, in phase %d", pt.phase)
		}
	})
}
