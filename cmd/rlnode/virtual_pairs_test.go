package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

var (
	moveSeed  = flag.Uint64("move-seed", 30, "of the first random move with a broken link and a kill")
	moveSeeds = flag.Uint64("move-seeds", 2, "how many of them; with -short one")
)

// While a node joins or leaves a link breaks and stays broken, and at some step of the move a node dies. When all is well again
// nothing was forgotten but the dead node's last moments, and nothing is counted twice.
func TestMovesUnderPairsOfFaultsInOneProcess(t *testing.T) {
	t.Parallel()
	n := *moveSeeds
	if testing.Short() {
		n = 1
	}
	for seed := *moveSeed; seed < *moveSeed+n; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { moveUnderFaults(t, seed) })
		})
	}
}

// tally counts what was admitted of some subjects.
type tally struct {
	p    *planet
	keys []string
	stop atomic.Bool
	dead atomic.Bool // a node was killed
	done sync.WaitGroup

	mu      sync.Mutex // guards what follows
	all     []int64    // admitted, as somebody was told
	unsure  []int64    // of them, by a standby or in fallback
	maybe   []int64    // perhaps counted, though nobody was told so
	recent  []admittance
	failed  int64
	decided map[limiter.DecidedBy]int
}

type admittance struct {
	key int
	at  time.Time
}

// count asks about keys at all nodes until stop.
func (p *planet) count(keys []string) *tally {
	c := &tally{
		p: p, keys: keys, all: make([]int64, len(keys)), unsure: make([]int64, len(keys)), maybe: make([]int64, len(keys)),
		decided: map[limiter.DecidedBy]int{},
	}
	nodes := p.nodes
	for w := range 5 {
		c.done.Go(func() {
			for i := w; !c.stop.Load(); i++ {
				if v := nodes[i%len(nodes)]; v.ready.Load() {
					c.ask(v, (i/len(nodes)+w)%len(keys))
				}
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	return c
}

func (c *tally) ask(v *virtual, key int) {
	var a limiter.Answer
	began, dead := time.Now(), c.dead.Load()
	allowed, err := v.check("year", c.keys[key], &a)
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.crashed.Load() || err != nil || time.Since(began) > 50*time.Millisecond || c.dead.Load() != dead {
		c.maybe[key]++
	}
	switch {
	case v.crashed.Load():
		return
	case err != nil:
		c.failed++
		return
	}
	c.decided[a.DecidedBy]++
	if !allowed {
		return
	}
	c.all[key]++
	if a.DecidedBy == limiter.ByFallback || a.DecidedBy == limiter.ByStandby {
		c.unsure[key]++
	} else {
		c.recent = append(c.recent, admittance{key, time.Now()})
	}
}

// tail is how old what a killed node admitted may be and still be forgotten: the time until there is a path around a link that
// has just broken, an interval, and the time of some messages.
const tail = 700 * time.Millisecond

// dies takes note that a node is killed now, and returns, to be called later, how many of each subject may be forgotten: those
// of the last moments, and those without their owner, which it may owe.
func (c *tally) dies() (forgotten func() []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, n := time.Now(), append([]int64{}, c.unsure...)
	return func() []int64 {
		for _, a := range c.recent {
			if since := a.at.Sub(now); since > -tail && since < tail/10 { // some answers are on their way
				n[a.key]++
			}
		}
		for i := range n {
			n[i] += c.maybe[i]
		}
		return n
	}
}

// leaves has a node leave the ring, as at a stop in good order. The function returned, for when all is well again, waits until
// that has ended, in whatever way, and restarts the node, unless somebody else has.
func (v *virtual) leaves() (restart func()) {
	over := make(chan struct{})
	s := v.server
	boot := s.boot
	go func() {
		defer close(over)
		ctx, cancel := context.WithTimeout(context.Background(), leaveBound)
		defer cancel()
		_ = s.mates.stepBack(ctx, false) // it may be killed, or cut off
	}()
	return func() {
		<-over
		if s.boot != boot {
			return
		}
		time.Sleep(5 * time.Second) // what it owes is told
		v.ready.Store(false)
		time.Sleep(time.Second)
		v.down(false)
		v.up()
	}
}

func moveUnderFaults(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 23))
	p := newPlanet(t, 3, exactRules(1_000_000))
	p.net.DelayBetween(p.address(rnd.IntN(3)), p.address(3), time.Duration(5+rnd.IntN(15))*time.Millisecond)
	joins := p.newcomer()
	p.eventually("the newcomer has authority", func() bool { return joins.server.mates.authority() })
	var keys []string
	for i := range 24 {
		keys = append(keys, fmt.Sprintf("k%d", i))
	}
	c := p.count(keys)
	p.eventually("the ring moves", func() bool {
		s := p.nodes[0].server.mates.cluster.Load().State()
		return s.To.Rank(joins.server.id) >= 0
	})
	restart := func() {}
	if seed%2 == 1 {
		p.whole()
		restart = p.nodes[rnd.IntN(4)].leaves()
	}
	a := rnd.IntN(4)
	b := (a + 1 + rnd.IntN(3)) % 4
	victim := p.nodes[rnd.IntN(4)]
	time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond) // a move takes about as long
	p.net.Cut(p.nodes[a].ip, p.nodes[b].ip)
	time.Sleep(time.Duration(rnd.IntN(4000)) * time.Millisecond)
	mayForget := c.dies()
	moving := !p.nodes[0].server.mates.cluster.Load().State().Settled
	c.dead.Store(true)
	victim.down(false)
	time.Sleep(time.Duration(4000+rnd.IntN(4000)) * time.Millisecond)
	p.net.HealAll()
	victim.up()
	restart()
	p.whole()
	time.Sleep(3 * time.Second)
	c.stop.Store(true)
	c.done.Wait()
	p.whole()
	time.Sleep(5 * time.Second)
	forgotten := mayForget()
	lost, doubled := int64(0), int64(0)
	for i, key := range keys {
		used := p.used("year", key)
		lost, doubled = lost+max(0, c.all[i]-used), doubled+max(0, used-c.all[i])
		if used < c.all[i]-forgotten[i] || used > c.all[i]+c.maybe[i] {
			t.Errorf("%s: have %d used, %d were admitted; %d may be forgotten, %d counted beside", key, used, c.all[i], forgotten[i], c.maybe[i])
		}
	}
	t.Logf("seed %d: cut %d–%d, killed %s, moving %v: %d forgotten, %d beside, %d failed, by %v", seed, a+1, b+1,
		victim.server.settings.Name, moving, lost, doubled, c.failed, c.decided)
	p.peaceful()
	p.end()
}
