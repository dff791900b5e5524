package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
)

const (
	// longestFault bounds how long a fault lasts.
	longestFault = 8 * time.Second
	// longestWork bounds how long a worker holds a slot on purpose.
	longestWork = 3 * time.Second
	// longestSlotTTL bounds the ttl of rules that change.
	longestSlotTTL = 4 * time.Second
	// joiners is how many nodes may join.
	joiners = 4
)

// newSlotCluster starts three nodes, and has others ready to join.
func newSlotCluster(t *testing.T) *testCluster {
	p := newTestCluster(t, 3, holderRules)
	for i := range joiners {
		p.addNode(p.settings(3+i, 3))
	}
	p.outside = joiners
	return p
}

// running lists the nodes whose processes run.
func (p *testCluster) running() (list []*testNode) {
	for _, v := range p.nodes {
		if v.alive.Load() {
			list = append(list, v)
		}
	}
	return list
}

// slotFault is one fault: of a node, its disk, its clock, or of a link. Joining
// and leaving is among them.
type slotFault struct {
	name string
	// begin begins the fault at v, and returns what ends it. other is another node.
	begin func(p *testCluster, v, other *testNode, chance *rand.Rand) (end func())
}

var slotFaults = []slotFault{
	{"killed", func(_ *testCluster, v, _ *testNode, _ *rand.Rand) func() {
		v.endProcess(false)
		return v.startProcess
	}},
	{"isolated", func(p *testCluster, v, _ *testNode, _ *rand.Rand) func() {
		p.net.Isolate(v.ip)
		return func() { p.net.Rejoin(v.ip) }
	}},
	{"restarted", func(_ *testCluster, v, _ *testNode, _ *rand.Rand) func() {
		v.endProcess(true)
		return v.startProcess
	}},
	{"link cut", func(p *testCluster, v, other *testNode, chance *rand.Rand) func() {
		p.net.CutOneWay(v.ip, other.ip)
		if chance.IntN(2) == 0 {
			p.net.CutOneWay(other.ip, v.ip)
		}
		return p.net.HealAll
	}},
	{"messages lost", loseMessages},
	{"slow network", func(p *testCluster, v, _ *testNode, chance *rand.Rand) func() {
		setDelay := func(d time.Duration) {
			for _, other := range p.nodes {
				if other != v {
					p.net.DelayBetween(v.ip, other.ip, d)
				}
			}
		}
		setDelay(time.Duration(5+chance.IntN(60)) * time.Millisecond)
		return func() { setDelay(100 * time.Microsecond) }
	}},
	{"hung disk", func(_ *testCluster, v, _ *testNode, _ *rand.Rand) func() {
		v.memory.hang()
		return v.memory.mend
	}},
	{"full disk", func(_ *testCluster, v, _ *testNode, _ *rand.Rand) func() {
		v.memory.fill()
		return v.memory.mend
	}},
	{"clock set", func(_ *testCluster, v, _ *testNode, chance *rand.Rand) func() {
		by := time.Duration(chance.IntN(7200)-3600) * time.Second
		v.clockOffset += by // of later processes, too
		v.node.clock.Shift(by)
		return func() {}
	}},
	{"a node joins", func(p *testCluster, _, _ *testNode, _ *rand.Rand) func() {
		p.joinSpare()
		return func() {}
	}},
	{"a node leaves", func(p *testCluster, v, _ *testNode, _ *rand.Rand) func() {
		p.leaveForGood(v)
		return func() {}
	}},
}

// loseMessages breaks connections, and holds back what is sent, again and again.
func loseMessages(p *testCluster, v, other *testNode, chance *rand.Rand) (end func()) {
	var over atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		for !over.Load() {
			p.net.CutOneWay(v.ip, other.ip)
			time.Sleep(time.Duration(chance.IntN(400)) * time.Millisecond)
			p.net.Break(v.ip, other.ip)
			p.net.HealAll()
			time.Sleep(time.Duration(chance.IntN(400)) * time.Millisecond)
		}
	})
	return func() { over.Store(true); done.Wait() }
}

// joinSpare starts a node that has never run, if one is left.
func (p *testCluster) joinSpare() {
	for _, v := range p.nodes {
		if v.node != nil {
			continue
		}

		v.settings.Join = nil
		for _, other := range p.running() {
			v.settings.Join = append(v.settings.Join, other.ip)
		}
		p.outside--
		v.startProcess()
		return
	}
}

// leaveForGood makes a node leave.
func (p *testCluster) leaveForGood(v *testNode) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := v.admin().Leave(ctx, false, "ann"); err != nil {
		p.t.Errorf("%s leaves: %v", v.name(), err)
	}
	v.ready.Store(false)
	time.Sleep(api.DrainGrace)
	v.endProcess(false)
	p.outside++
}

// slotTrial is a cluster in which workers hold slots while faults come and go.
type slotTrial struct {
	*testCluster
	chance  *rand.Rand
	keys    []*slotKey
	limit   int64 // as long as the last change of it is over
	history []string
}

