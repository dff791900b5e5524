package partitions

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// Moves with broken links, frozen nodes, and states that arrive late or several
// at once: unless a node is killed or ended, no hit is forgotten or counted
// twice.
func TestG6_MovesUnderFaultsForgetNothing(t *testing.T) {
	for s := *seed; s < *seed+runs(); s++ {
		synctest.Test(t, func(t *testing.T) { chaos(t, s, false) })
	}
}

// The same with kills, and with nodes that are ended before they can notice: no
// partition ever has two owners, and each has one again in the end.
func TestNeverTwoOwners_UnderFaults(t *testing.T) {
	for s := *seed; s < *seed+runs(); s++ {
		synctest.Test(t, func(t *testing.T) { chaos(t, s, true) })
	}
}

// storm is a run under faults.
type storm struct {
	*fleet
	rnd      *rand.Rand
	admitted [150]atomic.Int64
	kills    bool
}

func chaos(t *testing.T, seed uint64, kills bool) {
	s := &storm{fleet: newFleet(t), rnd: rand.New(rand.NewPCG(seed, 11)), kills: kills}
	for range 3 + s.rnd.IntN(3) {
		s.add()
		time.Sleep(time.Duration(s.rnd.IntN(100)) * time.Millisecond)
	}
	s.bring(s.nodes...)
	s.ring(s.nodes...)
	s.settle()
	s.net.Delay(time.Duration(s.rnd.IntN(4)) * time.Millisecond)
	stop := make(chan struct{})
	var watching sync.WaitGroup
	s.watch(stop, &watching)
	ctx, cancel := context.WithCancel(context.Background())
	var loading sync.WaitGroup
	for w := range 3 {
		loading.Go(func() { s.load(ctx, w) })
	}
	for step := range steps(8) {
		if s.step(seed, step); t.Failed() {
			break
		}
	}
	cancel()
	loading.Wait()
	time.Sleep(2 * time.Second)
	close(stop)
	watching.Wait()
	for i := range s.admitted {
		used, want := s.used(keyOf(i)), s.admitted[i].Load()
		if used < 0 || !kills && used != want {
			t.Errorf("seed %d, key %d: have %d used, want %d", seed, i, used, want)
		}
	}
	for _, n := range s.nodes {
		n.close()
	}
}

func (s *storm) load(ctx context.Context, w int) {
	for i := w; ctx.Err() == nil; i += 7 {
		k := i % len(s.admitted)
		if from := s.living(); len(from) > 0 {
			if _, ok, err := s.take(from[i%len(from)], keyOf(k)); err == nil && ok {
				s.admitted[k].Add(1)
			}
		}
		time.Sleep(time.Duration(1500+i%900) * time.Microsecond)
	}
}

func (s *storm) any() *node { return s.nodes[s.rnd.IntN(len(s.nodes))] }

func (s *storm) nap(most int) { time.Sleep(time.Duration(s.rnd.IntN(most)) * time.Millisecond) }

// step begins a move, disturbs it, and waits for its end.
func (s *storm) step(seed uint64, step int) {
	leaver := s.any()
	s.t.Logf("seed %d, step %d: %s leaves or comes", seed, step, leaver.ip)
	s.disturb()
	switch {
	case s.state.To.Rank(leaver.id) >= 0 && len(s.state.To.Members()) > 2:
		s.leave(leaver)
	default:
		s.ring(s.nodes...)
	}
	s.nap(40)
	s.disturb()
	s.nap(1200)
	if s.kills {
		s.strike()
	}
	s.calm()
	s.settle()
	if s.rnd.IntN(2) == 0 {
		s.ring(s.nodes...) // at once; there may be nothing to move
		s.settle()
	}
}

func (s *storm) disturb() {
	for range 1 + s.rnd.IntN(3) {
		a, b := s.any(), s.any()
		switch s.rnd.IntN(5) {
		case 0:
			s.net.Cut(a.ip, b.ip)
		case 1:
			s.net.CutOneWay(a.ip, b.ip)
		case 2:
			s.net.Freeze(a.ip)
		case 3:
			a.lag.Store(int64(s.rnd.IntN(800)+1) * int64(time.Millisecond))
		case 4:
			s.net.HealAll()
		}
	}
}

func (s *storm) calm() {
	s.net.HealAll()
	for _, n := range s.nodes {
		s.net.Thaw(n.ip)
		n.lag.Store(0)
	}
}

// strike ends a node that does not notice, or kills one.
func (s *storm) strike() {
	n := s.any()
	switch s.rnd.IntN(4) {
	case 0: // frozen for long: it is ended, and applies its end late
		s.t.Logf("%s is frozen and ended", n.ip)
		s.net.Freeze(n.ip)
		n.lag.Store(int64(4 * time.Second))
		time.Sleep(2 * time.Second)
		n.authority.Store(false)
		time.Sleep(20 * time.Millisecond)
		s.agree(agreement.EndNode{Node: n.id, Generation: s.state.Generation(n.id)})
		s.nap(1500)
		s.calm()
		s.eventually("the node applies its end",
			func() bool { return n.keeper.Load().AdoptedRevision() >= s.state.LastEnded })
		n.authority.Store(true)
	case 1: // its authority runs out and comes back
		s.net.Freeze(n.ip)
		time.Sleep(2 * time.Second)
		n.authority.Store(false)
		s.nap(1000)
		s.net.Thaw(n.ip)
		n.authority.Store(true)
	case 2: // killed and ended
		s.t.Logf("%s is killed and ended", n.ip)
		n.kill()
		time.Sleep(2100 * time.Millisecond)
		s.end(n)
		s.nap(500)
		n.lag.Store(0)
		n.restart()
		s.bring(n)
	case 3: // killed, and back at once
		s.t.Logf("%s is killed", n.ip)
		n.kill()
		s.nap(800)
		n.lag.Store(0)
		n.restart()
		time.Sleep(2100 * time.Millisecond)
		s.bring(n)
	}
}
