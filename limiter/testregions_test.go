package limiter

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/rules"
)

// testRegions is several regions, each a testCluster of its own. The network
// between them can delay, cut off and lose messages.
type testRegions struct {
	t     testing.TB
	names []string
	all   map[string]*testCluster
	calls sync.WaitGroup

	mu    sync.Mutex              // guards the fields below
	cut   map[[2]string]bool      // from one region to another
	pause func() time.Duration    // delay of each message, one way
	lose  func(reply []byte) bool // reports whether a reply is lost; nil: no reply is
	heard func(from, to string, m peer.Method, body []byte)
	over  bool // the test is over: send nothing
}

// regionFar implements Far for one region.
type regionFar struct {
	*testRegions
	region string
}

// newTestRegions returns regions of two nodes each, with the given rules.
func newTestRegions(t testing.TB, text string, names ...string) *testRegions {
	t.Helper()
	return newTestRegionsOf(t, 2, text, names...)
}

// newTestRegionsOf is newTestRegions for regions of that many nodes.
func newTestRegionsOf(t testing.TB, nodes int, text string, names ...string) *testRegions {
	t.Helper()
	e := &testRegions{
		t: t, names: names, all: map[string]*testCluster{}, cut: map[[2]string]bool{},
		pause: func() time.Duration { return 5 * time.Millisecond },
	}
	for _, name := range names {
		e.all[name] = newRegion(t, nodes, text, &regionFar{e, name})
	}
	e.use(1, text, names)
	t.Cleanup(func() { // runs before the cleanups of the regions
		e.change(func() { e.over = true })
		e.calls.Wait()
	})
	return e
}

// spawn runs f, unless the test is over.
func (e *testRegions) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return false
	}
	e.calls.Go(f)
	return true
}

// use makes all regions use the given rules, recorded for the named regions.
func (e *testRegions) use(version int64, text string, names []string) {
	for _, name := range e.names {
		e.useIn(name, compile(e.t, version, "version: 1\n"+text), rules.HeldVersion{Regions: names, RecordedAt: 1})
	}
}

// useIn makes one region use set, which own describes. Each region hashes
// subjects with a secret of its own.
func (e *testRegions) useIn(name string, set *rules.Set, own rules.HeldVersion, before ...rules.HeldVersion) {
	own.Set = set
	for _, n := range e.all[name].nodes {
		n.SetRules(set.Keyed([]byte(name)).WithShares(&rules.DividingVersions{Region: name, Held: append(before, own)}))
	}
}

// Reachable implements Far.
func (f *regionFar) Reachable(region string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.cut[[2]string{f.region, region}]
}

// Go implements Far. It calls some node of the region.
func (f *regionFar) Go(region string, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error)) {
	if !f.Reachable(region) {
		done(nil, peer.ErrUnreachable)
		return
	}
	f.mu.Lock()
	there, back, heard := f.pause(), f.pause(), f.heard
	f.mu.Unlock()
	if heard != nil {
		heard(f.region, region, m, body)
	}
	body = bytes.Clone(body)
	a := &regionResponder{f: f, region: region, back: back, done: done}
	a.timer = time.AfterFunc(timeout, func() { a.finish(nil, peer.ErrTimeout) })
	w := f.all[region]
	if !f.spawn(func() {
		<-time.After(there)
		if f.Reachable(region) { // a message in flight is lost when the link is cut
			w.nodes[rand.IntN(len(w.nodes))].ServeFar(m, body, a)
		}
		clear(body)
	}) {
		a.finish(nil, peer.ErrUnreachable)
	}
}

// regionResponder is a Responder that returns a reply to another region, unless the reply is lost.
type regionResponder struct {
	f      *regionFar
	region string
	back   time.Duration
	timer  *time.Timer
	once   sync.Once
	done   func([]byte, error)
}

func (a *regionResponder) finish(body []byte, err error) {
	a.once.Do(func() {
		a.timer.Stop()
		a.done(body, err)
	})
}

