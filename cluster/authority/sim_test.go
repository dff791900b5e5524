package authority

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run only this seed of the simulation")
	seedsFlag = flag.Int("seeds", 15, "how many seeds the simulation runs; make simulation has more")
)

// world is a cluster in a bubble: a log that several nodes may believe they
// lead, a network that delays and loses messages, and processes that stop and
// resume.
type world struct {
	t     *testing.T
	seed  uint64
	start time.Time
	scale time.Duration // of delays
	group sync.WaitGroup

	mu      sync.Mutex // guards the fields below, and those of process marked so
	random  *rand.Rand
	over    bool
	leader  *process // the one that may commit; nil between two leaders
	term    uint64   // raised by each election
	states  []*agreement.State
	ended   map[ring.NodeID]int64 // lower generations are ended
	all     []*process            // including dead ones, for as long as they exist
	nodes   []*process            // the newest process of each node
	counts  map[string]int
	failure string
}

// process is one process of a node. While it is stopped, it does nothing, but
// its Boottime advances.
type process struct {
	w       *world
	id      ring.NodeID
	boot    uint64
	holder  *Holder
	granter *Granter
	mono    float64 // pace of its monotonic clock and its Boottime
	orders  chan order
	done    chan struct{}

	// guarded by world.mu
	stopped   time.Time     // until when
	suspended time.Duration // how long its monotonic clock stood still
	cut       time.Time     // until when it can reach no other node
	slander   time.Time     // until when gossip and other nodes wrongly report that it failed
	applied   int           // index in states
	seen      []time.Time   // when each entry is applied here
	settled   int64
	marked    uint64 // the term of its last mark
	dead      bool   // killed; its memory is gone
	copied    bool   // it runs on a copy of a data directory whose owner may be alive, and wins no election
}

type order struct {
	lead  bool
	delay time.Duration
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, seed: seed, start: time.Now(), random: rand.New(rand.NewPCG(seed, 1)), ended: map[ring.NodeID]int64{},
		counts: map[string]int{}, states: []*agreement.State{agreement.New()},
	}
	w.scale = []time.Duration{200 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond,
		150 * time.Millisecond}[seed%4]
	w.append(agreement.FoundCluster{Cluster: agreement.ClusterID{1}, SigningKey: make([]byte, 32)})
	return w
}

// upTo returns a random duration below n.
func (w *world) upTo(n time.Duration) time.Duration { return time.Duration(w.random.Int64N(int64(n))) }

func (w *world) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := time.Duration(w.random.ExpFloat64() * float64(w.scale))
	if w.random.IntN(100) == 0 {
		d += w.upTo(3 * time.Second)
	}
	return d
}

func (w *world) chance(percent int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(100) < percent
}

func (w *world) spawn(id ring.NodeID) *process {
	w.mu.Lock()
	p := &process{
		w: w, id: id, boot: w.random.Uint64() | 1, orders: make(chan order, 100), done: make(chan struct{}),
		// The paces of any two differ by less than 1 %.
		mono: 1 + (w.random.Float64()-0.5)*0.0098,
	}
	p.seen = make([]time.Time, len(w.states)) // it has all entries
	p.applied = len(w.states) - 1
	w.all = append(w.all, p)
	w.mu.Unlock()
	p.granter = newTestGranter(GranterConfig{
		Self: id, Boot: p.boot, BootstrapExpect: 3, State: p.state, Propose: p.propose,
		Confirm: p.confirm, Nodes: p.gossip, Now: p.now,
	})
	p.holder = newTestHolder(HolderConfig{
		Self: id, Boot: p.boot, Boottime: p.boottime, Ask: p.ask, Status: p.status,
	})
	p.holder.Start()
	w.group.Go(p.follow)
	w.group.Go(p.apply)
	return p
}

// gate returns once the process is not stopped.
func (p *process) gate() {
	for {
		p.w.mu.Lock()
		wait := time.Until(p.stopped)
		if p.dead && !p.w.over {
			wait = time.Second
		}
		p.w.mu.Unlock()
		if wait <= 0 {
			return
		}
		time.Sleep(wait)
	}
}

