//go:build faults

package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// globe is several regions of real nodes, each a separate cluster, with a
// router between them. The first is the primary.
type globe struct {
	t       *testing.T
	net     *network
	random  *rand.Rand
	regions []*fleet
	nodes   []*node // of all regions, one region after another
	home    []int   // by index in nodes: index of the region
	rules   []quota
	notes   []note // cuts, in order
	eras    []era  // changes of limits, in order
	next    map[string]int64
	shift   int64 // from boottime to the wall clock
}

// era is what the limits are from a time on: the most that a window may admit.
// Before the first era, they are the rules'.
type era struct {
	from    int64
	limits  map[string]int64
	settled bool // no other version is in force anywhere
}

// regionNames are the names of the regions, the primary's first.
var regionNames = []string{"eu", "us", "ap"}

// note is a span in which directions between regions were cut.
type note struct {
	cut      map[[2]int]bool // directions, by index in regions: from, to
	from, to int64           // surely cut, on boottime
}

// newGlobe starts three regions with n nodes each, and waits until they see
// each other and have rules.
func newGlobe(t *testing.T, size int, list []quota) *globe {
	t.Helper()
	g := emptyGlobe(t, size, list)
	t.Cleanup(g.close)
	g.open()
	return g
}

func emptyGlobe(t *testing.T, size int, list []quota) *globe {
	t.Helper()
	g := &globe{t: t, random: randomFor(t), rules: list, shift: time.Now().UnixNano() - boottime()}
	g.net = newWorld(t, len(regionNames), g.random.Uint64())
	dir := filepath.Join(filesDir(), fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), runs[t.Name()]))
	expect.NoError(t, os.MkdirAll(dir, 0o700))
	for r, name := range regionNames {
		f := &fleet{t: t, net: g.net, dir: dir, random: g.random}
		var mates, others []string
		for i := range size * len(regionNames) {
			ip := fmt.Sprintf("10.77.%d.%d", i/size+1, i+1)
			if i/size == r {
				mates = append(mates, ip)
			} else {
				others = append(others, ip)
			}
		}
		for i := range size {
			n := newNode(t, g.net.host(r*size+i+1, r+1), dir)
			if size > 2 {
				n.args = append(n.args, "--bootstrap-expect", strconv.Itoa(founders(size)))
			}
			if size > 2 || i > 0 { // the first of two founds the cluster by itself
				n.args = append(n.args, "--join", strings.Join(mates, ","))
			}
			n.args = append(n.args, "--region", name, "--primary-region", regionNames[0],
				"--wan-join", strings.Join(others, ","))
			f.nodes = append(f.nodes, n)
			g.nodes, g.home = append(g.nodes, n), append(g.home, r)
		}
		g.regions = append(g.regions, f)
	}
	return g
}

func (g *globe) open() {
	g.t.Helper()
	for _, n := range g.nodes {
		n.up()
	}
	g.whole(patience)
	g.write(g.nodes[g.random.IntN(len(g.nodes))], quotasText(0, g.rules))
	g.whole(patience)
}

func (g *globe) close() {
	for _, f := range g.regions {
		f.close()
	}
}

// write writes rules at a node, and returns their version.
func (g *globe) write(at *node, text string) int64 {
	g.t.Helper()
	version, err := putRules(at, text)
	expect.NoError(g.t, err)
	return version
}

// whole waits until all regions are whole, see each other, and use the same
// version of the rules, which every region is known to honour.
func (g *globe) whole(d time.Duration) {
	g.t.Helper()
	began := time.Now()
	within(g.t, d+comeback, "the world is whole", func() string {
		var version int64
		for i, n := range g.nodes {
			c, err := n.cluster()
			if err != nil {
				return err.Error()
			}
			if wrong := g.regions[g.home[i]].strange(c); wrong != "" {
				return n.name + ": " + wrong
			}
			if wrong := strangeRegions(c, g.home[i]); wrong != "" {
				return n.name + ": " + wrong
			}
			if i == 0 {
				version = c.RulesVersion
			}
			if c.RulesVersion != version || c.Recorded != version {
				return fmt.Sprintf("%s has version %d, recorded %d; %s has %d", n.name,
					c.RulesVersion, c.Recorded, g.nodes[0].name, version)
			}
		}
		return ""
	})
	g.t.Logf("the world is whole after %v", time.Since(began).Round(time.Millisecond))
}

