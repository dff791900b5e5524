package usage

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

var (
	histories    = flag.Int("histories", 100, "random histories of bills; make models has more")
	historySeed  = flag.Uint64("history-seed", 1, "of the first history")
	historyTrace = flag.Bool("history-trace", false, "print what happens in the histories")
)

// world is three places where nodes run, and what was admitted there. A place
// may see several nodes: one whose directory was wiped comes back under another
// identity.
type world struct {
	mu     sync.Mutex // guards what nodes ask for: places, members, and which process runs
	t      *testing.T
	rng    *rand.Rand
	began  time.Time
	offset atomic.Int64 // of the wall clock, in nanoseconds
	// mergeAt is that of nodes that start; 0 for the usual one.
	mergeAt int
	losses  int // of directories: they are wiped, or of nodes that were removed
	places  []*place
	gone    []*billedNode // nodes whose directory is lost
	agreed  []Member      // the agreed members
	ids     int
	dir     string
	seed    uint64
}

type place struct {
	number int
	node   *billedNode   // nil before the first
	cut    bool          // from the other places
	change func(*Config) // of nodes that begin here; may be nil
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// billedNode is a node and what it was asked to count.
type billedNode struct {
	w      *world
	place  *place
	config Config
	totals *Totals // of the running process; nil if it is down
	ends   []end
	counts []oneCount
	billed map[Month]oneBill
	left   bool // it has handed everything over
	leftAt int  // w.losses when it left
}

// oneBill is what a node was billed, and how many directories were lost, and
// processes of the node ended, until then.
type oneBill struct {
	cost         int64
	losses, ends int
}

// end is the end of a process.
type end struct {
	at      time.Time
	killed  bool
	outside bool // as of oneCount
}

type oneCount struct {
	at    time.Time
	month Month
	cost  int64
	// outside means that the node was cut off and no member: nobody can know that
	// it counts, until it comes back.
	outside bool
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) now() int64 { return time.Now().UnixNano() + w.offset.Load() }

func (w *world) logf(format string, args ...any) {
	if *historyTrace {
		fmt.Printf("%3d %7.2f "+format+"\n", append([]any{w.seed, time.Since(w.began).Seconds()}, args...)...)
	}
}

// nodePeers are the other nodes as one of them sees them.
type nodePeers struct{ n *billedNode }

func (w *world) find(id ring.NodeID) *billedNode {
	for _, p := range w.places {
		if p.node != nil && p.node.config.Self == id {
			return p.node
		}
	}
	return nil
}

func (n *billedNode) reaches(other *billedNode) bool {
	return other == n || !n.place.cut && !other.place.cut && n.place != other.place
}

// Call implements Peers.
func (p nodePeers) Call(_ context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error) {
	w := p.n.w
	w.mu.Lock()
	other := w.find(to)
	var at *Totals
	if other != nil && p.n.reaches(other) {
		at = other.totals
	}
	w.mu.Unlock()
	if at == nil {
		return nil, peer.ErrUnreachable
	}
	return at.answer(m, bytes.Clone(body))
}

// Ended implements Peers.
func (p nodePeers) ProcessGone(id ring.NodeID) bool {
	p.n.w.mu.Lock()
	defer p.n.w.mu.Unlock()
	other := p.n.w.find(id)
	return other != nil && other.totals == nil && p.n.reaches(other)
}

// members returns the members as a node sees them.
func (n *billedNode) members() (list []Member) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	for _, m := range n.w.agreed {
		other := n.w.find(m.ID)
		m.Alive = other != nil && other.totals != nil && n.reaches(other)
		list = append(list, m)
	}
	return list
}

// begin starts a new node at a place whose directory is empty.
func (p *place) begin(w *world) {
	w.ids++
	n := &billedNode{w: w, place: p, billed: map[Month]oneBill{}}
	name := fmt.Sprintf("n%d-%d", p.number, w.ids)
	n.config = Config{Dir: filepath.Join(w.dir, name), Self: ring.NodeID{byte(w.ids), 1},
		Name: name, Now: w.now, Months: 13, Rows: 1000, Logger: discardLogs()}
	if p.change != nil {
		p.change(&n.config)
	}
	expect.NoError(w.t, os.Mkdir(n.config.Dir, 0o700))
	w.change(func() { p.node = n })
	n.start()
}

// start starts the node's process. It becomes a member, unless it is cut off.
func (n *billedNode) start() {
	n.w.logf("%s starts", n.config.Name)
	t := NewTotals(open(n.w.t, n.config), nodePeers{n}, n.members)
	if n.w.mergeAt > 0 {
		t.meter.mergeAt = n.w.mergeAt
	}
	n.w.change(func() { n.totals = t })
	t.Start()
	n.left = false
	n.join()
}

func (n *billedNode) join() {
	if n.totals != nil && !n.place.cut && !isMember(n.w.agreed, n.config.Self) {
		n.w.change(func() {
			n.w.agreed = append(slices.Clone(n.w.agreed), Member{ID: n.config.Self, Name: n.config.Name, InRing: true})
		})
	}
}

