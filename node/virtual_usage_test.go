package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/usage"
)

// billedRules has one rule that is counted by month and one that is not.
const billedRules = `version: 1
rules:
  - {name: year, key: [user], usage: monthly, limits: [{limit: 100000000, per: 8760h, algorithm: fixed-window}]}
  - {name: free, key: [user], limits: [{limit: 100000000, per: 8760h, algorithm: fixed-window}]}
`

// month returns what a node reports for this month over all nodes, by subject,
// and the nodes whose counts are missing.
func (v *testNode) month() (rows map[string]int64, missing []string) {
	t := v.cluster.t
	t.Helper()
	s, err := v.node.usage.Read(t.Context(), usage.Query{Month: usage.MonthOf(time.Now().UnixNano())})
	expect.NoError(t, err)
	rows = map[string]int64{}
	for {
		row, ok := s.Next()
		if !ok {
			return rows, s.Missing()
		}
		expect.Equal(t, row.Rule, "year", "a row")
		rows[row.Key[0]] += row.Cost
	}
}

// expectedBills holds the expected rows, by subject.
type expectedBills struct {
	planet *testCluster
	want   map[string]int64
}

// checkDuring makes checks while change runs, and compares the bills with the
// answers, to the unit. change returns how many of the answered checks a kill
// may have lost.
func (b *expectedBills) checkDuring(what string, change func(c *loadGenerator) (lost int64)) {
	const workers = 2
	p, t := b.planet, b.planet.t
	t.Helper()
	c := p.startLoad("year", 21, workers)
	time.Sleep(2 * time.Second)
	lost := change(c)
	time.Sleep(2 * time.Second)
	c.stopLoad()
	p.awaitWhole()
	for i := range c.admitted {
		b.want[fmt.Sprintf("k%d", i)] += c.admitted[i].Load()
	}
	var first map[string]int64
	for _, v := range p.nodes {
		rows, missing := v.month()
		less, more := int64(0), int64(0)
		for key, want := range b.want {
			less, more = less+max(0, want-rows[key]), more+max(0, rows[key]-want)
		}
		unknown := int64(0) // counted, but not answered because the node was killed
		if lost > 0 {
			unknown = workers
		}
		if len(missing) > 0 || len(rows) != len(b.want) || less > lost || more > unknown ||
			first != nil && !maps.Equal(rows, first) {
			t.Errorf("%s: at %s: %v are missing, %d rows, %d of %d too few, want at most %d, and %d too many",
				what, v.settings.Name, missing, len(rows), less, c.total(), lost, more)
		}
		first = rows
	}
	b.want = first
}

// drain stops sending checks to a node, as a load balancer does before the node
// stops, and waits for those in flight.
func (v *testNode) drain() {
	v.ready.Store(false)
	time.Sleep(time.Second)
}

// Bills are right to the unit while nodes restart, join and leave. A killed
// node loses at most its last second of answers, and nothing is ever billed
// twice. Rules without `usage: monthly` are in no bill.
func TestBillsToTheUnitInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestNetwork(t).newCluster("default", "default", 0)
		p.months = 13
		p.startNodes(3, billedRules)
		p.awaitWhole()
		b := &expectedBills{planet: p, want: map[string]int64{}}
		free := p.startLoad("free", 5, 1)
		b.checkDuring("all restart", func(*loadGenerator) int64 {
			for _, v := range p.nodes {
				v.drain()
				v.endProcess(true)
				v.startProcess()
				p.awaitWhole()
			}
			return 0
		})
		b.checkDuring("a node joins", func(*loadGenerator) int64 {
			p.joinNode()
			p.awaitWhole()
			return 0
		})
		b.checkDuring("a node is killed", func(c *loadGenerator) int64 {
			v := p.followers()[0]
			before := c.total()
			time.Sleep(writeTime)
			lost := c.total() - before
			v.endProcess(false)
			time.Sleep(time.Second)
			if _, missing := p.nodes[0].month(); v != p.nodes[0] && !slices.Equal(missing, []string{v.settings.Name}) {
				t.Errorf("while a node is down: %v are missing", missing)
			}
			v.startProcess()
			p.awaitWhole()
			return lost
		})
		b.checkDuring("a node leaves", func(*loadGenerator) int64 {
			v := p.followers()[0]
			ctx, cancel := context.WithTimeout(t.Context(), leaveTimeout)
			defer cancel()
			if err := v.node.leave(ctx, true, ""); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second) // the node still answers
			v.drain()
			last, cancelLast := context.WithTimeout(t.Context(), leaveTimeout)
			defer cancelLast()
			if err := v.node.handOverLateUsage(last); err != nil {
				t.Error(err)
			}
			v.endProcess(false)
			p.nodes = slices.DeleteFunc(p.nodes, func(other *testNode) bool { return other == v })
			return 0
		})
		free.stopLoad()
	})
}

// writeTime bounds how much of a bill a kill may lose: a second and a little more.
const writeTime = 1100 * time.Millisecond

// A node whose usage nobody takes does not leave, and goes on as before.
func TestNodeWhoseUsageNobodyTakesStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestNetwork(t).newCluster("default", "default", 0)
		p.months = 13
		p.startNodes(1, billedRules)
		p.months = 0
		p.joinNode() // it takes no usage
		p.awaitWhole()

		v := p.nodes[0]
		if ok, err := v.check("year", "k", &limiter.Answer{}); err != nil || !ok {
			t.Fatalf("check: %v, %v", ok, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := v.admin().Leave(ctx, false, "ann"); err == nil {
			t.Fatal("it has left")
		}

		p.awaitWhole()
		expect.NoError(t, v.node.membershipError())
		p.end()
	})
}

// The nodes of a cluster leave for good, one after the other. The last one has
// nobody to hand usage over to, which is no error.
func TestUsageOfTheLastNodeToLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestNetwork(t).newCluster("default", "default", 0)
		p.months = 13
		p.startNodes(2, billedRules)
		p.awaitWhole()
		check := func(v *testNode) {
			t.Helper()
			if ok, err := v.check("year", "k", &limiter.Answer{}); err != nil || !ok {
				t.Fatalf("check: %v, %v", ok, err)
			}
		}
		leave := func(v *testNode) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), leaveTimeout)
			defer cancel()
			check(v)
			expect.NoError(t, v.node.leave(ctx, true, ""))
			if len(p.nodes) > 1 {
				check(v) // the node still answers
			}
			time.Sleep(time.Second)
			if err := v.node.handOverLateUsage(ctx); err != nil {
				t.Error(err)
			}
			v.endProcess(false)
			p.nodes = slices.DeleteFunc(p.nodes, func(other *testNode) bool { return other == v })
		}
		leave(p.followers()[0])
		p.awaitWhole()
		if rows, missing := p.nodes[0].month(); rows["k"] != 2 || len(missing) > 0 {
			t.Errorf("have %v, and %v are missing", rows, missing)
		}
		leave(p.nodes[0])
	})
}
