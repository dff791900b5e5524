package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// stubFar collects requests to other regions, which the test answers.
type stubFar struct {
	mu    sync.Mutex // guards asked
	asked []stubCall
}

type stubCall struct {
	region string
	method peer.Method
	body   []byte
	done   func([]byte, error)
}

// Reachable implements Far.
func (f *stubFar) Reachable(string) bool { return true }

// Go implements Far.
func (f *stubFar) Go(region string, m peer.Method, body []byte, _ time.Duration, done func([]byte, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, stubCall{region, m, bytes.Clone(body), done})
}

// next waits for the next request, and keeps calling meanwhile until it arrives.
func (f *stubFar) next(t *testing.T, meanwhile ...func()) stubCall {
	t.Helper()
	var c stubCall
	process.Eventually(t, "another region is asked", func() bool {
		for _, do := range meanwhile {
			do()
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.asked) == 0 {
			return false
		}
		c, f.asked = f.asked[0], f.asked[1:]
		return true
	})
	return c
}

func (f *stubFar) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.asked)
}

// newLoneRegion returns a region of n nodes, and a stub for the other regions.
func newLoneRegion(t *testing.T, n int, text string) (*testCluster, *stubFar) {
	t.Helper()
	far := &stubFar{}
	w := newRegion(t, n, text, far)
	for _, node := range w.nodes {
		node.SetRules(shared(compile(t, 1, "version: 1\n"+text), "eu", "ap", "eu", "us"))
	}
	return w, far
}

// shared returns set for a region, recorded as used by all the named regions.
func shared(set *rules.Set, region string, names ...string) *rules.Set {
	return set.WithShares(&rules.DividingVersions{Region: region, Held: []rules.HeldVersion{{Set: set, Regions: names, RecordedAt: 1}}})
}

// spend runs checks until one is refused, and returns how many were admitted.
func (n *testNode) spend(q Query) (admitted int) {
	n.w.t.Helper()
	for n.check(q).Allowed {
		admitted++
	}
	return admitted
}

// A reply that arrives twice, or grants more than requested, is credited once,
// and no more than requested. An invalid reply is not credited.
func TestLoanRepliesTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLoanRepliesTwice)
}

func testLoanRepliesTwice(t *testing.T) {
	w, far := newLoneRegion(t, 1, globalExact)
	n, q := w.nodes[0], byKey("r", "x")
	if have := n.spend(q); have != 300 {
		t.Fatalf("have %d admitted, want 300", have)
	}
	c := far.next(t)
	r, err := read[LoanRequest](c.body)
	if err != nil || r.Rule != "r" || r.Want < 1 || r.Want > 300 || c.method != MethodLend {
		t.Fatalf("have %+v, %v", r, err)
	}
	made := wire.Encode(nil, &LoanReply{status: loanMade, Amount: algorithms.MaxAmount, unused: 10})
	c.done(made, nil)
	c.done(made, nil)
	c.done(nil, peer.ErrTimeout)
	if have := int64(n.spend(q)); have != r.Want {
		t.Errorf("have %d admitted, want the %d asked for", have, r.Want)
	}
	c = far.next(t, pressOwner(n, q))
	c.done([]byte("garbage"), nil)
	expect.Equal(t, n.spend(q), 0, "admitted after garbage")
	if s := n.stats(); s.LoansFailed != 1 || s.Borrowed != 1 || s.BorrowedUnits != r.Want {
		t.Errorf("have %+v", s)
	}
}

