package partitions

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/ring"
)

var (
	seed  = flag.Uint64("seed", 3, "of the first random run")
	seeds = flag.Uint64("seeds", 1, "how many random runs; make models has more")
)

// runs returns the number of random runs.
func runs() uint64 {
	if testing.Short() {
		return (*seeds + 1) / 2
	}
	return *seeds
}

// steps returns n, or fewer with -short.
func steps(n int) int {
	if testing.Short() {
		return n / 3
	}
	return n
}

// Nodes are killed, ended, restarted, removed and added, one after another,
// under load. No partition ever has two owners, and each has one again
// afterwards. Only changes that a killed owner had not pushed yet are
// forgotten.
func TestG5_KillsForgetOnlyTheTail(t *testing.T) {
	for s := *seed; s < *seed+runs(); s++ {
		synctest.Test(t, func(t *testing.T) { randomRun(t, s) })
	}
}

// tail bounds the age of the admissions that the kill of their owner may
// forget: an interval, plus the time of a message.
const tail = 150 * time.Millisecond

func randomRun(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	f := newFleet(t)
	for range 3 + rnd.IntN(3) {
		f.add()
	}
	f.bring(f.nodes...)
	f.ring(f.nodes...)
	f.settle()
	stop := make(chan struct{})
	var watching sync.WaitGroup
	f.watch(stop, &watching)
	l := f.load(200, func() []*node { return f.living() })
	for step := range steps(12) {
		time.Sleep(time.Duration(300+rnd.IntN(500)) * time.Millisecond)
		n := f.nodes[rnd.IntN(len(f.nodes))]
		what := rnd.IntN(4)
		t.Logf("seed %d, step %d: %d with %s", seed, step, what, n.ip)
		switch what {
		case 0: // killed, ended, comes back
			f.forget(l, n)
			n.kill()
			time.Sleep(2100 * time.Millisecond)
			f.end(n)
			f.settle()
			time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
			n.restart()
			f.bring(n)
			f.ring(f.nodes...)
		case 1: // killed, back before it is ended
			f.forget(l, n)
			n.kill()
			time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
			n.restart()
			time.Sleep(2100 * time.Millisecond)
			f.bring(n)
		case 2: // leaves and comes back
			f.leave(n)
			f.settle()
			f.ring(f.nodes...)
		case 3: // killed in the middle of a move
			f.leave(n)
			time.Sleep(time.Duration(rnd.IntN(60)) * time.Millisecond)
			victim := f.nodes[rnd.IntN(len(f.nodes))]
			f.forget(l, victim)
			victim.kill()
			time.Sleep(2100 * time.Millisecond)
			t.Logf("step %d: victim %s, epoch %d", step, victim.ip, f.state.Epoch)
			if rnd.IntN(2) == 0 {
				t.Logf("step %d: ended", step)
				f.end(victim)
				victim.restart()
				f.bring(victim)
			} else {
				victim.restart()
				f.bring(victim)
			}
			f.settle()
			f.ring(f.nodes...)
		}
		f.settle()
		if testing.Verbose() {
			f.deficit(l, step)
		}
	}
	time.Sleep(300 * time.Millisecond)
	l.stop()
	close(stop)
	watching.Wait()
	for i := range l.admitted {
		used, want := f.used(keyOf(i)), l.admitted[i].Load()
		if used > want || used < want-l.lost[i].Load() {
			t.Errorf("seed %d, key %d: have %d used, want %d, or fewer by at most %d", seed, i,
				used, want, l.lost[i].Load())
		}
	}
	for _, n := range f.nodes {
		n.close()
	}
}

// forget records that n's latest admissions may be forgotten, because it is about to be killed.
func (f *fleet) forget(l *load, n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.recent {
		if a.by == n && time.Since(a.at) < tail {
			l.lost[a.key].Add(1)
		}
	}
	l.victim, l.victimSince = n, time.Now()
}

func (f *fleet) living() (list []*node) {
	for _, n := range f.all() {
		if n.alive.Load() {
			list = append(list, n)
		}
	}
	return list
}

// restart starts a killed node again, without counters: its checkpoint is lost, too.
func (n *node) restart() {
	n.table.Load().Close()
	n.fleet.mu.Lock()
	n.table.Store(newTable())
	n.fleet.mu.Unlock()
	n.boots++
	n.start(n.boots)
}

// deficit logs how much has been forgotten so far.
func (f *fleet) deficit(l *load, step int) {
	most, may, key := int64(0), int64(0), 0
	lost := map[string]int64{}
	for i := range l.admitted {
		used := f.used(keyOf(i))
		if used >= 0 {
			f.mu.Lock()
			from, _ := f.state.Owners(ringPartition(i))
			f.mu.Unlock()
			lost[f.byID(from).ip] += l.admitted[i].Load() - used
		}
		if d := l.admitted[i].Load() - used; used >= 0 && d > most {
			most, may, key = d, l.lost[i].Load(), i
		}
	}
	f.t.Logf("%v", lost)
	f.t.Logf("step %d: key %d has lost %d, and may have lost %d", step, key, most, may)
}

func ringPartition(i int) int { return ring.PartitionOf(keyOf(i).Subject) }
