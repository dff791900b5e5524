package node

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/pairs"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
)

var (
	pairSeed  = flag.Uint64("pair-seed", 1, "of the first run of each pair of faults")
	pairSeeds = flag.Uint64("pair-seeds", 1, "how many times to run each pair")
	pairCount = flag.Int("pairs", 1, "how many pairs of faults to run, chosen by the seed; 0: all")
)

// While one fault lasts, another one happens. The cluster keeps the promises of
// docs/guarantees.md, both during the faults and after recovery.
func TestPairsOfFaultsInOneProcess(t *testing.T) {
	t.Parallel()
	n := *pairCount
	if n == 0 {
		n = len(pairs.All())
	}
	for _, one := range pairs.Choose(*pairSeed, n, pairs.All()) {
		t.Run(one.String(), func(t *testing.T) {
			for seed := *pairSeed; seed < *pairSeed+*pairSeeds; seed++ {
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { newFaultPair(t, seed, one).run() })
				})
			}
		})
	}
}

// TestWhoWasEndedIsAskedInOneProcess: an owner's disk is full and its standby
// dies. The owner can't apply the new ring, so it is evicted. What it admitted
// exists only in its memory.
func TestWhoWasEndedIsAskedInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, faultPairNodes, exactRules(1_000_000))
		followers := p.followers()
		owner, standby := followers[0], followers[1]
		key := p.keyOwnedBy("year", owner, standby, 0)
		partition := p.partition("year", key)
		admitted, _, _ := owner.ask("year", key, 2000)
		owner.memory.fill()
		time.Sleep(time.Second)
		standby.endProcess(false)
		p.eventually("the owner is ended", func() bool { return !followers[2].state().InRing(owner.id) })
		if used := p.owner(partition, owner).usedAt("year", key); used != admitted {
			t.Errorf("have %d used, and %d were admitted", used, admitted)
		}
	})
}

const (
	fewLimit = 60 // of the rule few
	// faultPairNodes is enough for a majority besides one broken node and one dead one.
	faultPairNodes = 5
	// lasting bounds how long one fault may leave partitions without an owner.
	lasting = 10 * time.Second
	// recovered bounds how long a join and a leave may take after a fault.
	recovered = 30 * time.Second
	// inForce bounds how long a written rule may not be in force at nodes with authority.
	inForce = 5 * time.Second
)

func pairRules(few int) string {
	return exactRules(1_000_000) +
		fmt.Sprintf("  - {name: few, key: [ip], consistency: exact, limits: [{limit: %d, per: 8760h, algorithm: fixed-window}]}\n",
			few)
}

// faultPair is one run of a pair of faults.
type faultPair struct {
	t     *testing.T
	p     *testCluster
	rnd   *rand.Rand
	tally *tally
	pair  pairs.Pair

	owner, standby *testNode // of some partitions; neither leads at the beginning
	from, to       *testNode // the two sides of a move; nil until there is one
	broken         *testNode // the node with the broken disk
	began          time.Time
	before         *agreement.State // when the fault began
	victim         *testNode        // the killed node
	restarted      *testNode
	gone           []*testNode // nodes that have left the ring
}

func newFaultPair(t *testing.T, seed uint64, what pairs.Pair) *faultPair {
	s := &faultPair{t: t, pair: what, p: newTestCluster(t, faultPairNodes, pairRules(fewLimit)),
		rnd: rand.New(rand.NewPCG(seed, what.Number()))}
	_, others := s.p.leader()
	s.rnd.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	s.owner, s.standby = others[0], others[1]
	var subjects []*subject
	for i := range 24 {
		subjects = append(subjects, &subject{rule: "year", key: fmt.Sprintf("k%d", i)})
	}
	for i := range 3 {
		subjects = append(subjects, &subject{rule: "year", key: s.p.keyOwnedBy("year", s.owner, s.standby, i)},
			&subject{rule: "few",
				key: s.p.keyOwnedBy("few", s.owner, s.standby, i)}, &subject{rule: "few",
				key: fmt.Sprintf("k%d", i)})
	}
	s.tally = s.p.startTally(10*time.Millisecond, subjects)
	time.Sleep(time.Duration(s.rnd.IntN(1000)) * time.Millisecond)
	return s
}