// A loan for counters that have begun anew is lost: they may have forgotten the
// usage that it was requested for. So is a loan for a rule or limit that no
// longer exists, or one that arrives at a node without authority.
func TestLoanComesTooLate(t *testing.T) {
	for name, change := range map[string]func(w *testCluster, p int){
		"another lineage": func(w *testCluster, p int) { w.beginLineage(p) },
		"no authority":    func(w *testCluster, _ int) { w.nodes[0].authority.Store(false) },
		"handed over":     func(w *testCluster, p int) { w.handOver(p, w.nodes[1]) },
		"other rules": func(w *testCluster, _ int) {
			w.nodes[0].SetRules(shared(compile(w.t, 2,
				`{version: 1, rules: [{name: r, key: [k], limits: [{limit: 900, per: 1440h, algorithm: fixed-window}]}]}`), "eu", "ap", "eu"))
		},
		"other limit": func(w *testCluster, _ int) {
			w.nodes[0].SetRules(shared(compile(w.t, 2,
				`{version: 1, rules: [{name: r, key: [k], scope: global, limits: [{limit: 900, per: 720h, algorithm: fixed-window}]}]}`), "eu", "ap", "eu"))
		},
	} {
		inBubble := func(t *testing.T) {
			w, far := newLoneRegion(t, 2, globalExact)
			n := w.nodes[0]
			key := w.keyOf("r", n, nil)
			p := w.partition("r", key)
			n.spend(byKey("r", key))
			c := far.next(t)
			change(w, p)
			c.done(wire.Encode(nil, &LoanReply{status: loanMade, Amount: 100, unused: 10}), nil)
			s := n.stats()
			if s.Borrowed != 0 || s.LoanUnitsLost != 100 {
				t.Errorf("have %+v", s)
			}
			n.cluster.loans.mu.Lock()
			defer n.cluster.loans.mu.Unlock()
			if n.cluster.loans.inFlight != 0 {
				t.Error("the loan is still in flight")
			}
		}
		t.Run(name, func(t *testing.T) { synctest.Test(t, inBubble) })
	}
}

// If a loan from a bucket takes long to arrive, the borrower credits only the
// part that can't have refilled at the lender meanwhile. The rest would exist
// twice.
func TestBucketLoanThatTookLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testBucketLoanThatTookLong)
}

func testBucketLoanThatTookLong(t *testing.T) {
	const loan, rate, took = 100, 300, 200 * time.Millisecond // rate: the lender's, in units a second
	w, far := newLoneRegion(t, 1, `rules:
  - {name: r, key: [k], scope: global, consistency: exact, limits: [{limit: 900, per: 1s, algorithm: token-bucket}]}`)
	n := w.nodes[0]
	n.spend(byKey("r", "x"))
	c := far.next(t)
	time.Sleep(took)
	n.spend(byKey("r", "x")) // makes room for all of it
	c.done(wire.Encode(nil, &LoanReply{status: loanMade, Amount: loan, unused: 10, rate: rate}), nil)
	s := n.stats()
	if drained := int64(rate * took.Seconds()); s.LoanUnitsLost < drained || s.BorrowedUnits > loan-drained {
		t.Errorf("have %d units of %d credited and %d lost, want at least %d lost", s.BorrowedUnits,
			loan, s.LoanUnitsLost, drained)
	}
	if s.BorrowedUnits+s.LoanUnitsLost != loan {
		t.Errorf("have %d units credited and %d lost of %d", s.BorrowedUnits, s.LoanUnitsLost, loan)
	}
}

// At most one loan to a counter is in flight. A region that has nothing is not
// asked again; one that does not answer is asked later.
func TestLoansOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLoansOneByOne)
}

func testLoansOneByOne(t *testing.T) {
	w, far := newLoneRegion(t, 1, globalExact)
	n, q := w.nodes[0], byKey("r", "x")
	n.spend(q)
	first := far.next(t)
	press := func() {
		for range 5 {
			<-time.After(ownerNoticePause)
			n.check(q)
		}
	}
	press()
	if have := far.count(); have != 0 || first.region != "ap" {
		t.Fatalf("have %d more asked, after %s", have, first.region)
	}
	first.done(wire.Encode(nil, &LoanReply{status: loanNothing}), nil)
	second := far.next(t, pressOwner(n, q))
	if second.region != "us" {
		t.Fatalf("have %s asked, want us", second.region)
	}
	second.done(nil, peer.ErrTimeout)
	began := time.Now()
	third := far.next(t, pressOwner(n, q))
	if took := time.Since(began); third.region != "us" || took < silentPause*9/10 {
		t.Errorf("have %s asked after %v", third.region, took)
	}
	third.done(wire.Encode(nil, &LoanReply{status: loanNothing}), nil)
	press()
	expect.Equal(t, far.count(), 0, "asked, although no region has anything")
}

// pressOwner returns a function that checks a subject, so that its owner learns
// that the share is short.
func pressOwner(n *testNode, q Query) func() { return func() { n.check(q) } }

// failing is a Confirm that always fails.
func failing(context.Context, int) error { return errNobody }

