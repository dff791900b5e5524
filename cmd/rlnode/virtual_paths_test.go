package main

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

// leader is the node that leads, and the others.
func (p *planet) leader() (leader *virtual, others []*virtual) {
	p.t.Helper()
	p.eventually("there is a leader", func() bool {
		leader, others = nil, nil
		for _, v := range p.nodes {
			if c := v.server.mates.cluster.Load(); v.alive.Load() && c.Leader() == v.server.id {
				leader = v
			} else {
				others = append(others, v)
			}
		}
		return leader != nil
	})
	return leader, others
}

func (v *virtual) connected() bool {
	return v.alive.Load() && v.server.mates.cluster.Load().Authority()
}

// TestD1_BrokenLinkAndACrashInOneProcess: the leader and X can't reach each other, and Y dies. X hears of Y's end by way of others
// and keeps its authority, and the ring goes on: Y comes back.
func TestD1_BrokenLinkAndACrashInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlanet(t, 5, exactRules(1_000_000))
		leader, others := p.leader()
		x, y := others[0], others[1]
		p.net.Cut(leader.ip, x.ip)
		time.Sleep(5 * time.Second)
		y.down(false)
		time.Sleep(15 * time.Second)
		for range 300 {
			if !x.connected() {
				t.Fatal("x has no authority")
			}
			time.Sleep(100 * time.Millisecond)
		}
		y.up()
		p.whole()
		p.peaceful()
		p.end()
	})
}

// TestD4_BrokenLinkAndARuleInOneProcess: a lower limit is in force at X within five seconds, although it can't reach the leader.
func TestD4_BrokenLinkAndARuleInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlanet(t, 3, exactRules(1_000_000))
		leader, others := p.leader()
		x := others[0]
		p.net.Cut(leader.ip, x.ip)
		time.Sleep(2 * time.Second)
		version, err := others[1].write(exactRules(5))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		for _, v := range p.nodes {
			if have := v.server.limiter.Rules().Version; have < version {
				t.Errorf("%s goes by version %d, want %d", v.server.settings.Name, have, version)
			}
		}
		admitted := 0
		var a limiter.Answer
		for range 20 {
			if ok, _ := x.check("year", "k", &a); ok {
				admitted++
			}
		}
		if admitted != 5 || a.DecidedBy == limiter.ByFallback {
			t.Errorf("%d admitted, decided by %s", admitted, a.DecidedBy)
		}
		p.end()
	})
}

// TestBrokenLinkForLongInOneProcess: no check is decided without its owner, and those that go by way of a third node take at
// most three times as long as those that are forwarded.
func TestBrokenLinkForLongInOneProcess(t *testing.T) {
	t.Parallel()
	for pair := range cases(3) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlanet(t, 3, exactRules(1_000_000))
			a, b, third := p.nodes[pair], p.nodes[(pair+1)%3], p.nodes[(pair+2)%3]
			c := p.crowd("year", 60, 2)
			time.Sleep(2 * time.Second)
			p.net.Cut(a.ip, b.ip)
			time.Sleep(2 * time.Second)
			direct, around := p.slowest(a, b, third)
			if direct == 0 || around == 0 || around > 3*direct {
				t.Errorf("by way of a third node %v, directly %v", around, direct)
			}
			time.Sleep(20 * time.Second)
			by := c.leave()
			t.Logf("%s–%s: by %v, %v directly, %v by a third", a.ip, b.ip, by, direct, around)
			if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
				t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
			}
			for i := range c.admitted {
				if used, want := p.used("year", fmt.Sprintf("k%d", i)), c.admitted[i].Load(); used < want {
					t.Errorf("key %d: have %d used, %d admitted", i, used, want)
				}
			}
			p.net.HealAll()
			time.Sleep(2 * time.Second)
			p.peaceful()
			p.end()
		})
	}
}

// slowest is the longest of some checks at a of what the third node owns, and of what b owns.
func (p *planet) slowest(a, b, third *virtual) (direct, around time.Duration) {
	owner := func(key string) ring.NodeID {
		u, err := a.server.limiter.Locate("year", []string{key})
		if err != nil {
			p.t.Fatal(err)
		}
		return a.server.mates.keeper.Route(ring.PartitionOf(u.Hash.Hi)).Owner
	}
	var answer limiter.Answer
	for i := range 200 {
		key := fmt.Sprintf("other%d", i)
		began := time.Now()
		if _, err := a.check("year", key, &answer); err != nil {
			p.t.Fatal(err)
		}
		took := time.Since(began)
		switch owner(key) {
		case b.server.id:
			around = max(around, took)
		case third.server.id:
			direct = max(direct, took)
		}
	}
	return direct, around
}
