package node

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// denial returns a change that denies an address; for 0: without an end.
func denial(ip string, hold time.Duration) cluster.EntryChange {
	c := cluster.EntryChange{For: hold.Milliseconds()}
	c.By, c.Entry = "ann", &entries.Entry{Kind: entries.Deny,
		Match: []entries.Condition{{Attribute: "ip", Values: []string{ip}}}}
	return c
}

// deny writes a denial through a node.
func (v *testNode) deny(ip string, hold time.Duration) error {
	_, _, err := v.admin().WriteEntries(v.cluster.t.Context(), []cluster.EntryChange{denial(ip, hold)})
	return err
}

// denies reports whether a node denies an address.
func (v *testNode) denies(ip string) bool {
	var a limiter.Answer
	err := v.node.limiter.Check(&limiter.Query{Attributes: []rules.Attribute{{Name: "ip", Value: ip}}}, &a)
	expect.NoError(v.cluster.t, err)
	return a.Denied()
}

// denied waits until all nodes deny an address, or none does.
func (p *testCluster) denied(bound time.Duration, ip string, want bool) {
	p.t.Helper()
	p.poll(20*time.Millisecond, bound, fmt.Sprintf("%s: %s is denied: %v", p.region, ip, want), func() bool {
		for _, v := range p.nodes {
			if v.alive.Load() && v.denies(ip) != want {
				return false
			}
		}
		return true
	})
}

// TestEntriesInOneProcess: three nodes of each of two regions apply entries
// that were written at any of them. A region that is cut off keeps what it has,
// but ends it in time, each node by its own clock, even after a crash. Once it
// is back, it has what changed. Entries can be written while the leader
// changes.
func TestEntriesInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newRegions(t, 3, entriesRules, "eu", "us")
		eu, us := all[0], all[1]
		// before, each has rules of its own
		eu.poll(20*time.Millisecond, time.Minute, "the regions have met", func() bool {
			for _, v := range append(eu.nodes[:3:3], us.nodes...) {
				c := v.node.cluster
				if len(c.StateInUse().Regions.Committed) != 2 ||
					c.Following().Recorded != eu.nodes[0].version() ||
					v.version() != eu.nodes[0].version() {
					return false
				}
			}
			return true
		})

		expect.NoError(t, us.nodes[1].deny("203.0.113.1", 0))
		expect.NoError(t, eu.nodes[2].deny("203.0.113.2", time.Minute))
		for _, p := range all {
			p.denied(5*time.Second, "203.0.113.1", true)
			p.denied(5*time.Second, "203.0.113.2", true)
		}

		// Of the region that is cut off, a node restarts with a clock that is half a minute fast.
		for _, a := range eu.nodes {
			for _, b := range us.nodes {
				eu.net.Cut(a.ip, b.ip)
			}
		}
		if err := us.nodes[0].deny("203.0.113.3", 0); !errors.Is(err, cluster.ErrNoPrimary) {
			t.Errorf("a write in the region that is cut off: got %v, want %v", err, cluster.ErrNoPrimary)
		}
		fast := us.nodes[2]
		fast.endProcess(false)
		fast.clockOffset = 30 * time.Second
		fast.startProcess()
		us.awaitWhole()
		us.denied(time.Second, "203.0.113.1", true)

		// Meanwhile the leader of the other one dies, and entries are written at those
		// that are left.
		dead, _ := eu.leader()
		dead.endProcess(false)
		for i, v := range eu.nodes {
			if v != dead {
				expect.NoError(t, v.deny(fmt.Sprintf("203.0.113.%d", 10+i), 0))
			}
		}
		dead.startProcess()
		eu.awaitWhole()
		eu.oneState()

		us.poll(20*time.Millisecond, time.Minute, "the fast node ends an entry",
			func() bool { return !fast.denies("203.0.113.2") })
		if !us.nodes[0].denies("203.0.113.2") || us.nodes[0].denies("203.0.113.10") {
			t.Error("a node whose clock is right has ended the entry, or has what was written behind the cut")
		}
		us.denied(time.Minute, "203.0.113.2", false)
		eu.denied(time.Second, "203.0.113.2", false)

		eu.net.HealAll()
		for _, p := range all {
			for i, v := range eu.nodes {
				p.denied(10*time.Second, fmt.Sprintf("203.0.113.%d", 10+i), v != dead)
			}
			p.denied(time.Second, "203.0.113.1", true)
			p.oneState()
		}

		// The end of an entry may still be on its way to the other region.
		us.poll(20*time.Millisecond, 10*time.Second, "both regions have the same entries", func() bool {
			return us.nodes[0].node.cluster.State().Entries.Digest() ==
				eu.nodes[0].node.cluster.State().Entries.Digest()
		})
	})
}
