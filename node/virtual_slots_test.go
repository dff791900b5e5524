package node

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

// On virtual time, goroutines that are ready at once run in any order, so a
// seed does not repeat a run.
var slotSeeds = flag.Int("slot-seeds", 0, "how many seeds of faults the test of slots tries; make models tries some")

const (
	slotLimit = 7
	slotTTL   = 2 * time.Second
)

const holderRules = `version: 1
rules:
  - {name: render, key: [key], limits: [{limit: 7, ttl: 2s, algorithm: concurrency}]}
  - {name: outer, key: [tenant], limits: [{limit: 5, ttl: 2s, algorithm: concurrency}]}
  - {name: inner, key: [user], limits: [{limit: 1, ttl: 2s, algorithm: concurrency}]}
  - {name: brief, key: [key], limits: [{limit: 2, ttl: 1s, algorithm: concurrency}]}
  - {name: model, key: [key], limits: [{limit: 4, ttl: 2s, algorithm: concurrency}, {limit: 1000000, per: 8760h, unit: tokens, algorithm: fixed-window}]}
`

// slotKey counts, by the workers' own clock, how many hold a slot of a key.
type slotKey struct {
	held, most, acquired atomic.Int64
	lost                 atomic.Int64 // slots that ended before their holder had to give them up
}

func (k *slotKey) add() {
	n := k.held.Add(1)
	k.acquired.Add(1)
	for most := k.most.Load(); n > most && !k.most.CompareAndSwap(most, n); most = k.most.Load() {
	}
}

// worker holds slots, one after another.
type worker struct {
	p      *testCluster
	key    *slotKey
	name   string
	chance *rand.Rand
}

// node returns a node that answers.
func (w *worker) node() *testNode {
	for {
		if v := w.p.nodes[w.chance.IntN(len(w.p.nodes))]; v.ready.Load() {
			return v
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *worker) query() *limiter.Query {
	return &limiter.Query{Rule: "render", Key: []string{w.name}, ByKey: true}
}

// acquire acquires a slot; it returns none if it gets none. Sometimes it asks a
// second node, too, before the first one has answered, as clients do, and hangs
// up on the slower one.
func (w *worker) acquire() (got limiter.Slot) {
	q := w.query()
	attempts := 1
	if w.chance.IntN(2) == 0 {
		attempts = 2
		q.RequestID = fmt.Sprint(w.chance.Uint64())
	}

	var asking sync.WaitGroup
	answered := make(chan limiter.Slot)
	hungUp := make(chan struct{})
	for range attempts {
		v := w.node()
		asking.Go(func() {
			var a limiter.Answer
			slot, err := v.node.limiter.Acquire(q, &a)
			if err != nil || slot.ID == "" || v.crashed.Load() {
				return
			}
			select {
			case answered <- slot:
			case <-hungUp:
				v.node.limiter.ReleaseUnanswered(slot)
			}
		})
		time.Sleep(time.Duration(w.chance.IntN(20)) * time.Millisecond)
	}

	all := make(chan struct{})
	go func() {
		asking.Wait()
		close(all)
	}()
	select {
	case got = <-answered:
		close(hungUp)
	case <-all:
	}
	<-all
	return got
}

// turn acquires a slot, and holds it for a while. Some workers die with it, and others renew it.
func (w *worker) turn() {
	sent := time.Now()
	got := w.acquire()
	if got.ID == "" {
		time.Sleep(time.Duration(w.chance.IntN(100)) * time.Millisecond)
		return
	}
	ends := sent.Add(got.Expires)
	if !time.Now().Before(ends) {
		return
	}
	if w.work(got.ID, ends) {
		_, _ = w.node().node.limiter.ReleaseSlot(got.ID)
	}
}

// work holds a slot, which ends unless it is renewed. It reports whether it is
// still held, to be released. A holder gives its slot up in time even while it
// waits for the answer to a renewal.
func (w *worker) work(id string, ends time.Time) bool {
	w.key.add()
	end := time.AfterFunc(time.Until(ends), func() { w.key.held.Add(-1) })
	giveUp := func() (inTime bool) {
		inTime = end.Stop()
		if inTime {
			w.key.held.Add(-1)
		}
		return inTime
	}

	work := time.Duration(w.chance.IntN(3000)) * time.Millisecond
	if w.chance.IntN(10) == 0 { // it dies: it holds the slot as long as it may
		time.Sleep(time.Until(ends))
		return false
	}

	for done := time.Now().Add(work); time.Now().Before(done); {
		time.Sleep(min(time.Until(done), slotTTL/3, time.Until(ends)))
		if !time.Now().Before(ends) {
			return false
		}

		v, sent := w.node(), time.Now()
		left, err := v.node.limiter.RenewSlot(id, 0)
		switch {
		case v.crashed.Load():
		case !time.Now().Before(ends):
			return false
		case errors.Is(err, limiter.ErrUnknownSlot):
			if giveUp() {
				w.key.lost.Add(1)
			}
			return false
		case err == nil && end.Stop():
			ends = sent.Add(left)
			end.Reset(time.Until(ends))
		}
	}

	return giveUp()
}

// startWorkers starts n workers for each of several keys.
func (p *testCluster) startWorkers(keys, n int, seed uint64) (all []*slotKey, stop func()) {
	var over atomic.Bool
	var done sync.WaitGroup
	for i := range keys {
		k := &slotKey{}
		all = append(all, k)
		for j := range n {
			w := &worker{p, k, fmt.Sprintf("k%d", i), rand.New(rand.NewPCG(seed, uint64(i*1000+j)))}
			done.Go(func() {
				for !over.Load() {
					w.turn()
				}
			})
		}
	}
	return all, func() { over.Store(true); done.Wait() }
}

// In a new cluster there is nothing to lose: slots can be had at once. Once all
// nodes have died, they can't until those that may be held have ended.
func TestSlotsOfANewClusterInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, holderRules)
		granted := func() (n int) {
			for i := range 30 {
				var a limiter.Answer
				q := limiter.Query{Rule: "render", Key: []string{fmt.Sprintf("new%d", i)}, ByKey: true}
				s, err := p.nodes[i%3].node.limiter.Acquire(&q, &a)
				expect.NoError(t, err)
				if s.ID != "" {
					n++
				}
			}
			return n
		}
		if n := granted(); n != 30 {
			t.Errorf("%d of 30 got a slot in a new cluster", n)
		}
		for _, v := range p.nodes {
			v.endProcess(false)
		}
		for _, v := range p.nodes {
			v.startProcess()
		}
		p.awaitWhole()
		if n := granted(); n != 0 {
			t.Errorf("%d got a slot right after all nodes had died", n)
		}
		time.Sleep(slotTTL + time.Second)
		if n := granted(); n != 30 {
			t.Errorf("%d of 30 got a slot once the lost ones had ended", n)
		}
	})
}