// disturb makes one fault, or several at once, and ends it.
func (p *slotTrial) disturb() {
	list := p.running()
	i := p.chance.IntN(len(list))
	v, other := list[i], list[(i+1+p.chance.IntN(len(list)-1))%len(list)]

	switch n := p.chance.IntN(len(slotFaults) + 3); n {
	case len(slotFaults):
		p.note("all killed")
		p.killTogether(list...)
	case len(slotFaults) + 1:
		p.note("%s and %s killed", v.name(), other.name())
		p.killTogether(v, other)
	case len(slotFaults) + 2:
		p.changeRules()
	default:
		f := &slotFaults[n]
		if f.name == "a node leaves" && len(list) <= 3 {
			f = &slotFaults[0]
		}
		p.note("%s: %s, %s", f.name, v.name(), other.name())
		end := f.begin(p.testCluster, v, other, p.chance)
		p.pause(longestFault)
		end()
	}
}

func (p *slotTrial) note(format string, args ...any) {
	p.history = append(p.history, fmt.Sprintf(format, args...))
}

func (p *slotTrial) pause(most time.Duration) {
	time.Sleep(time.Duration(p.chance.Int64N(int64(most))))
}

// killTogether kills nodes, and starts them again after a while.
func (p *slotTrial) killTogether(list ...*testNode) {
	for _, v := range list {
		v.endProcess(false)
	}
	p.pause(2 * time.Second)
	for _, v := range list {
		v.startProcess()
	}
}

// changeRules writes rules with another limit and ttl. After a lower limit, it
// waits until all have finished who held slots before.
func (p *slotTrial) changeRules() {
	before := p.limit
	p.limit = 3 + p.chance.Int64N(slotLimit-2)
	ttl := time.Duration(1+p.chance.IntN(int(longestSlotTTL/time.Second))) * time.Second
	text := fmt.Sprintf("limit: %d, ttl: %v", p.limit, ttl)
	p.note("render has %s", text)

	version, err := p.running()[0].write(strings.Replace(holderRules, "limit: 7, ttl: 2s", text, 1))
	if err != nil {
		p.t.Fatalf("%v: %v", p.history, err)
	}
	p.eventually("the rules are in force", func() bool {
		for _, v := range p.running() {
			if v.version() < version {
				return false
			}
		}
		return true
	})

	time.Sleep(longestWork + longestSlotTTL + time.Second)
	p.checkHeld(max(before, p.limit))
	for _, k := range p.keys {
		k.most.Store(k.held.Load())
	}
}

// checkHeld checks that at most limit were held of each key, since that was last known.
func (p *slotTrial) checkHeld(limit int64) {
	p.t.Helper()
	for i, k := range p.keys {
		if k.most.Load() > limit || k.lost.Load() > 0 {
			p.t.Errorf("key %d: have %d held at once, want at most %d; %d lost; %v", i,
				k.most.Load(), limit, k.lost.Load(), p.history)
		}
	}
}

// G11: whatever happens to nodes, links, disks, clocks and rules, never more
// than the limit are held at once, as the holders see it, and no holder loses a
// slot that it renews in time.
func TestG11_SlotsInOneProcess(t *testing.T) {
	t.Parallel()
	for seed := range *slotSeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testSlots(t, uint64(seed)) })
		})
	}
}

func testSlots(t *testing.T, seed uint64) {
	p := &slotTrial{testCluster: newSlotCluster(t), chance: rand.New(rand.NewPCG(seed, 7)), limit: slotLimit}
	keys, stop := p.startWorkers(4, 12, seed)
	p.keys = keys
	for range 5 {
		time.Sleep(time.Second)
		p.pause(3 * time.Second)
		p.disturb()
		p.awaitWhole()
	}

	time.Sleep(longestSlotTTL + 2*time.Second)
	for i, k := range keys {
		before := k.acquired.Load()
		time.Sleep(longestSlotTTL + time.Second)
		if k.acquired.Load() == before {
			t.Errorf("key %d: nobody gets a slot any more; %v", i, p.history)
		}
	}

	stop()
	p.checkHeld(p.limit)
	for i, k := range keys {
		t.Logf("key %d: %d acquired, %d at most at once; %v", i, k.acquired.Load(), k.most.Load(), p.history)
	}

	time.Sleep(longestSlotTTL + time.Second)
	for i := range keys {
		if used, err := p.tryUsed("render", fmt.Sprintf("k%d", i)); err != nil || used != 0 {
			t.Errorf("key %d: %d are used in the end, %v; %v", i, used, err, p.history)
		}
	}
}

// G11: all slots of a limit were held when a fault began, and their holders
// died with it. All can be had again within max(ttl, 5 s) + 1 s, while the
// fault lasts.
func TestG11_FreeSlotsInOneProcess(t *testing.T) {
	t.Parallel()
	list := slotFaults[:2]
	if *slotSeeds > 0 || *everyCase {
		list = slotFaults
	}
	for _, f := range list {
		for seed := range max(1, *slotSeeds/10) {
			t.Run(fmt.Sprint(f.name, " ", seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { testFreeSlots(t, &f, uint64(seed)) })
			})
		}
	}
}

