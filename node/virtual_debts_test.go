package node

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// Under random cuts, which also make authority lapse and nodes be evicted,
// everything admitted without the owner is counted in the end. Only the last
// decisions of an owner that was cut off may be forgotten.
func TestG4_NothingOwedIsLostInOneProcess(t *testing.T) {
	t.Parallel()
	for seed := range uint64(casesToRun(2)) {
		synctest.Test(t, func(t *testing.T) {
			const keys = 12
			rnd := rand.New(rand.NewPCG(seed, 1))
			p := newTestCluster(t, 3, exactRules(1_000_000))
			var certain, all [keys]atomic.Int64
			var trouble, alone atomic.Int64 // trouble counts cuts and repairs: it is odd while node alone is cut off
			var by [limiter.ByNone + 1]atomic.Int64
			var stop atomic.Bool
			var done sync.WaitGroup
			for w := range 6 {
				done.Go(func() {
					var a limiter.Answer
					for i := w; !stop.Load(); i++ {
						at, key := i%3, (i*5+w)%keys
						before := trouble.Load()
						if before%2 == 1 {
							at = int(alone.Load()) // checks at other nodes would hide the loss
						}
						ok, err := p.nodes[at].check("year", fmt.Sprintf("k%d", key), &a)
						if err != nil {
							t.Error(err)
						}
						if ok {
							by[a.DecidedBy].Add(1)
							all[key].Add(1)
							owed := a.DecidedBy == limiter.ByFallback || a.DecidedBy == limiter.ByStandby
							if owed || before%2 == 0 && trouble.Load() == before {
								certain[key].Add(1)
							}
						}
						time.Sleep(5 * time.Millisecond)
					}
				})
			}
			for range 4 {
				victim := rnd.IntN(3)
				// From here on, what an owner decides may no longer reach its standby.
				alone.Store(int64(victim))
				trouble.Add(1)
				time.Sleep(300 * time.Millisecond)
				p.net.Isolate(p.nodes[victim].ip)
				time.Sleep(time.Duration(500+rnd.IntN(7000)) * time.Millisecond)
				p.net.Rejoin(p.nodes[victim].ip)
				p.awaitWhole()
				trouble.Add(1)
				time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
			}
			stop.Store(true)
			done.Wait()
			p.awaitWhole()
			time.Sleep(5 * time.Second)
			for i := range keys {
				used := p.used("year", fmt.Sprintf("k%d", i))
				if least := certain[i].Load(); used < least {
					t.Errorf("seed %d, key %d: have %d used, at least %d were admitted, at most %d",
						seed, i, used, least, all[i].Load())
				}
			}
			t.Logf("seed %d: by owner %d, forward %d, standby %d, fallback %d", seed,
				by[limiter.ByOwner].Load(), by[limiter.ByForward].Load(),
				by[limiter.ByStandby].Load(), by[limiter.ByFallback].Load())
		})
	}
}
