package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// tally makes checks of several subjects at all nodes, and counts how many of each were admitted.
type tally struct {
	p     *testCluster
	pace  time.Duration
	stop  atomic.Bool
	kills atomic.Int64
	done  sync.WaitGroup

	mu           sync.Mutex // guards the fields below
	nodes        []*testNode
	subjects     []*subject
	deaths       []death
	failed       []string // checks that were not decided within a second
	decided      map[limiter.DecidedBy]int
	pathsChanged time.Time // when paths last broke or came back
}

// subject is a tally's record of one subject.
type subject struct {
	rule, key string
	partition int
	all       int64               // admitted, as answered
	uncertain int64               // perhaps counted, though the answer was lost
	alone     map[*testNode]int64 // of all: decided by a node alone
	byStandby int64               // of all: decided by the standby
	recent    []time.Time         // of all: decided by the owner
}

// death is a node that ended without handing over what it had.
type death struct {
	victim    *testNode
	at        time.Time
	tail      time.Duration  // the age of the oldest hits that it may not have pushed
	forgotten map[string]int // the hits that it may not have reported, by rule and subject
	owned     func(partition int) bool
	copyAge   func(partition int) time.Duration // how old the only copy is; 0 if there was a good one
}

func (s *subject) String() string { return s.rule + " " + s.key }

// startTally starts a tally.
func (p *testCluster) startTally(pace time.Duration, subjects []*subject) *tally {
	c := &tally{p: p, pace: pace, subjects: subjects, nodes: p.nodes[:len(p.nodes):len(p.nodes)],
		decided: map[limiter.DecidedBy]int{}}
	for _, s := range subjects {
		s.partition, s.alone = p.partition(s.rule, s.key), map[*testNode]int64{}
	}
	const workers = 5
	for w := range workers {
		c.done.Go(func() {
			for i := w; !c.stop.Load(); i++ {
				nodes := c.asked()
				if v := nodes[i%len(nodes)]; v.ready.Load() {
					c.ask(v, subjects[(i/len(nodes)+w*len(subjects)/workers)%len(subjects)])
				}
				time.Sleep(c.pace)
			}
		})
	}
	return c
}

// add makes the tally ask at one more node.
func (t *tally) add(v *testNode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes = append(t.nodes, v)
}

// asked returns the nodes at which the tally asks.
func (t *tally) asked() []*testNode {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes
}

func (t *tally) ask(v *testNode, s *subject) {
	var a limiter.Answer
	began, kills := time.Now(), t.kills.Load()
	allowed, err := v.check(s.rule, s.key, &a)
	took := time.Since(began)
	t.mu.Lock()
	defer t.mu.Unlock()
	// A request whose answer was lost is retried as soon as there is another path.
	// The check then takes longer than one round through a third node.
	patience := 50 * time.Millisecond
	if time.Since(t.pathsChanged) < time.Second {
		patience = 400 * time.Microsecond
	}
	if v.crashed.Load() || err != nil || took > patience || t.kills.Load() != kills {
		s.uncertain++
	}
	if v.crashed.Load() {
		return
	}
	if (err != nil || took > time.Second) && len(t.failed) < 10 {
		t.failed = append(t.failed, v.settings.Name+": "+s.String()+" took "+took.String())
	}
	t.decided[a.DecidedBy]++
	if err != nil || !allowed {
		return
	}
	s.all++
	switch a.DecidedBy {
	case limiter.ByFallback:
		s.alone[v]++
	case limiter.ByStandby:
		s.byStandby++
	default:
		s.recent = append(s.recent, time.Now())
	}
}

// notePathChange records that paths break or come back.
func (t *tally) notePathChange() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pathsChanged = time.Now()
}

// noteDeath records that a node ends now. Hits at counters it owned may be
// forgotten if they are younger than tail, which is 0 if everything was handed
// over, or than the copy of a partition, if that is stale. Hits that it decided
// alone may not have been reported yet.
func (t *tally) noteDeath(v *testNode, tail time.Duration, stale func(partition int) time.Duration) {
	d := death{victim: v, at: time.Now(), tail: tail, copyAge: stale, forgotten: map[string]int{},
		owned: func(int) bool { return true }}
	// Only a settled ring tells which node owns a partition.
	if s := v.node.cluster.State(); s.Settled {
		has := map[int]bool{}
		for _, sub := range t.subjects {
			has[sub.partition] = v.node.table.IsOpen(sub.partition)
		}
		d.owned = func(p int) bool { return has[p] }
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.subjects {
		d.forgotten[s.String()] = int(s.alone[v] + s.byStandby)
	}
	t.deaths, t.pathsChanged = append(t.deaths, d), time.Now()
	t.kills.Add(1)
}

// forgotten returns how many hits of a subject all deaths may have lost. The tally must have ended.
func (t *tally) forgotten(s *subject) (n int64) {
	for _, d := range t.deaths {
		n += int64(d.forgotten[s.String()])
		if !d.owned(s.partition) || d.tail == 0 {
			continue
		}
		tail := d.tail
		if d.copyAge != nil {
			tail += d.copyAge(s.partition)
		}
		for _, at := range s.recent {
			if since := at.Sub(d.at); since > -tail && since < 70*time.Millisecond { // some answers are in flight
				n++
			}
		}
	}
	return n
}

// aloneAtMost returns how many hits of a subject were admitted without its
// owner, at most a share for each node.
func (s *subject) aloneAtMost(share int64) (n int64) {
	n = min(s.byStandby, share)
	for _, k := range s.alone {
		n += min(k, share)
	}
	return n
}

func (t *tally) end() {
	t.stop.Store(true)
	t.done.Wait()
}