// Reply implements Responder.
func (a *regionResponder) Reply(body []byte) {
	body = bytes.Clone(body)
	f := a.f
	f.spawn(func() {
		<-time.After(a.back)
		back := regionFar{f.testRegions, a.region}
		f.mu.Lock()
		lost := f.lose != nil && f.lose(body)
		f.mu.Unlock()
		if !lost && back.Reachable(f.region) {
			a.finish(body, nil)
		}
	})
}

// Fail implements Responder.
func (a *regionResponder) Fail(code peer.Code, detail string) {
	a.finish(nil, &peer.RemoteError{Code: code, Detail: detail})
}

// change runs f, which may change the network, under mu.
func (e *testRegions) change(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// flood runs checks on every node of the given regions until want are admitted
// in total or bound has passed, and then a few more. It returns how many were
// admitted.
func (e *testRegions) flood(q Query, want int64, bound time.Duration, regions ...string) int64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	deadline := time.Now().Add(bound)
	for _, name := range regions {
		for _, n := range e.all[name].nodes {
			wg.Go(func() {
				var a Answer
				for extra := 0; extra < 50; {
					if err := n.Check(&q, &a); err != nil {
						e.t.Error(err)
						return
					}
					if a.Allowed {
						admitted.Add(1)
					} else {
						<-time.After(time.Millisecond)
					}
					if admitted.Load() >= want || time.Now().After(deadline) {
						extra++
					}
				}
			})
		}
	}
	wg.Wait()
	return admitted.Load()
}

// describeUsage describes each region's usage of a subject.
func (e *testRegions) describeUsage(rule, key string) (out string) {
	for _, name := range e.names {
		u, err := e.all[name].nodes[0].usageInRegion(&Query{Rule: rule, Key: []string{key}})
		if err != nil {
			return err.Error()
		}
		out += fmt.Sprintf("%s %+v %+v; ", name, u.Limits[0], e.all[name].stats())
	}
	return out
}

// loanStats sums up loans.
type loanStats struct{ Lent, LentUnits, Borrowed, BorrowedUnits, LoansFailed, LoanUnitsLost int64 }

// stats sums up the loans of a region's nodes.
func (w *testCluster) stats() (s loanStats) {
	for _, n := range w.nodes {
		one := n.stats()
		s.Lent, s.LentUnits = s.Lent+one.Lent, s.LentUnits+one.LentUnits
		s.Borrowed, s.BorrowedUnits = s.Borrowed+one.Borrowed, s.BorrowedUnits+one.BorrowedUnits
		s.LoansFailed, s.LoanUnitsLost = s.LoansFailed+one.LoansFailed, s.LoanUnitsLost+one.LoanUnitsLost
	}
	return s
}

func (n *testNode) stats() loanStats {
	return loanStats{
		Lent: n.figure("loans_total", "lent"), LentUnits: n.figure("loan_units_total", "lent"),
		Borrowed: n.figure("loans_total", "borrowed"), BorrowedUnits: n.figure("loan_units_total", "borrowed"),
		LoansFailed: n.figure("loans_failed_total"), LoanUnitsLost: n.figure("loan_units_lost_total"),
	}
}

// usage returns a region's usage of a subject's first limit.
func (e *testRegions) usage(region, rule, key string) LimitUsage {
	e.t.Helper()
	u, err := e.all[region].nodes[0].usageInRegion(&Query{Rule: rule, Key: []string{key}})
	expect.NoError(e.t, err)
	return u.Limits[0]
}

// waitForLoans waits until no loan is in flight.
func (e *testRegions) waitForLoans() {
	e.t.Helper()
	process.Eventually(e.t, "no loan is in flight", func() bool {
		for _, w := range e.all {
			for _, n := range w.nodes {
				n.cluster.loans.mu.Lock()
				inFlight := n.cluster.loans.inFlight
				n.cluster.loans.mu.Unlock()
				if inFlight > 0 {
					return false
				}
			}
		}
		return true
	})
}