func (s *faultPair) run() {
	s.startFault()
	// Sometimes the fault has only just begun, and sometimes all nodes have adapted to it.
	if s.rnd.IntN(2) == 0 {
		time.Sleep(time.Duration(s.rnd.IntN(4000)) * time.Millisecond)
	} else {
		time.Sleep(lasting)
		s.checkOwned("one fault")
		time.Sleep(time.Duration(s.rnd.IntN(3000)) * time.Millisecond)
	}
	s.runSecondEvent()
	s.checkStillWorks()
	s.endFaults()
	s.judge()
}

// name returns the node's name.
func (v *testNode) name() string { return v.settings.Name }

// logEvent logs an event with its time.
func (s *faultPair) logEvent(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("%7.3fs %s", time.Since(s.p.start).Seconds(), fmt.Sprintf(format, args...))
}

// role returns the node that has the role now.
func (s *faultPair) role(name string) *testNode {
	switch name {
	case "leader":
		leader, _ := s.p.leader()
		return leader
	case "owner":
		return s.owner
	case "standby":
		return s.standby
	case "from":
		return s.from
	case "to":
		return s.to
	}
	panic("no such role: " + name)
}

// startFault starts the lasting fault.
func (s *faultPair) startFault() {
	what, where := s.pair.SplitFault()
	defer func() { s.began, s.before = time.Now(), s.standby.state() }()
	if what == "disk-hung" || what == "disk-full" {
		s.broken = s.role(where)
		s.logEvent("%s: %s", what, s.broken.name())
		if what == "disk-hung" {
			s.broken.memory.hang()
		} else {
			s.broken.memory.fill()
		}
		return
	}
	first, second, _ := strings.Cut(where, "-")
	switch second {
	case "follower":
		second = "owner"
	case "to":
		s.startMove(s.owner)
	}
	a, b := s.role(first), s.role(second)
	s.tally.notePathChange()
	s.logEvent("%s: %s and %s", what, a.name(), b.name())
	if what != "link-in" {
		s.p.net.CutOneWay(a.ip, b.ip)
	}
	if what != "link-out" {
		s.p.net.CutOneWay(b.ip, a.ip)
	}
}

// startMove makes one more node join. It returns in the middle of the move, or just after it.
func (s *faultPair) startMove(from *testNode) {
	s.from = from
	s.p.net.DelayBetween(from.ip, s.p.address(len(s.p.nodes)), time.Duration(5+s.rnd.IntN(15))*time.Millisecond)
	s.to = s.joinNode()
	s.awaitEmpty(recovered, "the ring moves",
		func() string { return s.inRing(s.to, func(v *testNode) *ring.Table { return v.state().To }) })
	time.Sleep(time.Duration(s.rnd.IntN(150)) * time.Millisecond) // about as long as a move takes
}

// joinNode starts one more node.
func (s *faultPair) joinNode() *testNode {
	v := s.p.joinNode()
	s.tally.add(v)
	s.logEvent("%s joins", v.name())
	return v
}

func (v *testNode) state() *agreement.State { return v.node.cluster.State() }

// inRing returns why some connected node's ring lacks v, or why v has no
// authority; empty if neither.
func (s *faultPair) inRing(v *testNode, of func(v *testNode) *ring.Table) string {
	if !v.connected() {
		return v.name() + " has no authority"
	}
	for _, other := range s.tally.asked() {
		if other.connected() && of(other).Rank(v.id) < 0 {
			return v.name() + " is not in the ring of " + other.name()
		}
	}
	return ""
}

// awaitEmpty waits until why returns an empty string. It fails if that takes longer than d.
func (s *faultPair) awaitEmpty(d time.Duration, what string, why func() string) bool {
	s.t.Helper()
	last := ""
	for began := time.Now(); time.Since(began) < d; time.Sleep(10 * time.Millisecond) {
		last = why()
		if last == "" {
			return true
		}
	}
	s.t.Errorf("%7.3fs %s: not within %v: %s", time.Since(s.p.start).Seconds(), what, d, last)
	return false
}

// checkOwned fails unless each partition has an owner with authority.
func (s *faultPair) checkOwned(when string) {
	s.t.Helper()
	// some may be frozen for a moment, to be handed over
	s.awaitEmpty(time.Second, when+": every partition has an owner", func() string {
		if q := firstUnowned(s.tally.asked()); q >= 0 {
			return fmt.Sprintf("partition %d has no owner", q)
		}
		return ""
	})
}