// boottime returns a reading that lags by up to ClockSlack, like a Clock's.
func (p *process) boottime() time.Duration {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return time.Hour + time.Duration(float64(time.Since(p.w.start))*p.mono) - p.w.upTo(ClockSlack)
}

// valid calls Valid with a clock that lags as far as it may.
func (p *process) valid() (bool, int64) {
	now := time.Hour + time.Duration(float64(time.Since(p.w.start))*p.mono) - ClockSlack
	p.holder.mu.Lock()
	defer p.holder.mu.Unlock()
	return p.holder.until.Load() > int64(now), p.holder.generation.Load()
}

// now stands still while the process is suspended.
func (p *process) now() time.Duration {
	p.gate()
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return time.Duration(float64(time.Since(p.w.start)-p.suspended) * p.mono)
}

func (p *process) state() *agreement.State {
	p.gate()
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.w.states[p.applied]
}

// apply applies entries in order, each some time after it committed.
func (p *process) apply() {
	for {
		p.gate()
		p.w.mu.Lock()
		before := p.w.states[p.applied]
		for p.applied+1 < len(p.seen) && !time.Now().Before(p.seen[p.applied+1]) {
			p.applied++
		}
		after := p.w.states[p.applied]
		if after.Epoch > p.settled && p.w.random.IntN(20) == 0 || after.Settled {
			p.settled = after.Epoch
		}
		over := p.w.over
		p.w.mu.Unlock()
		if after.Generation(p.id) != before.Generation(p.id) {
			p.holder.Revoke()
		} else if after != before {
			p.holder.AskNow()
		}
		select {
		case <-p.done:
			return
		case <-time.After(5 * time.Millisecond):
		}
		if over {
			return
		}
	}
}

// follow passes changes of leadership on to the granter, with a delay.
func (p *process) follow() {
	for {
		select {
		case <-p.done:
			return
		case o := <-p.orders:
			select {
			case <-p.done:
				return
			case <-time.After(o.delay):
			}
			p.gate()
			if o.lead {
				p.granter.StartLeading()
			} else {
				p.granter.StopLeading()
			}
			p.holder.AskNow()
		}
	}
}

var errLost = errors.New("the lead is lost")

