package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/rules/document"
)

// worldRules returns a rules file with one limit for all regions together.
func worldRules(limit int) string {
	return fmt.Sprintf("version: 1\nrules:\n  - name: a\n    key: [ip]\n    scope: global\n    consistency: exact\n    limits:\n"+
		"      - {limit: %d, per: 1m, algorithm: fixed-window}\n", limit)
}

// write replaces the rules through a node.
func (v *testNode) write(text string) (int64, error) {
	return v.admin().Write(context.Background(), document.Change{Body: []byte(text)},
		cluster.WriteOptions{By: v.settings.Name})
}

// TestRegionsMeet: three regions find each other, adopt the rules of the first,
// and accept writes anywhere.
func TestRegionsMeet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newRegions(t, 2, worldRules(900), "eu", "us", "ap")
		await := func(what string, ok func() bool) {
			t.Helper()
			all[0].poll(20*time.Millisecond, time.Minute, what, ok)
		}
		same := func(version int64) func() bool {
			return func() bool {
				for _, p := range all {
					for _, v := range p.nodes {
						if set := v.node.limiter.Rules(); set == nil || set.Version != version ||
							v.admin().View().Recorded != version {
							return false
						}
					}
				}
				return true
			}
		}
		await("all use the primary's rules", same(3))
		for i, p := range all {
			v := p.nodes[i%2]
			version, err := v.write(worldRules(901 + i))
			if err != nil || version != int64(4+i) {
				t.Fatalf("write in %s: have version %d, %v", p.region, version, err)
			}
		}
		await("all use the last version", same(6))
		for _, p := range all {
			have := p.nodes[1].admin().View().Regions
			want := []admin.Region{
				{Name: "ap", Reachable: true, Members: 2, Committed: true},
				{Name: "eu", Primary: true, Reachable: true, Members: 2, Committed: true},
				{Name: "us", Reachable: true, Members: 2, Committed: true},
			}
			for i := range have {
				if (have[i].Address == "") != (have[i].Name == p.region) {
					t.Errorf("%s: the address of region %s is %q", p.region, have[i].Name, have[i].Address)
				}
				have[i].Address = ""
			}
			if fmt.Sprint(have) != fmt.Sprint(want) {
				t.Errorf("%s: have regions %v, want %v", p.region, have, want)
			}
		}
		us := all[1]
		for _, v := range us.nodes {
			for _, p := range []*testCluster{all[0], all[2]} {
				for _, w := range p.nodes {
					p.net.Cut(v.ip, w.ip)
				}
			}
		}
		begun := time.Now()
		if _, err := us.nodes[1].write(worldRules(1)); !errors.Is(err, cluster.ErrNoPrimary) ||
			time.Since(begun) > 2*time.Second {
			t.Errorf("have %v after %v, want ErrNoPrimary within 2 s", err, time.Since(begun))
		}
		if _, err := all[2].nodes[0].write(worldRules(100)); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Second)
		if have := us.nodes[0].admin().View().Regions[1]; have.Reachable || !have.Committed {
			t.Errorf("have %+v, want eu, committed and not reachable", have)
		}
		us.net.HealAll()
		healed := time.Now()
		await("all use the last version after a cut", same(7))
		t.Logf("healed after %v", time.Since(healed))
	})
}

// TestAnEntryNodeIsCutOffInItsRegion: other regions reach the entry node, but
// it reaches no node that could answer. They switch to another.
func TestAnEntryNodeIsCutOffInItsRegion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newRegions(t, 3, worldRules(900), "eu", "us")
		eu, us := all[0], all[1]
		follows := func(version int64) func() bool {
			return func() bool {
				for _, v := range us.nodes {
					if v.node.limiter.Rules().Version != version {
						return false
					}
				}
				return true
			}
		}
		eu.eventually("the other region follows", follows(2))
		for i, alone := range eu.nodes {
			for _, v := range eu.nodes {
				if v != alone {
					eu.net.Cut(v.ip, alone.ip)
				}
			}
			time.Sleep(3 * time.Second)
			version, err := us.nodes[i].write(worldRules(800 + i))
			if err != nil {
				t.Fatalf("without %s: %v", alone.settings.Name, err)
			}
			begun := time.Now()
			eu.eventually("the other region follows its own write", follows(version))
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("without %s it took %v", alone.settings.Name, took)
			}
			eu.net.HealAll()
			eu.awaitWhole()
		}
	})
}