var errNobody = errors.New("nobody has it")

// lendTo requests a loan from n, as another region would.
func (n *testNode) lendTo(r LoanRequest) (LoanReply, error) {
	n.w.t.Helper()
	type answer struct {
		body []byte
		err  error
	}
	got := make(chan answer, 1)
	a := &testResponder{stop: func() {}, done: func(body []byte, err error) { got <- answer{bytes.Clone(body), err} }}
	n.ServeFar(MethodLend, wire.Encode(nil, &r), a)
	select {
	case one := <-got:
		if one.err != nil {
			return LoanReply{}, one.err
		}
		return read[LoanReply](one.body)
	case <-time.After(5 * time.Second):
		n.w.t.Fatal("no answer")
		return LoanReply{}, nil
	}
}

// request returns a valid request for a loan of a rule's first limit.
func (n *testNode) request(rule, key string, want int64) LoanRequest {
	u, err := n.Locate(&Query{Rule: rule, Key: []string{key}})
	expect.NoError(n.w.t, err)
	limit := u.Limits[0].Limit
	at := counters.Key{Subject: u.Hash.Hi, Counter: u.Hash.Lo ^ limit.ID}
	window := n.table.Loans(n.clock.Now(), at, &limit.Limit).Window
	return LoanRequest{subjectRef: subjectRef{version: 1, Rule: rule, Key: []string{key}},
		limit: limit.ID, Window: window, Want: want}
}

// Forged, stale or greedy requests get nothing, or no more than there is.
func TestHostileRequests(t *testing.T) { synctest.Test(t, testHostileRequests) }

func testHostileRequests(t *testing.T) {
	w, _ := newLoneRegion(t, 2, `rules:
  - {name: r, key: [k], scope: global, consistency: exact, limits: [{limit: 900, per: 1440h, algorithm: fixed-window}]}
  - {name: b, key: [k], scope: global, limits: [{limit: 900, per: 1440h, algorithm: token-bucket}]}
  - {name: local, key: [k], scope: global, consistency: local, limits: [{limit: 900, per: 1440h, algorithm: fixed-window}]}
  - {name: region, key: [k], limits: [{limit: 900, per: 1440h, algorithm: fixed-window}]}`)
	for _, owner := range w.nodes {
		key := w.keyOf("r", owner, nil)
		for name, have := range map[string]struct {
			change func(*LoanRequest)
			status loanStatus
		}{
			"other rule":    {func(r *LoanRequest) { r.Rule = "x" }, loanUnknown},
			"region's rule": {func(r *LoanRequest) { r.Rule = "region" }, loanUnknown},
			"local rule":    {func(r *LoanRequest) { r.Rule = "local" }, loanUnknown},
			"no key":        {func(r *LoanRequest) { r.Key = nil }, loanUnknown},
			"two keys":      {func(r *LoanRequest) { r.Key = append(r.Key, "y") }, loanUnknown},
			"other limit":   {func(r *LoanRequest) { r.limit++ }, loanUnknown},
			"bucket's":      {func(r *LoanRequest) { r.Rule = "b" }, loanUnknown},
			"next window":   {func(r *LoanRequest) { r.Window++ }, loanLater},
			"last window":   {func(r *LoanRequest) { r.Window-- }, loanLater},
			"no window":     {func(r *LoanRequest) { r.Window = 0 }, loanLater},
		} {
			r := w.nodes[0].request("r", key, 100)
			have.change(&r)
			if got, err := w.nodes[0].lendTo(r); err != nil || got.status != have.status || got.Amount != 0 {
				t.Errorf("%s: have %+v, %v; want status %d", name, got, err, have.status)
			}
		}
		for name, want := range map[string]int64{"nothing": 0, "less": -1, "too much": 1 << 62} {
			if got, err := w.nodes[0].lendTo(w.nodes[0].request("r", key, want)); err == nil {
				t.Errorf("%s: have %+v", name, got)
			}
		}
		expect.Equal(t, owner.used("r", key), 0, "used")
		if got, err := w.nodes[0].lendTo(w.nodes[0].request("r", key,
			algorithms.MaxAmount)); err != nil || got.Amount != 150 || got.unused != 150 {
			t.Errorf("have %+v, %v; want 150 lent of 300", got, err)
		}
		for range 20 { // repeated requests don't get more than the share
			_, _ = w.nodes[1].lendTo(w.nodes[1].request("r", key, algorithms.MaxAmount))
		}
		if u, err := owner.usageInRegion(&Query{Rule: "r", Key: []string{key}}); err != nil ||
			u.Limits[0].Lent != 300 || u.Limits[0].Remaining != 0 {
			t.Errorf("have %+v, %v", u, err)
		}
	}
	a := &testResponder{stop: func() {}, done: func(_ []byte, err error) {
		if err == nil {
			t.Error("an unknown method was answered")
		}
	}}
	w.nodes[0].ServeFar(MethodAsk, nil, a)
}

