package partitions

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/agreement"
	"github.com/rlnode/rlnode/ring"
)

// fill takes from keys, once each and times over, as many as are admitted.
func (f *fleet) fill(t *testing.T, l *[]int64, from, to int) {
	t.Helper()
	for len(*l) < to {
		*l = append(*l, 0)
	}
	for i := from; i < to; i++ {
		if _, ok, err := f.take(f.living()[i%len(f.living())], keyOf(i)); err != nil || !ok {
			t.Fatalf("key %d: %v, %v", i, ok, err)
		}
		(*l)[i]++
	}
}

// same checks that nothing was forgotten, and nothing counted twice.
func (f *fleet) same(t *testing.T, admitted []int64) {
	t.Helper()
	wrong := 0
	for i, want := range admitted {
		if used := f.used(keyOf(i)); used != want {
			if wrong++; wrong <= 5 {
				t.Errorf("key %d: have %d used, want %d", i, used, want)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d keys of %d are wrong", wrong, len(admitted))
	}
}

// A node that was a follower, was none for a while and is one again gets what changed meanwhile, even if it did not
// notice the time between.
func TestG5_AFollowerThatWasAwayGetsAWholeCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := three(t)
		a, b := f.nodes[0], f.nodes[1]
		var admitted []int64
		f.fill(t, &admitted, 0, 300)
		f.leave(b)
		f.waitSettled()
		b.lag.Store(int64(time.Second)) // b will see the end of this move and the begin of the next as one
		f.settleBut(b)
		f.fill(t, &admitted, 0, 300)
		time.Sleep(300 * time.Millisecond)
		f.ring(f.nodes...)
		time.Sleep(time.Second)
		b.lag.Store(0)
		f.settle()
		f.fill(t, &admitted, 0, 100)
		time.Sleep(500 * time.Millisecond)
		f.same(t, admitted)
		a.kill()
		time.Sleep(2100 * time.Millisecond)
		f.end(a)
		f.settle()
		f.same(t, admitted)
	})
}

// settleBut is settle where one node hears of it late.
func (f *fleet) settleBut(*node) { f.agree(agreement.Settled{Epoch: f.state.Epoch}) }

// What the nodes reported before a node was ended says nothing of the moves that its end made: here the leader goes by
// such reports, as package authority does.
func TestNeverTwoOwners_ReportsFromBeforeAnEnd(t *testing.T) {
	synctest.Test(t, staleReports)
}

func staleReports(t *testing.T) {
	f := three(t)
	a := f.nodes[0]
	stop := make(chan struct{})
	var watching sync.WaitGroup
	f.watch(stop, &watching)
	var admitted []int64
	f.fill(t, &admitted, 0, 300)
	d := f.add()
	f.bring(d)
	f.ring(f.nodes...)
	reports := map[ring.NodeID]int64{}
	f.eventually("all but d have settled", func() bool {
		for _, n := range f.nodes[:3] {
			reports[n.id] = max(reports[n.id], n.keeper.Settled()) // book.hear
			if n.keeper.Used() < f.state.Revision || reports[n.id] < f.state.Epoch {
				return false
			}
		}
		return true
	})
	time.Sleep(200 * time.Millisecond) // d's next report is not due yet
	d.kill()
	time.Sleep(2100 * time.Millisecond)
	f.end(d)
	time.Sleep(4 * time.Millisecond) // all have begun what was d's
	a.lag.Store(int64(50 * time.Millisecond))
	if !f.state.Settled { // book.settles: every member's report is of this epoch
		f.agree(agreement.Settled{Epoch: f.state.Epoch})
	}
	time.Sleep(100 * time.Millisecond)
	a.lag.Store(0)
	time.Sleep(3 * time.Second)
	f.same(t, admitted)
	close(stop)
	watching.Wait()
}