// firstUnowned returns the first partition that none of the nodes owns with
// authority, or -1 if there is none.
func firstUnowned(nodes []*testNode) int {
	var have [ring.Partitions]bool
	for _, v := range nodes {
		if v.connected() {
			for q := range have {
				have[q] = have[q] || v.node.table.IsOpen(q)
			}
		}
	}
	return slices.Index(have[:], false)
}

// runSecondEvent performs the second event: a fault or an ordinary operation.
func (s *faultPair) runSecondEvent() {
	event, role := s.pair.SplitEvent()
	switch event {
	case "kill":
		if s.to == nil && (role == "from" || role == "to") {
			s.startMove(s.healthy())
		}
		s.kill(s.role(role))
	case "restart":
		v := s.owner
		if v == s.broken {
			v = s.standby
		}
		s.restarted = v
		s.restart(v)
	}
}

// healthy returns a random node that is alive and has not been restarted, and whose disk works.
func (s *faultPair) healthy() *testNode {
	for {
		if v := s.p.nodes[s.rnd.IntN(faultPairNodes)]; v.alive.Load() && v != s.broken &&
			v != s.restarted && !slices.Contains(s.gone, v) {
			return v
		}
	}
}

// tail is how old what a killed node admitted may be and still be forgotten. It
// covers a push interval, the time of some messages and, if a link has only
// just broken, the time until there is a path around it.
func (s *faultPair) tail() time.Duration {
	if time.Since(s.began) < 2*time.Second || s.to != nil {
		return 700 * time.Millisecond
	}
	return 200 * time.Millisecond
}

// copyAge returns how old the copies of a killed node's partitions may be. If
// the standby of a partition is the node with the broken disk, there may be no
// copy since the fault began: that node may have missed a new ring, and may not
// have been replaced yet.
func (s *faultPair) copyAge(v *testNode) func(partition int) time.Duration {
	now := v.state()
	if s.broken == nil || v == s.broken || now.Revision == s.before.Revision ||
		!now.InRing(s.broken.id) && now.Settled {
		return nil
	}
	lasts := time.Since(s.began)
	return func(p int) time.Duration {
		if s.before.To.Standby(p) == s.broken.id {
			return lasts
		}
		return 0
	}
}

func (s *faultPair) kill(v *testNode) {
	s.logEvent("%s is killed", v.name())
	s.tally.noteDeath(v, s.tail(), s.copyAge(v))
	s.victim = v
	v.endProcess(false)
}

// restart stops a node as gracefully as it can, and starts it again.
func (s *faultPair) restart(v *testNode) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	err := v.node.leave(ctx, false, "")
	cancel()
	s.logEvent("%s restarts, has left the ring: %v", v.name(), err == nil)
	s.restartProcess(v)
}

// restartProcess ends a node's process gracefully, and starts it again. Its
// checkpoint has what was not handed over.
func (s *faultPair) restartProcess(v *testNode) {
	v.ready.Store(false)
	time.Sleep(api.DrainGrace)
	s.tally.noteDeath(v, 0, nil)
	v.save()
	v.endProcess(false)
	time.Sleep(300 * time.Millisecond)
	v.startProcess()
}

// save makes a checkpoint, with which the next process starts.
func (v *testNode) save() {
	v.memory.table = nil
	for p := range ring.Partitions {
		_ = v.node.table.Copy(p, func(records []counters.Record) error {
			for _, r := range records {
				r.Log = slices.Clone(r.Log)
				v.memory.table = append(v.memory.table, r)
			}
			return nil
		})
	}
}

// checkStillWorks checks that the cluster still works while the fault lasts: a
// rule is written, a node joins, and one leaves. If one of these is the second
// event, it comes first.
func (s *faultPair) checkStillWorks() {
	at := time.Now()
	var all sync.WaitGroup
	all.Go(func() {
		time.Sleep(lasting)
		s.checkOwned("both")
	})
	kinds := []string{"write", "join", "leave"}
	s.rnd.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	if i := slices.Index(kinds, s.pair.Event); i >= 0 {
		kinds[0], kinds[i] = kinds[i], kinds[0]
	}
	for _, kind := range kinds {
		if kind != s.pair.Event {
			time.Sleep(time.Duration(s.rnd.IntN(1500)) * time.Millisecond)
		}
		rest := time.Until(at.Add(recovered))
		switch kind {
		case "write":
			at := s.rnd.IntN(faultPairNodes)
			all.Go(func() { s.writeRule(at, rest) })
		case "join":
			v := s.joinNode()
			all.Go(func() {
				s.awaitEmpty(rest, "a node joins", func() string {
					return s.inRing(v, func(v *testNode) *ring.Table { return v.state().From })
				})
			})
		case "leave":
			v := s.healthy()
			s.gone = append(s.gone, v)
			all.Go(func() { s.removeNode(v, rest) })
		}
	}
	if s.pair.Event == "restart" {
		all.Go(func() {
			s.awaitEmpty(time.Until(at.Add(recovered)), "the restarted node is ready", func() string {
				if !s.restarted.ready.Load() {
					return s.restarted.name()
				}
				return ""
			})
		})
	}
	all.Wait()
}

