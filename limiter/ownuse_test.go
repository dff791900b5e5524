package limiter

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

// The whole limit is used in one region, by single checks. Each answer counts
// that region's own checks, whatever was lent in the meantime, and agrees with
// the usage. The lender answers that it used nothing, and has no share left.
func TestAnswersCountTheRegionsOwnUse(t *testing.T) {
	for _, algorithm := range []string{"fixed-window", "token-bucket"} {
		for _, consistency := range []string{"exact", "hybrid"} {
			for _, asked := range []string{"the owner", "another node"} {
				t.Run(fmt.Sprint(algorithm, ", ", consistency, ", ", asked), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testOwnUse(t, algorithm, consistency, asked == "the owner") })
				})
			}
		}
	}
}

func testOwnUse(t *testing.T, algorithm, consistency string, atOwner bool) {
	e := newTestRegions(t, fmt.Sprintf(`rules:
  - {name: r, key: [k], scope: global, consistency: %s, limits: [{limit: 1000, per: 1440h, algorithm: %s}]}`, consistency, algorithm), "eu", "us")
	us, eu := e.all["us"], e.all["eu"]
	n, owner := us.nodes[0], us.nodes[1]
	if atOwner {
		owner = n
	}
	key := us.keyOf("r", owner, nil)

	var a *Answer
	all := int64(0)
	for {
		a = n.check(waiting("r", key))
		if !a.Allowed {
			break
		}
		all++
		if la := a.TightestLimit(); la.Used != all || la.Used+la.Remaining != la.share() {
			t.Fatalf("check %d: have used %d, remaining %d, share %d, by %v", all, la.Used,
				la.Remaining, la.share(), a.DecidedBy)
		}
		synctest.Wait() // until no grant is under way
	}
	// a bucket loses a little with each loan
	if least := map[bool]int64{true: 1000, false: 950}[algorithm == "fixed-window"]; all < least {
		t.Fatalf("have %d admitted, want %d", all, least)
	}
	e.waitForLoans()
	for range 12 {
		a = n.check(waiting("r", key))
		if la := a.TightestLimit(); a.Allowed || la.Used != all || la.Remaining != 0 {
			t.Fatalf("have allowed %v, used %d, remaining %d, by %v", a.Allowed, la.Used, la.Remaining, a.DecidedBy)
		}
		want := fmt.Sprintf(`This region's share of limit "r" of rule "r" (%d of 1000 requests per 1440h) is used up;`, all)
		if have := string(a.AppendReason(nil)); !strings.HasPrefix(have, want) {
			t.Fatalf("have %s\nwant %s", have, want)
		}
	}
	if u := e.usage("us", "r", key); u.Used+u.Leased != all || u.Share != all || u.Borrowed != all-500 {
		t.Errorf("have usage %+v", u)
	}

	for _, n := range eu.nodes {
		for range 2 {
			a = n.check(waiting("r", key))
			la := a.TightestLimit()
			want := `This region's share of limit "r" of rule "r" (0 of 1000 requests per 1440h) is used up;`
			if have := string(a.AppendReason(nil)); a.Allowed || la.Used != 0 ||
				la.Remaining != 0 || !strings.HasPrefix(have, want) {
				t.Errorf("the lender: have allowed %v, used %d, remaining %d, %s", a.Allowed,
					la.Used, la.Remaining, have)
			}
		}
	}
	if u := e.usage("eu", "r", key); u.Used != 0 || u.Share != 0 || u.Lent != 500 {
		t.Errorf("the lender: have usage %+v", u)
	}
}

// What a region has used is told apart from what it lent, too: by peeks, counts
// beyond the share, adjustments, and a check that another limit refuses. A
// reward takes off no more than the region used.
func TestOwnUseOfALender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestRegions(t, `rules:
  - {name: r, key: [k], scope: global, consistency: exact, limits: [{limit: 1000, per: 1440h, algorithm: fixed-window}]}
  - {name: few, key: [k], consistency: exact, limits: [{limit: 30, per: 1440h, algorithm: fixed-window}]}`, "eu", "us")
		eu := e.all["eu"]
		key := eu.keyOf("r", eu.nodes[1], nil)
		both := byAttribute("k", key)
		for range 30 {
			eu.nodes[0].check(both)
		}
		for e.all["us"].nodes[0].check(waiting("r", key)).Allowed {
		}
		e.waitForLoans()
		lent := e.usage("eu", "r", key).Lent
		if lent < 100 {
			t.Fatalf("have %d lent", lent)
		}

		for _, n := range eu.nodes {
			refused := n.check(both)
			if la := &refused.Limits[0]; refused.Allowed || la.Used != 30 || la.Remaining != 470-lent {
				t.Errorf("another limit refuses: have used %d, remaining %d with %d lent", la.Used, la.Remaining, lent)
			}
			peek := byKey("r", key)
			peek.Mode = counters.PeekMode
			expect.Equal(t, n.check(peek).TightestLimit().Used, 30, "a peek: used")
		}
		u, err := eu.nodes[0].Adjust(&Query{Rule: "r", Key: []string{key},
			Costs: []UnitCost{{Unit: "requests", Cost: -50}}})
		if err != nil || u.Limits[0].Used != 0 || u.Limits[0].Remaining != 500-lent || u.Limits[0].Applied != -30 {
			t.Errorf("a reward takes off what was lent: have %+v, %v", u.Limits[0], err)
		}
		count := byKey("r", key)
		count.Mode, count.Costs = counters.CountMode, []UnitCost{{Unit: "requests", Cost: 600}}
		for i, n := range eu.nodes {
			a := n.check(count)
			want := int64(600 + 600*i)
			if la := a.TightestLimit(); a.Allowed || la.Used != want || la.share() != 500-lent {
				t.Errorf("a count: have used %d, share %d with %d lent; want %d used", la.Used, la.share(), lent, want)
			}
		}
		u, err = eu.nodes[0].Adjust(&Query{Rule: "r", Key: []string{key},
			Costs: []UnitCost{{Unit: "requests", Cost: 70}}})
		if err != nil || u.Limits[0].Used != 1270 || u.Limits[0].Share != 500-lent || u.Limits[0].Applied != 70 {
			t.Errorf("an adjustment: have %+v, %v", u.Limits[0], err)
		}
	})
}

// A bucket without a share says to come back after a second, then after two,
// and at most after a minute: a share may come.
func TestABucketWithoutAShareDoublesTheTimeToComeBack(t *testing.T) {
	for _, consistency := range []string{"exact", "hybrid"} {
		t.Run(consistency, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newTestRegions(t, fmt.Sprintf(`rules:
  - {name: r, key: [k], scope: global, consistency: %s, regions: {us: 1}, limits: [{limit: 1000, per: 1m, algorithm: token-bucket}]}`, consistency), "eu", "us")
				eu := e.all["eu"]
				for i, n := range eu.nodes {
					key := eu.keyOf("r", eu.nodes[0], nil)
					began := time.Now()
					for _, seconds := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
						a := n.check(waiting("r", key))
						la := a.TightestLimit()
						if a.Allowed || la.RetryAfter != seconds*time.Second || la.Used != 0 || la.Cause() != Reduced {
							t.Fatalf("node %d, after %v: have allowed %v, retry after %v, want %d s; used %d, %s", i, time.Since(began), a.Allowed, la.RetryAfter, seconds, la.Used, la.Cause())
						}
						time.Sleep(la.RetryAfter + time.Millisecond)
					}
				}
			})
		})
	}
}
