package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
	"github.com/rlnode/rlnode/rules/document"
)

// farDelay is the latency of messages to another region.
const farDelay = 40 * time.Millisecond

// farSilence is how long a cut link goes unnoticed.
const farSilence = 2 * time.Second

// farNet connects regions like package regions, but without sending messages.
type farNet struct {
	w       *world
	primary map[string]string // by region: the region that its nodes consider the primary

	mu    sync.Mutex              // guards the fields below
	cut   map[[2]string]time.Time // directions that deliver nothing, and since when
	calls map[peer.Method]int
	// promised is, by region, the newest version that the region has reported as
	// honoured, in the primary's world and epoch.
	promised map[string]rulesPosition
	// lose reports whether an answer is lost, along with its connection; nil: none is.
	lose func(m peer.Method) bool
}

// far gives a node access to other regions.
type far struct {
	net     *farNet
	node    *node
	mu      sync.Mutex // guards the fields below
	entry   bool
	members int
}

func (f *far) SetEntryNode(yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entry = yes
}

func (f *far) SetRegionSize(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = n
}

func (f *far) Changed() <-chan struct{} { return nil }

func (f *far) Regions() []regions.Region {
	var list []regions.Region
	for region, primary := range f.net.primaries() {
		if region != f.node.region && f.net.open(f.node.region, region) && len(f.net.entries(region)) > 0 {
			list = append(list,
				regions.Region{Name: region, Primary: region == primary, Follows: primary, Reachable: true})
		}
	}
	slices.SortFunc(list, func(a, b regions.Region) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// primaries returns the primary that each region believes in.
func (f *farNet) primaries() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.primary)
}

// takeForPrimary changes the primary that a region believes in.
func (f *farNet) takeForPrimary(region, primary string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.primary[region] = primary
}

// open reports whether a region can be reached, as far as the other one knows.
func (f *farNet) open(from, to string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range [][2]string{{from, to}, {to, from}} {
		if since, cut := f.cut[d]; cut && time.Since(since) >= farSilence {
			return false
		}
	}
	return true
}

// delivers reports whether a message sent now will arrive.
func (f *farNet) delivers(from, to string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, cut := f.cut[[2]string{from, to}]
	return !cut
}

func (f *farNet) sever(from, to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[[2]string{from, to}] = time.Now()
}

// isolate cuts a region off from all others, in both directions.
func (f *farNet) isolate(region string) {
	for other := range f.primaries() {
		if other != region {
			f.sever(region, other)
			f.sever(other, region)
		}
	}
}

func (f *farNet) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.cut)
}

// entries returns the voters of a region.
func (f *farNet) entries(region string) (list []*Cluster) {
	for _, one := range f.w.nodes {
		if c := one.c.Load(); one.region == region && c != nil && c.isVoter() {
			list = append(list, c)
		}
	}
	return list
}

// Call calls a random voter of a region.
func (f *far) Call(ctx context.Context, region string, m peer.Method, body []byte) ([]byte, error) {
	from, n := f.node.region, f.net
	if !n.open(from, region) {
		return nil, regions.ErrNoRoute
	}
	entries := n.entries(region)
	if len(entries) == 0 {
		return nil, regions.ErrNoRoute
	}
	n.note(from, m, body)
	var reply []byte
	var err error
	arrived := n.delivers(from, region)
	if arrived {
		time.Sleep(farDelay)
		reply, err = entries[rand.IntN(len(entries))].callLeader(ctx, m, body)
	}
	n.mu.Lock()
	lost := n.lose != nil && n.lose(m)
	n.mu.Unlock()
	if lost {
		return nil, peer.ErrUnreachable
	}
	if !arrived || !n.delivers(region, from) {
		select {
		case <-ctx.Done():
			return nil, peer.ErrTimeout
		case <-time.After(farSilence):
			return nil, peer.ErrUnreachable
		}
	}
	time.Sleep(farDelay)
	if err != nil {
		code, detail := codeOf(err)
		return nil, &peer.RemoteError{Code: code, Detail: detail}
	}
	return reply, ctx.Err()
}

// note counts a call, and records the version that a region promises with it.
func (f *farNet) note(from string, m peer.Method, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[m]++
	var q followRequest
	if m != MethodFollow || json.Unmarshal(body, &q) != nil || q.Honoured == 0 {
		return
	}
	if h := q.report(time.Now()).rulesPosition; !f.promised[from].samePrimaryEpoch(h) ||
		f.promised[from].Version < h.Version {
		f.promised[from] = h
	}
}

