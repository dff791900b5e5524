//go:build faults

package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// dayText has a limit per day over all regions.
func dayText(parts string) string {
	return fmt.Sprintf("version: 1\nrules:\n  - {name: day, key: [k], scope: global, %s limits: [{limit: 900, per: 24h, algorithm: fixed-window}]}\n", parts)
}

// spend repeatedly takes a unit of a subject at the nodes of some regions. It
// returns what was admitted in each.
func (g *globe) spend(key string, d time.Duration, regions ...int) (by [3]int64) {
	g.t.Helper()
	body := fmt.Sprintf(`{"rule":"day","key":[%q]}`, key)
	var all sync.WaitGroup
	for _, r := range regions {
		nodes := g.regions[r].nodes
		all.Go(func() {
			for i, until := 0, time.Now().Add(d); time.Now().Before(until); i++ {
				n := nodes[i%len(nodes)]
				if n.is() != live {
					continue
				}
				status, _, text, err := n.call("POST", 8080, "/v1/check", body, nil)
				var a struct{ Allowed bool }
				if err == nil {
					err = json.Unmarshal([]byte(text), &a)
				}
				switch {
				case err != nil || status != 200 && status != 429:
					g.t.Errorf("%s: %d %v %s", n.name, status, err, text)
				case a.Allowed:
					by[r]++
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	all.Wait()
	return by
}

// TestG8_FromTheFirstWindow: regions that begin with nothing but a rules file
// can use a day's limit on that day, in any region, while shares change, nodes
// restart and a region is cut off; and never more.
func TestG8_FromTheFirstWindow(t *testing.T) {
	if left := time.Until(time.Now().Truncate(24 * time.Hour).Add(24 * time.Hour)); left < 6*time.Minute {
		t.Skipf("the day is over in %v", left)
	}
	g := emptyGlobe(t, 2, nil)
	t.Cleanup(g.close)
	file := filepath.Join(filepath.Dir(g.nodes[0].dir), "day.yaml")
	expect.NoError(t, os.WriteFile(file, []byte(dayText("")), 0o600))
	for _, n := range g.nodes {
		n.args = append(n.args, "--rules", file)
		n.up()
	}
	within(t, patience, "all regions are ready", func() string {
		for _, n := range g.nodes {
			if n.is() != live {
				return n.name + " is not ready"
			}
		}
		return ""
	})
	g.whole(patience)
	const limit = 900
	whole := func(what string, by ...[3]int64) {
		t.Helper()
		sum := int64(0)
		for _, one := range by {
			sum += one[0] + one[1] + one[2]
		}
		t.Logf("%s: %d: %v", what, sum, by)
		if sum != limit {
			t.Errorf("%s: have %d admitted, want %d: %v", what, sum, limit, by)
		}
	}
	some := g.spend("all", 2*time.Second, 0, 1, 2)
	early := g.spend("one-2", time.Second, 1)
	for r := range regionNames {
		if r < 2 {
			whole(regionNames[r]+" alone is busy", g.spend(fmt.Sprint("one-", r), time.Minute/2, r))
		}
	}
	g.write(g.nodes[2], dayText("regions: {eu: 0.1, us: 0.6, ap: 0.3},"))
	changed := g.spend("one-2", time.Second, 2)
	for _, n := range g.regions[1].nodes {
		n.stop()
		n.up()
		within(t, patience, n.name+" is ready", func() string {
			if n.is() != live {
				return "it is not"
			}
			return ""
		})
	}
	g.whole(patience)
	whole("ap, while shares change and us restarts", early, changed, g.spend("one-2", time.Minute/2, 2))
	away := 1 + g.random.IntN(2)
	g.cut(regionNames[away]+" is cut off", func(r *router) { r.off(away + 1) })
	g.write(g.nodes[0], dayText("regions: {eu: 0.3, us: 0.3, ap: 0.4},"))
	one, rest := g.spend("all", 3*time.Second, away), g.spend("all", time.Minute/2, 0, 3-away)
	cut := g.spend("cut", 5*time.Second, 0, 1, 2)
	g.mend()
	g.whole(agreeTime + 5*time.Second)
	whole("all, with a region cut off meanwhile", some, one, rest, g.spend("all", 10*time.Second, 0, 1, 2))
	whole("all, of another subject", cut, g.spend("cut", time.Minute/2, 0, 1, 2))
}