// kill ends the node's process at once.
func (n *billedNode) kill() {
	n.w.logf("%s is killed", n.config.Name)
	t := n.totals
	t.cancel()
	t.loop.Wait()
	<-t.calls.Close()
	<-t.background.Close()
	n.w.change(func() { n.totals = nil })
	t.meter.kill(n.w.t)
	n.ends = append(n.ends, end{time.Now(), true, n.isOutside()})
}

// stop ends the node's process in order.
func (n *billedNode) stop() {
	n.w.logf("%s stops", n.config.Name)
	t := n.totals
	if err := t.Close(); err != nil {
		n.w.t.Error(err)
	}
	if err := t.meter.Close(); err != nil {
		n.w.t.Error(err)
	}
	n.w.change(func() { n.totals = nil })
	n.ends = append(n.ends, end{time.Now(), false, n.isOutside()})
}

// leave makes the node hand everything over, no longer be a member, hand over
// what came since, and stop.
func (n *billedNode) leave() {
	if n.place.cut || len(n.w.agreed) < 2 {
		return
	}
	if err := n.totals.HandOver(n.w.t.Context(), false); err != nil {
		n.w.logf("%s can't leave: %v", n.config.Name, err)
		return
	}

	n.w.logf("%s leaves", n.config.Name)
	n.w.remove(n.config.Self)
	n.count(n.w.rng.IntN(3))
	err := n.totals.HandOver(n.w.t.Context(), true)
	n.stop()
	n.left, n.leftAt = err == nil, n.w.losses
	n.w.gone = append(n.w.gone, n)
	n.w.change(func() { n.place.node = nil })
}

func (w *world) remove(id ring.NodeID) {
	w.change(func() {
		w.agreed = slices.DeleteFunc(slices.Clone(w.agreed), func(m Member) bool { return m.ID == id })
	})
}

// count counts some checks at a node, under its own name.
func (n *billedNode) count(times int) {
	for range times {
		cost := n.w.rng.Int64N(5) + 1
		now := n.w.now()
		n.counts = append(n.counts, oneCount{at: time.Now(), month: MonthOf(now), cost: cost, outside: n.isOutside()})
		n.totals.meter.count(time.Unix(0, now), "r", []string{n.config.Name}, "requests", cost)
		if n.w.rng.IntN(4) == 0 {
			time.Sleep(time.Duration(n.w.rng.IntN(300)) * time.Millisecond)
		}
	}
}

func (n *billedNode) isOutside() bool { return n.place.cut && !isMember(n.w.agreed, n.config.Self) }

// step does one thing.
func (w *world) step() {
	p := w.places[w.rng.IntN(len(w.places))]
	n := p.node
	switch what := w.rng.IntN(100); {
	case what < 50:
		for _, p := range w.places {
			if p.node != nil && p.node.totals != nil {
				p.node.count(w.rng.IntN(8))
			}
		}
		time.Sleep(time.Duration(w.rng.IntN(2500)) * time.Millisecond)
	case what < 58:
		if n != nil && n.totals != nil {
			n.kill()
		}
	case what < 62:
		if n != nil && n.totals != nil {
			n.stop()
		}
	case what < 72:
		if n != nil && n.totals == nil {
			n.start()
		}
	case what < 76: // the disk is lost
		if n != nil && n.totals == nil {
			w.logf("%s is wiped", n.config.Name)
			w.losses++
			w.gone = append(w.gone, n)
			os.RemoveAll(n.config.Dir)
			w.change(func() { p.node = nil })
		}
	case what < 82:
		// To join, it needs a member, from which it then has notes.
		if n == nil && !p.cut && w.reader() != nil {
			p.begin(w)
			p.node.count(1)
			time.Sleep(3 * time.Second)
		}
	case what < 88: // a dead node is removed
		for _, m := range w.agreed {
			if n := w.find(m.ID); (n == nil || n.totals == nil) && len(w.agreed) > 1 {
				w.logf("%s is removed", m.Name)
				w.losses++
				w.remove(m.ID)
				break
			}
		}
	case what < 92:
		w.change(func() { p.cut = !p.cut })
		if !p.cut && n != nil {
			n.join()
		}
		w.logf("place %d: cut %v", p.number, p.cut)
	case what < 94:
		if n != nil && n.totals != nil {
			n.leave()
		}
	case what < 96: // the month ends
		next := time.Unix(0, (MonthOf(w.now()) + 1).Begin())
		w.offset.Store(int64(time.Until(next) - time.Duration(w.rng.IntN(3000))*time.Millisecond))
		w.logf("the month ends")
	default:
		time.Sleep(time.Duration(w.rng.IntN(90)) * time.Second)
	}
}

// reader returns a member that runs and is not cut off; nil if there is none.
func (w *world) reader() *billedNode {
	for _, p := range w.places {
		if p.node != nil && p.node.totals != nil && !p.cut && isMember(w.agreed, p.node.config.Self) {
			return p.node
		}
	}
	return nil
}