// strangeRegions returns how c differs from what a node reports while all regions see each other.
func strangeRegions(c clusterState, home int) string {
	if len(c.Regions) != len(regionNames) {
		return fmt.Sprintf("%d regions: %+v", len(c.Regions), c.Regions)
	}
	for _, r := range c.Regions {
		switch {
		case !r.Reachable && r.Name != regionNames[home]:
			return r.Name + " is not reachable"
		case !r.Committed:
			return r.Name + " is not committed"
		case r.Primary != (r.Name == regionNames[0]):
			return fmt.Sprintf("%s primary: %v", r.Name, r.Primary)
		}
	}
	return ""
}

// putRules writes rules at a node. The error contains the answer.
func putRules(n *node, text string) (version int64, err error) {
	status, _, answer, err := n.call("PUT", 8081, "/v1/rules", text, nil)
	if err != nil || status != 200 {
		return 0, fmt.Errorf("%s: write rules: %d %w %s", n.name, status, err, answer)
	}
	return versionIn(answer)
}

// cut changes cuts between regions, and records which directions are cut from now on.
func (g *globe) cut(what string, do func(r *router)) {
	g.settle()
	do(g.net.router)
	n := note{cut: map[[2]int]bool{}, from: boottime(), to: 1 << 62}
	for at, w := range g.net.router.ways {
		if w.cut.Load() {
			n.cut[[2]int{at[0] - 1, at[1] - 1}] = true
		}
	}
	g.notes = append(g.notes, n)
	g.t.Logf("%s: %s", clockTime(), what)
}

// settle ends the last note.
func (g *globe) settle() {
	if n := len(g.notes); n > 0 {
		g.notes[n-1].to = min(g.notes[n-1].to, boottime())
	}
}

// mend undoes all cuts between regions.
func (g *globe) mend() {
	g.settle()
	g.net.router.mend()
	g.t.Logf("%s: mended", clockTime())
}

// alone reports whether a region was cut off from all others, in both
// directions, during a whole span.
func (g *globe) alone(region int, from, to int64) bool {
	for _, n := range g.notes {
		if n.from > from || n.to < to {
			continue
		}
		all := true
		for other := range g.regions {
			all = all && (other == region || n.cut[[2]int{region, other}] && n.cut[[2]int{other, region}])
		}
		if all {
			return true
		}
	}
	return false
}

// calm reports whether nothing was cut in a span, nor shortly before.
func (g *globe) calm(from, to int64, before time.Duration) bool {
	for _, n := range g.notes {
		if n.from < to && from < n.to+int64(before) {
			return false
		}
	}
	for _, f := range g.regions {
		for _, x := range f.faults {
			if x.from < to && from < x.to+int64(before) {
				return false
			}
		}
	}
	return true
}

// limitNow returns a quota's limit as last written.
func (g *globe) limitNow(q *quota) int64 {
	if g.next == nil {
		return q.limit
	}
	return g.next[q.name]
}

// limitIn returns the largest limit of a quota in a span, and whether the limit was constant.
func (g *globe) limitIn(q *quota, from, to int64) (limit int64, settled bool) {
	limit, settled = q.limit, true
	for _, e := range g.eras {
		switch {
		case e.from <= from:
			limit, settled = e.limits[q.name], e.settled
		case e.from < to:
			limit, settled = max(limit, e.limits[q.name]), false
		}
	}
	return limit, settled
}