// propose commits an entry if this process leads when the entry arrives,
// whether the process knows that or not.
func (p *process) propose(ctx context.Context, e agreement.Entry) (agreement.Result, error) {
	p.gate()
	time.Sleep(p.w.delay())
	p.gate()
	p.w.mu.Lock()
	if p.w.leader != p {
		p.w.mu.Unlock()
		return agreement.Result{}, errLost
	}
	result := p.w.append(e)
	if _, ok := e.(agreement.Reign); ok {
		p.marked = p.w.term
	}
	index := len(p.w.states) - 1
	lost := p.w.random.IntN(50) == 0
	p.w.mu.Unlock()
	if lost {
		<-ctx.Done()
		return agreement.Result{}, ctx.Err()
	}
	for {
		p.gate()
		p.w.mu.Lock()
		applied := p.applied >= index
		p.w.mu.Unlock()
		if applied {
			return result, nil
		}
		select {
		case <-ctx.Done():
			return agreement.Result{}, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// confirm succeeds if this process leads at some moment after the call, in the term of its mark.
func (p *process) confirm(ctx context.Context, reign uint64) error {
	p.gate()
	time.Sleep(p.w.delay())
	p.w.mu.Lock()
	leads := p.w.leader == p && p.marked == p.w.term && p.w.states[p.applied].Reign == reign &&
		!time.Now().Before(p.cut)
	p.w.mu.Unlock()
	if !leads {
		return errLost
	}
	time.Sleep(p.w.delay())
	p.gate()
	return ctx.Err()
}

// append adds an entry to the log and checks that it is allowed there. The caller must hold mu.
func (w *world) append(e agreement.Entry) agreement.Result {
	b, err := agreement.ThisBuild.Encode(e)
	if err != nil {
		panic(err)
	}
	last := w.states[len(w.states)-1]
	next, result := last.Apply(last.Index+1, b)
	w.states = append(w.states, next)
	for _, p := range w.all {
		at := time.Now().Add(time.Duration(w.random.ExpFloat64() * float64(w.scale)))
		if p != w.leader && w.random.IntN(50) == 0 {
			at = at.Add(w.upTo(2 * time.Second))
		}
		if last := p.seen[len(p.seen)-1]; at.Before(last) {
			at = last
		}
		p.seen = append(p.seen, at)
	}
	name := fmt.Sprintf("%T", e)
	if result.Err != nil {
		name += " rejected"
	}
	w.counts[name]++
	if ended, ok := e.(agreement.EndNode); ok && result.Err == nil {
		w.ended[ended.Node] = ended.Generation + 1
	}
	w.check()
	return result
}

// check verifies the central promise: no node is valid whose generation was
// ended, or whose process was replaced. The caller must hold mu.
func (w *world) check() {
	state := w.states[len(w.states)-1]
	for _, p := range w.all {
		if p.holder == nil || p.dead {
			continue
		}
		valid, generation := p.valid()
		switch {
		case !valid || w.failure != "":
		case generation < w.ended[p.id]:
			w.failure = fmt.Sprintf("seed %d, %v: %s is valid for generation %d, and %d have been ended",
				w.seed, time.Since(w.start), p.id, generation, w.ended[p.id])
		case state.Boot(p.id) != p.boot:
			w.failure = fmt.Sprintf("seed %d, %v: %s is valid as process %d, and %d is registered",
				w.seed, time.Since(w.start), p.id, p.boot, state.Boot(p.id))
		}
		if valid {
			w.counts["valid"]++
		}
	}
}

// ask sends a request over the network, to the leader or to another node.
func (p *process) ask(ctx context.Context, r Request) (Reply, error) {
	p.gate()
	w := p.w
	w.mu.Lock()
	if len(w.nodes) == 0 {
		w.mu.Unlock()
		return Reply{}, errLost
	}
	to := w.leader
	if to == nil || w.random.IntN(10) == 0 {
		to = w.nodes[w.random.IntN(len(w.nodes))]
	}
	lost := w.random.IntN(20) == 0 || time.Now().Before(p.cut) || time.Now().Before(to.cut) && to != p
	w.mu.Unlock()
	times := 1
	if w.chance(3) {
		times = 2
	}
	replies := make(chan Reply, times)
	for i := range times {
		w.group.Go(func() {
			if lost {
				return
			}
			time.Sleep(w.delay() + time.Duration(i)*w.delay())
			to.gate()
			bound, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			reply := to.granter.Answer(bound, r)
			cancel()
			to.gate()
			time.Sleep(w.delay())
			replies <- reply
		})
	}
	select {
	case reply := <-replies:
		p.gate()
		return reply, nil
	case <-ctx.Done():
		p.gate()
		return Reply{}, ctx.Err()
	}
}

func (p *process) status() Request {
	p.gate()
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	state := w.states[p.applied]
	r := Request{Generation: state.Generation(p.id), Applied: state.Index, SettledEpoch: p.settled}
	for _, o := range w.nodes {
		if o != p && (w.down(o) || time.Now().Before(o.slander)) {
			r.Unreachable = append(r.Unreachable, o.id)
		}
	}
	return r
}

// down reports whether a node looks dead to other nodes. The caller must hold mu.
func (w *world) down(p *process) bool {
	now := time.Now()
	return now.Before(p.stopped) || now.Before(p.cut)
}

func (p *process) gossip() []Node {
	p.gate()
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Node
	for _, o := range w.nodes {
		n := Node{Member: agreement.Member{ID: o.id}, Boot: o.boot, Alive: true, SupportsRing: true}
		if w.down(o) || time.Now().Before(o.slander) {
			n.become(isGone)
		}
		out = append(out, n)
	}
	return out
}

// elect changes the leader; the old and the new one learn of it later.
func (w *world) elect(to *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if to.copied {
		return
	}
	from := w.leader
	slow := func() time.Duration {
		if w.random.IntN(3) == 0 {
			return w.upTo(3 * time.Second)
		}
		return w.upTo(20 * time.Millisecond)
	}
	if from != nil && w.random.IntN(4) > 0 { // some never learn that they lost the lead
		from.orders <- order{lead: false, delay: slow()}
	}
	w.leader, w.term = to, w.term+1
	to.orders <- order{lead: true, delay: slow()}
	w.counts["elections"]++
}

// trouble injects a random fault.
func (w *world) trouble() {
	w.mu.Lock()
	i := w.random.IntN(len(w.nodes))
	p, span := w.nodes[i], w.upTo(6*time.Second)
	what := w.random.IntN(8)
	switch what {
	case 0, 1:
		p.stopped = time.Now().Add(span)
		w.counts["stops"]++
	case 2:
		if w.leader != nil {
			p = w.leader
			p.stopped = time.Now().Add(span)
		}
		w.counts["leader stops"]++
	case 3:
		p.stopped = time.Now().Add(span)
		p.suspended += span
		w.counts["suspends"]++
	case 4:
		p.cut = time.Now().Add(span)
		w.counts["cuts"]++
	case 5:
		p.slander = time.Now().Add(span)
		w.counts["slanders"]++
	}
	w.mu.Unlock()
	switch what {
	case 6: // a new process of a node that was killed, or only stopped or cut off for a while
		fresh := w.spawn(p.id)
		w.mu.Lock()
		p.dead = !p.copied && w.random.IntN(2) == 0
		if p.dead {
			span = time.Hour
		}
		fresh.copied = !p.dead
		p.cut = time.Now().Add(span)
		if w.random.IntN(2) == 0 {
			p.stopped = p.cut
		}
		w.nodes[i] = fresh
		if w.leader == p {
			w.leader = nil
		}
		w.counts["restarts"]++
		w.mu.Unlock()
	case 7:
		w.elect(p)
		if w.chance(30) { // and back
			w.elect(w.nodes[int(w.seed)%len(w.nodes)])
			w.elect(p)
		}
	}
}

func (w *world) run(span time.Duration) {
	for n := range 3 + int(w.seed%3) {
		p := w.spawn(id(byte(n + 1)))
		w.mu.Lock()
		w.nodes = append(w.nodes, p)
		w.mu.Unlock()
	}
	w.elect(w.nodes[0])
	next := time.Now().Add(6 * time.Second)
	for time.Since(w.start) < span && w.failure == "" {
		time.Sleep(10 * time.Millisecond)
		w.mu.Lock()
		w.check()
		leaderless := w.leader == nil || time.Now().Before(w.leader.stopped) || time.Now().Before(w.leader.cut)
		heir := w.nodes[w.random.IntN(len(w.nodes))]
		usable := !time.Now().Before(heir.stopped) && !time.Now().Before(heir.cut)
		vote := leaderless && usable && w.random.IntN(100) == 0
		due := time.Now().After(next)
		if due {
			next = time.Now().Add(w.upTo(5 * time.Second))
		}
		w.mu.Unlock()
		if vote {
			w.elect(heir)
		}
		if due {
			w.trouble()
		}
	}
	w.mu.Lock()
	w.over = true
	for _, p := range w.all {
		p.stopped = time.Time{}
	}
	w.mu.Unlock()
	for _, p := range w.all {
		close(p.done)
		w.group.Go(func() { p.holder.Close() })
		w.group.Go(func() { p.granter.Close() })
	}
	w.group.Wait()
}

// TestNeverTwoOwners: once any node has applied an Ended, the ended node has no
// valid authority, and never has any again for that generation. A replaced
// process has none either.
func TestNeverTwoOwners(t *testing.T) {
	seeds := make([]uint64, 0, *seedsFlag)
	for s := range *seedsFlag {
		seeds = append(seeds, uint64(s)+1)
	}
	if testing.Short() {
		seeds = seeds[:min(len(seeds), 25)]
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	total := map[string]int{}
	for _, seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			w.run(60 * time.Second)
			if w.failure != "" {
				t.Fatal(w.failure)
			}
			for k, n := range w.counts {
				total[k] += n
			}
		})
		if t.Failed() {
			return
		}
	}
	var names []string
	for k := range total {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		t.Logf("%8d %s", total[k], k)
	}
	t.Logf("seeds 1 to %d", len(seeds))
	for _, k := range []string{"agreement.EndNode", "agreement.RegisterProcess", "agreement.Ring", "valid"} {
		if *seedFlag == 0 && total[k] < len(seeds) {
			t.Errorf("only %d times %s: the simulation proves nothing", total[k], k)
		}
	}
}