func testFreeSlots(t *testing.T, f *slotFault, seed uint64) {
	const keys, within = 6, max(slotTTL, 5*time.Second) + time.Second
	p := newSlotCluster(t)
	chance := rand.New(rand.NewPCG(seed, 11))
	for i := range keys {
		for range slotLimit {
			p.acquireNow(i)
		}
	}

	i := chance.IntN(3)
	v, other := p.nodes[i], p.nodes[(i+1+chance.IntN(2))%3]
	ended := make(chan func(), 1)
	began := time.Now()
	go func() { ended <- f.begin(p, v, other, chance) }()

	var over atomic.Bool
	var asking sync.WaitGroup
	var all [keys]*slotTaker
	for i := range all {
		all[i] = &slotTaker{p: p, key: i}
		for j := range p.nodes {
			asking.Go(func() { all[i].take(p.nodes[j], &over) })
		}
	}

	for i, s := range all {
		for s.held.Load() < slotLimit && time.Since(began) < 2*within {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); s.held.Load() < slotLimit || took > within {
			t.Errorf("%s at %s, %s: key %d has %d of %d slots after %v, want all within %v",
				f.name, v.name(), other.name(), i, s.held.Load(), slotLimit, took, within)
		}
	}
	t.Logf("%s: all slots could be had after %v", f.name, time.Since(began))

	over.Store(true)
	asking.Wait()
	for _, s := range all {
		s.done.Wait()
	}
	(<-ended)()
	p.awaitWhole()
}

// acquireNow acquires a slot of a key in a healthy cluster.
func (p *testCluster) acquireNow(key int) {
	p.t.Helper()
	var a limiter.Answer
	got, err := p.nodes[key%3].node.limiter.Acquire(slotQuery(key), &a)
	if err != nil || got.ID == "" {
		p.t.Fatalf("key %d: have %q, %v", key, got.ID, err)
	}
}

func slotQuery(key int) *limiter.Query {
	return &limiter.Query{Rule: "render", Key: []string{fmt.Sprintf("k%d", key)}, ByKey: true}
}

// slotTaker takes all slots of a key, by asking several nodes at the same time, and keeps them.
type slotTaker struct {
	p    *testCluster
	key  int
	held atomic.Int64
	done sync.WaitGroup
}

// take asks one node until over, and keeps what it gets.
func (s *slotTaker) take(v *testNode, over *atomic.Bool) {
	for !over.Load() {
		time.Sleep(10 * time.Millisecond)
		if !v.ready.Load() || s.held.Load() >= slotLimit {
			continue
		}

		var a limiter.Answer
		got, err := v.node.limiter.Acquire(slotQuery(s.key), &a)
		if err == nil && got.ID != "" && !v.crashed.Load() {
			s.held.Add(1)
			s.done.Go(func() { s.keep(got.ID, over) })
		}
	}
}

// keep renews a slot at any node, until over.
func (s *slotTaker) keep(id string, over *atomic.Bool) {
	for i := 0; !over.Load(); i++ {
		time.Sleep(slotTTL / 10)
		v := s.p.nodes[i%len(s.p.nodes)]
		if !v.ready.Load() {
			continue
		}
		if _, err := v.node.limiter.RenewSlot(id, 0); errors.Is(err, limiter.ErrUnknownSlot) {
			s.held.Add(-1) // no answer came in time
			return
		}
	}
}

// While partitions move, slots are acquired, renewed and released as if nothing
// happened: what comes while a partition is handed over waits for its new
// owner.
func TestSlotsWhileNodesComeAndGoInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newSlotCluster(t)
		p.net.Delay(5 * time.Millisecond)
		var over atomic.Bool
		var done sync.WaitGroup
		var acquired, slowest atomic.Int64
		fail := func(what string, err error) {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		for i := range 100 {
			done.Go(func() {
				for !over.Load() {
					v := p.nodes[i%3]
					var a limiter.Answer
					began := time.Now()
					q := slotQuery(i)
					if i%2 == 0 {
						q.RequestID = fmt.Sprint(i, acquired.Load(), began.UnixNano())
					}
					got, err := v.node.limiter.Acquire(q, &a)
					fail("acquire", err)
					_, err = v.node.limiter.RenewSlot(got.ID, 0)
					fail("renew", err)
					_, err = v.node.limiter.ReleaseSlot(got.ID)
					fail("release", err)
					acquired.Add(1)
					slowest.Store(max(slowest.Load(), int64(time.Since(began))))
					time.Sleep(time.Millisecond)
				}
			})
		}
		p.joinSpare()
		p.awaitWhole()
		p.leaveForGood(p.nodes[3])
		p.awaitWhole()
		over.Store(true)
		done.Wait()
		t.Logf("%d were acquired, the slowest took %v", acquired.Load(), time.Duration(slowest.Load()))
	})
}