// A loan that the lender can't confirm is not announced, and is put back. A
// loan is not announced either if the owner loses authority meanwhile.
func TestUnconfirmedLoans(t *testing.T) {
	w, _ := newLoneRegion(t, 1, globalExact)
	n := w.nodes[0]
	confirm := failing
	n.confirm.Store(&confirm)
	if got, err := n.lendTo(n.request("r", "x", 100)); err != nil || got.status != loanLater {
		t.Errorf("have %+v, %v", got, err)
	}
	if u, err := n.usageInRegion(&Query{Rule: "r", Key: []string{"x"}}); err != nil ||
		u.Limits[0].Used != 0 || u.Limits[0].Lent != 0 {
		t.Errorf("have %+v, %v; want all put back", u, err)
	}
	confirm = func(context.Context, int) error {
		w.beginLineage(w.partition("r", "y"))
		return errNobody
	}
	if got, err := n.lendTo(n.request("r", "y", 100)); err != nil || got.status != loanLater {
		t.Errorf("have %+v, %v", got, err)
	}
	if u, err := n.usageInRegion(&Query{Rule: "r", Key: []string{"y"}}); err != nil ||
		u.Limits[0].Used != 0 || u.Limits[0].Share != 200 || u.Limits[0].Lent != 100 {
		t.Errorf("have %+v, %v; want nothing put back into another lineage", u, err)
	}
	confirm = func(context.Context, int) error {
		n.authority.Store(false)
		return nil
	}
	if got, err := n.lendTo(n.request("r", "z", 100)); err != nil || got.status != loanLater {
		t.Errorf("have %+v, %v", got, err)
	}
	if s := n.stats(); s.Lent != 0 || s.LentUnits != 0 {
		t.Errorf("have %+v", s)
	}
}

// G8: lenders are killed repeatedly while they lend. Their standbys continue
// from what was confirmed. No announced loan is forgotten.
func TestG8_KilledLenders(t *testing.T) {
	for seed := range seeds(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testKilledLenders(t, seed) })
		})
	}
}

func testKilledLenders(t *testing.T, seed int) {
	e := newTestRegions(t, globalExact, "ap", "eu", "us")
	u, err := e.all["eu"].nodes[0].Locate(&Query{Rule: "r", Key: []string{"x"}})
	expect.NoError(t, err)
	p, subject := ring.PartitionOf(u.Hash.Hi), u.Hash.Hi
	for _, name := range []string{"ap", "us"} {
		e.all[name].killWhenConfirmed(p, seed)
	}
	q := byKey("r", "x")
	n := e.flood(q, 900, 700*time.Millisecond, "eu")
	e.waitForLoans()
	for _, name := range []string{"ap", "us"} {
		for _, node := range e.all[name].nodes {
			node.confirm.Store(nil)
		}
	}
	n += e.flood(q, 900-n, 300*time.Millisecond, "ap", "us")
	if n > 900 || n < 500 {
		t.Errorf("have %d admitted, want at most 900 (subject %x): %s", n, subject, e.describeUsage("r", "x"))
	}
}

