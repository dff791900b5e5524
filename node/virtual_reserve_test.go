package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

const reserveRules = `version: 1
rules:
  - {name: model, key: [key], limits: [{limit: 1000000000, per: 8760h, algorithm: fixed-window, unit: tokens}, {limit: 1000000, per: 8760h, algorithm: fixed-window}]}
  - {name: tenant, key: [tenant], limits: [{limit: 1000000000, per: 8760h, algorithm: fixed-window, unit: tokens}]}
`

// reservers reserve and settle at all nodes, and track what must have been used.
type reservers struct {
	p    *testCluster
	done sync.WaitGroup
	// By key: the use that is certain, the use that is possible besides, and what
	// settling gave back.
	certain, possible, refunds [reserveKeys]atomic.Int64
	failed                     atomic.Int64
}

const (
	reserveKeys = 7
	reserveTime = 20 * time.Second
)

// run makes one reservation at a node and settles it at another.
func (p *reservers) run(i int, chance *rand.Rand) {
	key := i % reserveKeys
	at, other := p.p.nodes[chance.IntN(3)], p.p.nodes[chance.IntN(3)]
	estimate := 1 + chance.Int64N(1000)
	q := limiter.Query{
		Attributes: []rules.Attribute{{Name: "key", Value: fmt.Sprint(i % reserveKeys)},
			{Name: "tenant", Value: "all"}},
		Costs: []limiter.UnitCost{{Unit: "tokens", Cost: estimate}},
	}
	left := estimate // stays charged if nobody settles it
	switch chance.IntN(3) {
	case 0:
		left = 0
		q.OnExpiry = &limiter.OnExpiry{}
	case 1:
		left = chance.Int64N(estimate + 1)
		q.OnExpiry = &limiter.OnExpiry{Costs: []limiter.UnitCost{{Unit: "tokens", Cost: left}}}
	}
	for !at.ready.Load() {
		time.Sleep(time.Millisecond)
	}
	var a limiter.Answer
	id, err := at.node.limiter.Reserve(&q, reserveTime, &a)
	if err != nil || id == "" || at.crashed.Load() {
		p.possible[key].Add(estimate)
		return
	}
	time.Sleep(time.Duration(chance.IntN(500)) * time.Millisecond)
	if chance.IntN(10) == 0 {
		p.certain[key].Add(left) // never settled
		p.refunds[key].Add(estimate - left)
		return
	}
	isLate := chance.IntN(10) == 0
	if isLate {
		time.Sleep(reserveTime + 5*time.Second)
	}
	used := chance.Int64N(estimate * 5 / 4)
	if p.settle(other, id, used, isLate) {
		p.certain[key].Add(used)
		p.refunds[key].Add(max(0, estimate-used))
		if chance.IntN(3) == 0 {
			p.settle(at, id, 2*estimate, isLate) // changes nothing
		}
		return
	}
	p.certain[key].Add(min(used, left))
	p.possible[key].Add(max(used, estimate) - min(used, left))
}

// settle retries for a while, as a caller would. It reports whether settling
// succeeded. A late settlement may be unknown, if the place was lost with its
// node.
func (p *reservers) settle(at *testNode, id string, used int64, isLate bool) bool {
	for range 100 {
		if at.ready.Load() {
			_, err := at.node.limiter.Settle(id, []limiter.UnitCost{{Unit: "tokens", Cost: used}})
			if err == nil && !at.crashed.Load() {
				return true
			}
			if errors.Is(err, limiter.ErrUnknownReservation) {
				if !isLate {
					p.failed.Add(1)
				}
				return false
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

func (p *testCluster) patrons(pairs int, seed uint64) *reservers {
	s := &reservers{p: p}
	for i := range pairs {
		s.done.Go(func() {
			chance := rand.New(rand.NewPCG(seed, uint64(i)))
			time.Sleep(time.Duration(chance.IntN(2000)) * time.Millisecond)
			s.run(i, chance)
		})
	}
	return s
}

// A thousand reservations at once, settled at other nodes, some of them late.
// What is used equals, to the token, what was settled plus what was not settled
// and stays charged.
func TestReservationsInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, reserveRules)
		s := p.patrons(1000, 1)
		s.done.Wait()
		time.Sleep(reserveTime + 5*time.Second) // until the ends are carried out
		all := int64(0)
		for i := range reserveKeys {
			have, want := p.used("model", fmt.Sprint(i)), s.certain[i].Load()
			all += want
			if have != want || s.possible[i].Load() > 0 {
				t.Errorf("key %d: have %d used, want %d; %d in doubt", i, have, want, s.possible[i].Load())
			}
		}
		expect.Equal(t, p.used("tenant", "all"), all, "all together, used")
		if n := s.failed.Load(); n > 0 {
			t.Errorf("%d reservations were unknown", n)
		}
	})
}

// Restarting nodes gracefully meanwhile changes nothing.
func TestReservationsWhileNodesRestartInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, reserveRules)
		s := p.patrons(600, 2)
		p.restartAll()
		s.done.Wait()
		time.Sleep(reserveTime + 5*time.Second) // until the ends are carried out
		for i := range reserveKeys {
			have, sure, perhaps := p.used("model", fmt.Sprint(i)), s.certain[i].Load(), s.possible[i].Load()
			if have < sure || have > sure+perhaps {
				t.Errorf("key %d: have %d used, want %d to %d", i, have, sure, sure+perhaps)
			}
		}
	})
}

// Nodes are killed meanwhile. Only the takes of the last tenth of a second
// before a kill may be forgotten, and refunds may be dropped.
func TestG5_ReservationsWhileNodesDieInOneProcess(t *testing.T) {
	t.Parallel()
	for victim := range casesToRun(3) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestCluster(t, 3, reserveRules)
			s := p.patrons(1000, uint64(victim)+3)
			time.Sleep(time.Second)
			p.nodes[victim].endProcess(false)
			time.Sleep(500 * time.Millisecond)
			p.nodes[victim].startProcess()
			p.awaitWhole()
			s.done.Wait()
			time.Sleep(reserveTime + 11*time.Second) // until the ends are carried out, and debts are reported
			dropped := int64(0)
			for _, v := range p.nodes {
				dropped += figureOf(v, "refunds_dropped_total")
			}
			// 500 a second of 500 tokens on average, over 7 keys: in a tenth of a second
			// that is some 3,600 tokens per key.
			const tail = 2 * 3600
			for i := range reserveKeys {
				have, sure, perhaps := p.used("model", fmt.Sprint(i)), s.certain[i].Load(), s.possible[i].Load()
				if have < sure-tail || have > sure+perhaps+s.refunds[i].Load() || dropped == 0 && have > sure+perhaps {
					t.Errorf("victim %d, key %d: have %d used, %d sure, %d in doubt, %d refunded; %d dropped", victim, i, have, sure, perhaps,
						s.refunds[i].Load(), dropped)
				}
			}
			if n := s.failed.Load(); n > 0 {
				t.Errorf("%d reservations were unknown", n)
			}
		})
	}
}

// figureOf returns a figure of a node's limiter by name.
func figureOf(v *testNode, name string) (n int64) {
	v.node.limiter.Metrics(func(f metrics.Metric) {
		if f.Name == name {
			n += int64(f.Value)
		}
	})
	return n
}