// removeNode makes a node leave the ring. Its process runs until all faults
// have ended, so that it can report its debts.
func (s *faultPair) removeNode(v *testNode, within time.Duration) {
	s.logEvent("%s leaves", v.name())
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := v.node.leave(ctx, false, ""); err != nil {
		s.t.Errorf("%s leaves: not within %v: %v", v.name(), within, err)
	}
	s.logEvent("%s has left", v.name())
}

// writeRule writes a rule at node at, or at another if that one can't, and
// checks that all nodes with authority use the rule in time.
func (s *faultPair) writeRule(at int, within time.Duration) {
	version := int64(0)
	if !s.awaitEmpty(within, "a rule is written", func() string {
		at++
		v := s.tally.asked()[at%faultPairNodes]
		if !v.connected() {
			return v.name() + " is not connected"
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var err error
		version, err = v.admin().Write(ctx, document.Change{Body: []byte(pairRules(fewLimit - 20))},
			cluster.WriteOptions{By: v.name()})
		if err != nil {
			return err.Error()
		}
		return ""
	}) {
		return
	}
	s.logEvent("version %d is written", version)
	time.Sleep(inForce)
	lags := func(v *testNode) bool {
		used := v.node.limiter.Rules() // nil: its process has just begun
		return used == nil || used.Version < version
	}
	for range 50 {
		for _, v := range s.tally.asked() {
			if v.connected() && lags(v) {
				s.t.Errorf("%s is connected and does not use version %d", v.name(), version)
				return
			}
			// A node that can't catch up must not decide as owner by older rules.
			if v.alive.Load() && v.node.limiter.Rules() != nil && lags(v) {
				var a limiter.Answer
				_, err := v.check("year", "written", &a)
				if err == nil && a.DecidedBy != limiter.ByFallback && lags(v) {
					s.t.Errorf("%s does not use version %d, and its check was decided by %s", v.name(), version, a.DecidedBy)
					return
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// endFaults ends all faults.
func (s *faultPair) endFaults() {
	s.logEvent("healed")
	s.tally.notePathChange()
	s.p.net.HealAll()
	if s.broken != nil {
		s.broken.memory.mend()
	}
	if s.victim != nil {
		s.victim.startProcess()
	}
	time.Sleep(5 * time.Second) // until debts are reported
	for _, v := range s.gone {
		s.restartProcess(v)
	}
	s.p.awaitWhole()
	time.Sleep(3 * time.Second)
	s.tally.end()
	s.p.awaitWhole()
	time.Sleep(5 * time.Second)
}

func (s *faultPair) judge() {
	lost, doubled := int64(0), int64(0)
	for _, u := range s.tally.subjects {
		used, forgotten, beside := s.p.used(u.rule, u.key), s.tally.forgotten(u), u.uncertain
		if s.broken != nil {
			// An owner that loses its authority in the middle of a check has counted a cost
			// that another node admits.
			beside += u.aloneAtMost(1 << 40)
		}
		lost, doubled = lost+max(0, u.all-used), doubled+max(0, used-u.all)
		if used < u.all-forgotten || used > u.all+beside {
			s.t.Errorf("%s: have %d used, %d were admitted; %d may be forgotten, %d counted twice",
				u, used, u.all, forgotten, beside)
		}
		// A share divides the limit by the nodes of the latest ring, which has one
		// fewer after an eviction.
		most := fewLimit + forgotten + u.aloneAtMost((fewLimit+faultPairNodes-2)/(faultPairNodes-1))
		if u.rule == "few" && u.all > most {
			s.t.Errorf("%s: have %d admitted, want at most %d", u, u.all, most)
		}
	}
	for _, text := range s.tally.failed {
		s.t.Error(text)
	}
	s.logEvent("%d forgotten, %d counted twice, by %v", lost, doubled, s.tally.decided)
}