// killWhenConfirmed kills the owner of p, now and then, right before or right
// after it confirms a loan. Then the other node becomes the owner, with what
// was confirmed and a new lineage.
func (w *testCluster) killWhenConfirmed(p, seed int) {
	var mu sync.Mutex // guards standby and turn
	var standby []counters.Record
	turn := seed
	fail := func(of *testNode) {
		to := w.nodes[0]
		if to == of {
			to = w.nodes[1]
		}
		of.table.Shut(p)
		of.table.Drop(p)
		w.change(func() { w.place[p].owner, w.place[p].lineage = to.id, w.place[p].lineage+1 })
		for _, r := range standby {
			to.table.Put(to.clock.Now(), r)
		}
		to.table.Open(p, w.place[p].lineage)
	}
	for _, n := range w.nodes {
		f := func(context.Context, int) error {
			mu.Lock()
			defer mu.Unlock()
			turn++
			if turn%4 == 1 { // no other node has the loan yet
				fail(n)
				return errNobody
			}
			standby = nil
			_ = n.table.Copy(p, func(records []counters.Record) error {
				standby = append(standby, records...)
				return nil
			})
			if turn%4 == 3 { // the standby has the loan, but the borrower does not hear of it
				fail(n)
				return errNobody
			}
			return nil
		}
		n.confirm.Store(&f)
	}
}

// Owners decide nothing for nodes whose rules are older than the version that
// all regions are recorded as using. Those nodes decide alone, within their
// part of the share.
func TestStaleAskers(t *testing.T) { synctest.Test(t, testStaleAskers) }

func testStaleAskers(t *testing.T) {
	w, _ := newLoneRegion(t, 2, globalExact)
	owner, asker := w.nodes[0], w.nodes[1]
	key := w.keyOf("r", owner, asker)
	q := byKey("r", key)
	if a := asker.check(q); a.DecidedBy != ByForward || !a.Allowed {
		t.Fatalf("have %+v", a)
	}
	// The newer version is not recorded yet: the owner uses the asker's rules.
	next := compile(t, 2, "version: 1\n"+globalExact)
	old := asker.Rules()
	owner.SetRules(next.WithShares(&rules.DividingVersions{Region: "eu", Held: []rules.HeldVersion{
		{Set: old, Regions: []string{"ap", "eu", "us"}, RecordedAt: 1}, {Set: next, Regions: []string{"ap", "eu", "us"}},
	}}))
	if a := asker.check(q); a.DecidedBy != ByForward || a.RulesVersion != 1 {
		t.Errorf("have %s by version %d, want forward by 1", a.DecidedBy, a.RulesVersion)
	}
	owner.SetRules(shared(next, "eu", "ap", "eu", "us"))
	a := asker.check(q)
	if a.DecidedBy != ByFallback || !a.Allowed || a.Limits[0].Remaining > 150 {
		t.Errorf("have %s, %+v, want fallback within half of the share", a.DecidedBy, a.Limits[0])
	}
	expect.Equal(t, owner.used("r", key), 2, "used at the owner")
	asker.SetRules(shared(next, "eu", "ap", "eu", "us"))
	if a := asker.check(q); a.DecidedBy != ByForward || a.RulesVersion != 2 {
		t.Errorf("have %s by version %d, want forward by 2", a.DecidedBy, a.RulesVersion)
	}
}

// Answers report the whole limit, and what is left of this region's share. A
// region without a share admits nothing; only what is above the whole limit can
// never be admitted.
func TestWholeLimits(t *testing.T) {
	text := `rules:
  - {name: r, key: [k], scope: global, regions: {eu: 1}, limits: [{limit: 900, per: 1h, algorithm: fixed-window}]}
  - {name: b, key: [k], scope: global, regions: {eu: 1}, limits: [{limit: 900, per: 1h, algorithm: token-bucket}]}`
	e := newTestRegions(t, text, "ap", "eu")
	e.change(func() { e.cut[[2]string{"ap", "eu"}] = true }) // or loans would arrive meanwhile
	for _, rule := range []string{"r", "b"} {
		for i := range 4 {
			for _, n := range e.all["ap"].nodes {
				a := n.check(byKey(rule, fmt.Sprint("k", i)))
				if a.Allowed || a.DecidedBy < ByForward || a.Limits[0].Limit.WholeCapacity != 900 ||
					a.Limits[0].Remaining != 0 {
					t.Errorf("ap: have %+v by %s", a.Limits[0], a.DecidedBy)
				}
				for cost, never := range map[int64]bool{900: false, 901: true} {
					q := byKey(rule, fmt.Sprint("k", i))
					q.Costs = []UnitCost{{"requests", cost}}
					if a := n.check(q); a.Allowed || (a.Limits[0].RetryAfter == algorithms.Never) != never {
						t.Errorf("ap: have %+v for a cost of %d", a.Limits[0], cost)
					}
				}
			}
			for _, n := range e.all["eu"].nodes {
				a := n.check(byKey(rule, fmt.Sprint("k", i)))
				if !a.Allowed || a.Limits[0].Limit.WholeCapacity != 900 || a.Limits[0].Remaining > 899 {
					t.Errorf("eu: have %+v", a.Limits[0])
				}
			}
		}
	}
}