// check reads this month and the last one at a node that is not cut off.
func (w *world) check() {
	at := w.reader()
	if at == nil {
		return
	}
	this := MonthOf(w.now())
	for _, month := range []Month{this - 1, this} {
		s, err := at.totals.Read(w.t.Context(), Query{Month: month})
		expect.NoError(w.t, err)
		rows := map[string]int64{}
		for {
			row, ok := s.Next()
			if !ok {
				break
			}
			rows[row.Key[0]] += row.Cost
		}
		for _, n := range w.all() {
			w.checkNode(at, n, month, rows[n.config.Name], s)
		}
	}
}

func (w *world) all() (list []*billedNode) {
	list = slices.Clone(w.gone)
	for _, p := range w.places {
		if p.node != nil {
			list = append(list, p.node)
		}
	}
	return list
}

// endTolerance is how much more than a second a kill may lose here: the meter's
// timer runs from the first count on.
const endTolerance = 1100 * time.Millisecond

// checkNode compares a node's bill with what it was asked to count.
func (w *world) checkNode(at, n *billedNode, month Month, billed int64, s *Stream) {
	t, name := w.t, n.config.Name
	i := slices.IndexFunc(s.Estimated(), func(e Estimate) bool { return e.Node == name })
	missing := slices.Contains(s.Missing(), name)
	var estimate time.Duration
	if i >= 0 {
		estimate = s.Estimated()[i].AtMostLost
	}

	admitted, mayLack := int64(0), int64(0)
	for _, c := range n.counts {
		if c.month != month {
			continue
		}
		admitted += c.cost
		if c.outside {
			mayLack += c.cost
			continue
		}
		for _, end := range n.ends {
			window := max(-1, estimate) // the bill does not say of which process; it names the time of all together
			if end.killed {
				window = max(window, endTolerance)
			}
			if !c.at.After(end.at) && end.at.Sub(c.at) <= window {
				mayLack += c.cost
				break
			}
		}
	}
	what := fmt.Sprintf("history %d, at %.2f s: %s: %s at %s", w.seed,
		time.Since(w.began).Seconds(), month, name, at.config.Name)
	switch {
	case billed > admitted:
		t.Errorf("%s: have %d, more than the %d admitted", what, billed, admitted)
	case !missing && admitted-billed > mayLack && !w.hides(s, n):
		t.Errorf("%s: have %d of %d admitted, estimated %v, want at most %d less", what, billed,
			admitted, estimate, mayLack)
	}

	// What was billed once stays billed, whatever is merged or moved.
	if len(s.Missing()) == 0 {
		if before := n.billed[month]; billed < before.cost && before == (oneBill{before.cost, w.losses, len(n.ends)}) {
			t.Errorf("%s: have %d after %d", what, billed, before.cost)
		}
		n.billed[month] = oneBill{billed, w.losses, len(n.ends)}
	}

	member := isMember(w.agreed, n.config.Self)
	reachable := n.totals != nil && at.reaches(n) && member
	if missing && reachable {
		t.Errorf("%s: it is missing, but can be asked", what)
	}
	if member && !reachable && !missing {
		t.Errorf("%s: it can't be asked, but is not missing", what)
	}
	if i >= 0 && (member || n.left && n.leftAt == w.losses && len(s.Missing()) == 0) {
		t.Errorf("%s: it is estimated, though a member or left in order", what)
	}
}

// hides reports whether a node that can't be asked, or is lost, may be the only
// one that knew of a node that is gone. The bill is then incomplete because of
// the former.
func (w *world) hides(s *Stream, gone *billedNode) bool {
	return !isMember(w.agreed, gone.config.Self) && len(s.Missing()) > 0
}

func (w *world) run(steps int) {
	for range 3 {
		p := &place{number: len(w.places) + 1}
		w.change(func() { w.places = append(w.places, p) })
		p.begin(w)
		p.node.count(1) // a node that has counted nothing has no file, and so remembers nobody
	}
	time.Sleep(15 * time.Second)
	for range steps {
		w.step()
		if w.rng.IntN(4) == 0 {
			w.check()
		}
		if w.t.Failed() {
			break
		}
	}
	w.check()
	for _, p := range w.places {
		if p.node != nil && p.node.totals != nil {
			p.node.stop()
		}
	}
}

// Over random histories of kills, lost disks, new nodes, removals, returns,
// cuts and ends of months, no node is billed more than it admitted. What is
// less is at most the last second before a kill, or else the bill says how much
// at most, or that it is incomplete.
func TestBillsInHistories(t *testing.T) {
	dir := t.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil { // far faster
		var err error
		if dir, err = os.MkdirTemp("/dev/shm", "bills"); err == nil {
			t.Cleanup(func() { os.RemoveAll(dir) })
		} else {
			dir = t.TempDir()
		}
	}
	for i := range *histories {
		seed := *historySeed + uint64(i)
		synctest.Test(t, func(t *testing.T) {
			sub := filepath.Join(dir, fmt.Sprint(seed))
			expect.NoError(t, os.Mkdir(sub, 0o700))
			defer os.RemoveAll(sub)
			w := &world{t: t, rng: newRandom(seed), began: time.Now(), dir: sub, seed: seed}
			if seed%2 == 0 {
				w.mergeAt = 1
			}
			w.offset.Store(int64(november.Sub(w.began)))
			w.run(40)
		})
		if t.Failed() {
			return
		}
	}
}