// broken names the nodes that have authority and use older rules than their region has promised.
func (f *farNet) broken() (list []string) {
	for _, n := range f.w.nodes {
		c := n.c.Load()
		if c == nil || !c.Authority() {
			continue
		}
		f.mu.Lock()
		promised := f.promised[n.region]
		f.mu.Unlock()
		c.feed.mu.Lock()
		s := c.feed.published
		c.feed.mu.Unlock()
		if s == nil {
			continue
		}
		have := positionOf(s)
		if promised.Version > 0 && promised.PrimaryEpoch >= have.PrimaryEpoch &&
			(!have.samePrimaryEpoch(promised) || have.Version < promised.Version) && c.Authority() {
			list = append(list,
				fmt.Sprintf("%s of %s uses %d, promised is %d", n.name, n.region, have.Version, promised.Version))
		}
	}
	return list
}

// regions creates clusters of count nodes each, which know one another. The first is the primary.
func (w *world) regions(count int, names ...string) *farNet {
	f := &farNet{
		w: w, primary: map[string]string{}, cut: map[[2]string]time.Time{}, calls: map[peer.Method]int{},
		promised: map[string]rulesPosition{},
	}
	for _, name := range names {
		f.takeForPrimary(name, names[0])
		for _, n := range w.several(count, count) {
			n.region, n.far = name, f
		}
	}
	return f
}

// of returns a region's nodes.
func (w *world) of(region string) (nodes []*node) {
	for _, n := range w.nodes {
		if n.region == region {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// leaderOf returns the node that leads a region, or nil.
func (w *world) leaderOf(region string) *node {
	for _, n := range w.of(region) {
		if c := n.c.Load(); c != nil && c.leads() && !w.away[n] {
			return n
		}
	}
	return nil
}

// aLeaderOf waits until a node leads the region.
func (w *world) aLeaderOf(region string) *node {
	w.t.Helper()
	w.until(20*time.Second, "leader of "+region, func() bool { return w.leaderOf(region) != nil })
	return w.leaderOf(region)
}

// startAll runs all nodes and waits until each region is ready.
func (w *world) startAll() {
	w.t.Helper()
	for _, n := range w.nodes {
		n.run()
	}
	for region := range w.nodes[0].far.primaries() {
		w.ready(w.of(region)...)
		w.inRing(w.of(region)...)
	}
}

// agree waits until all running nodes of all regions use a version, of the same
// world and primary epoch.
func (w *world) agree(bound time.Duration, version int64) {
	w.t.Helper()
	w.until(bound, fmt.Sprintf("version %d everywhere", version), func() bool {
		var first *node
		for _, n := range w.nodes {
			if !n.running {
				continue
			}
			if first == nil {
				first = n
			}
			s, t := n.c.Load().State(), first.c.Load().State()
			set := n.rules.Load()
			if s.Regions.World.IsZero() || s.Regions.World != t.Regions.World ||
				rulesVersion(s) != version || set == nil || set.Version != version {
				return false
			}
		}
		return true
	})
}

// recorded waits until all running nodes know that all regions use a version.
func (w *world) recorded(bound time.Duration, version int64) {
	w.t.Helper()
	w.until(bound, fmt.Sprintf("record of version %d", version), func() bool {
		for _, n := range w.nodes {
			if n.running && recordedVersion(n.c.Load().State()) < version {
				return false
			}
		}
		return true
	})
}

// regionBubble runs a test with several regions, and checks that no promise is broken.
func regionBubble(t *testing.T, count int, names []string, test func(t *testing.T, w *world, f *farNet)) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		f := w.regions(count, names...)
		stop := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() {
			for {
				for _, what := range f.broken() {
					t.Error(what)
					return
				}
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
		defer watching.Wait()
		defer close(stop)
		test(t, w, f)
	})
}

// worldWide returns a rules file with the given limit for all regions together.
func worldWide(limit int) document.Change {
	return document.Change{Body: fmt.Appendf(nil,
		"version: 1\nrules:\n  - name: login\n    key: [ip]\n    scope: global\n"+
			"    limits:\n      - {limit: %d, per: 1m, algorithm: fixed-window}\n", limit)}
}