// Usage reports what every region has used of its share, and which regions could not be reached.
func TestUsageOfShares(t *testing.T) { synctest.Test(t, testUsageOfShares) }

func testUsageOfShares(t *testing.T) {
	e := newTestRegions(t, globalExact, "ap", "eu", "us")
	q := byKey("r", "x")
	e.flood(q, 350, 10*time.Second, "eu")
	e.waitForLoans()
	e.change(func() { e.cut[[2]string{"eu", "us"}] = true })
	for _, n := range e.all["eu"].nodes {
		u, err := n.Usage(&Query{Rule: "r", Key: []string{"x"}})
		if err != nil || len(u.Regions) != 3 || u.Shares["ap"] != 300 || u.Shares["us"] != 300 ||
			u.Shares["eu"] != 300 {
			t.Fatalf("have %+v, %v", u, err)
		}
		ap, eu, us := u.Regions[0], u.Regions[1], u.Regions[2]
		if us.Reachable || us.Limits != nil || !ap.Reachable || !eu.Reachable || ap.Name != "ap" ||
			len(ap.Limits) != 1 {
			t.Fatalf("have %+v", u.Regions)
		}
		lender, borrower := ap.Limits[0], eu.Limits[0]
		if lender.Own != 0 || lender.Lent == 0 || lender.Lent+lender.Remaining != 300 ||
			lender.Share != 300 || lender.Name != "r" {
			t.Errorf("have %+v", lender)
		}
		if borrower.Own < 350 || borrower.Used != borrower.Own+borrower.Leased-borrower.Borrowed ||
			borrower.Borrowed < 50 || borrower.Remaining != 300-borrower.Used {
			t.Errorf("have %+v", borrower)
		}
	}
	// A reset affects only this region, and clears what it borrowed.
	if _, err := e.all["eu"].nodes[0].Reset(&Query{Rule: "r", Key: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	if u := e.usage("eu", "r", "x"); u.Used != 0 || u.Borrowed != 0 || u.Lent != 0 {
		t.Errorf("have %+v after a reset", u)
	}
	if u := e.usage("ap", "r", "x"); u.Lent == 0 {
		t.Errorf("have %+v in another region after a reset", u)
	}
}

// Checks of global limits that this node decides don't allocate, however little
// is left, except to notify an owner.
func TestGlobalChecksAllocateNothing(t *testing.T) {
	w, _ := newLoneRegion(t, 1, `rules:
  - {name: r, key: [k], scope: global, limits: [{limit: 9007199254740991, per: 1440h, algorithm: fixed-window}]}
  - {name: few, key: [k], scope: global, limits: [{limit: 9, per: 1440h, algorithm: fixed-window}]}`)
	n := w.nodes[0]
	for rule, most := range map[string]float64{"r": 0, "few": 1} {
		q := byKey(rule, "x")
		var a Answer
		for range 10 {
			_ = n.Check(&q, &a)
		}
		if have := testing.AllocsPerRun(10_000, func() { _ = n.Check(&q, &a) }); have > most || a.DecidedBy != ByOwner {
			t.Errorf("%s: have %v allocations, want at most %v", rule, have, most)
		}
	}
}

// The number of borrowers is bounded, and idle ones are dropped eventually.
func TestBorrowersAreBounded(t *testing.T) {
	var x loans
	x.init(nil)
	for i := range maxBorrowers + 100 {
		x.mu.Lock()
		c := x.borrowerOf(counters.Key{Subject: uint64(i)}, 1, int64(i))
		c.inFlight = i < 10
		x.mu.Unlock()
	}
	expect.Equal(t, len(x.borrowers), maxBorrowers, "len(x.borrowers)")
	x.sweep(int64(2 * borrowerLife))
	if len(x.borrowers) != 10 {
		t.Errorf("have %d, want the 10 with loans in flight", len(x.borrowers))
	}
}
