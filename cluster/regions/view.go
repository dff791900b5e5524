package regions

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxRegions bounds the other regions. With its own, a node knows 32.
	maxRegions = 31
	// maxEntryNodes bounds the entry nodes of a region that this node links to: a
	// region has 5, and some more while they are replaced.
	maxEntryNodes = 8
)

// wanView is what an entry node knows about other regions from the WAN pool. It
// is immutable, except for region.nextEntryNode.
type wanView struct {
	isEntryNode bool                   // this node is an entry node, in the pool
	regions     []*region              // sorted by name
	links       map[ring.NodeID]string // peer addresses of the entry nodes in regions
	addresses   []string               // gossip addresses of entry nodes, this node's first; at most maxAddresses
}

// region is another region as the WAN pool shows it.
type region struct {
	name       string
	follows    string   // see Region.Follows
	cluster    [16]byte // zero: not known yet
	members    int
	alive      bool          // the pool has live entry nodes of it
	entryNodes []ring.NodeID // at most maxEntryNodes; live ones first
	// nextEntryNode is the entry node that the next call tries first. The next view
	// shares it.
	nextEntryNode *atomic.Pointer[ring.NodeID]
}

var emptyView = &wanView{}

// region returns the region with this name, or nil.
func (v *wanView) region(name string) *region {
	i, ok := slices.BinarySearchFunc(v.regions, name,
		func(r *region, name string) int { return cmp.Compare(r.name, name) })
	if !ok {
		return nil
	}
	return v.regions[i]
}

// trouble is a message about a problem that an operator must solve.
type trouble string

// buildView builds a view from the members of the WAN pool. before is the previous view.
func buildView(self Node, all []gossip.Member, before *wanView) (*wanView, []trouble) {
	named := make(map[string][]gossip.Member)
	for _, m := range all {
		if m.Region != self.Region && m.Region != "" && m.State != gossip.Left && m.PeerPort > 0 && m.ID != self.ID {
			named[m.Region] = append(named[m.Region], m)
		}
	}

	v := &wanView{isEntryNode: true, links: make(map[ring.NodeID]string)}

	var troubles []trouble
	for _, name := range prioritize(named, before) {
		if len(v.regions) == maxRegions {
			troubles = append(troubles,
				trouble(fmt.Sprintf("region %q is left out: there are more than %d other regions", name, maxRegions)))
			continue
		}

		r, conflict := buildRegion(name, named[name], before.region(name))
		if conflict != "" {
			troubles = append(troubles, conflict)
		}

		for _, m := range named[name] {
			if slices.Contains(r.entryNodes, m.ID) {
				v.links[m.ID] = net.JoinHostPort(m.Address, strconv.Itoa(m.PeerPort))
			}
		}

		v.regions = append(v.regions, r)
	}

	slices.SortFunc(v.regions, func(a, b *region) int { return cmp.Compare(a.name, b.name) })
	return v, troubles
}

// prioritize sorts the regions' names by priority, because only the first
// maxRegions are used: known regions first, then live ones, then the rest, each
// group by name.
func prioritize(named map[string][]gossip.Member, before *wanView) []string {
	rank := func(name string) int {
		switch {
		case before.region(name) != nil:
			return 0
		case slices.ContainsFunc(named[name], func(m gossip.Member) bool { return m.State == gossip.Alive }):
			return 1
		}
		return 2
	}
	return slices.SortedFunc(maps.Keys(named),
		func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
}

// buildRegion builds a region from its entry nodes, or from those of one
// cluster if they belong to several. before is its previous form; nil if it is
// new.
func buildRegion(name string, all []gossip.Member, before *region) (*region, trouble) {
	r := &region{name: name, nextEntryNode: new(atomic.Pointer[ring.NodeID])}

	var known []ring.NodeID
	if before != nil {
		r.cluster = before.cluster
		r.nextEntryNode = before.nextEntryNode
		known = before.entryNodes
	}

	conflict := r.chooseCluster(all)

	var chosen []gossip.Member
	for _, m := range all {
		if m.Cluster == r.cluster || m.Cluster == [16]byte{} {
			chosen = append(chosen, m)
			r.alive = r.alive || m.State == gossip.Alive
		}
	}

	// Among equals, nodes that are linked already come first: a link should not
	// change without need.
	rank := func(m gossip.Member) int {
		n := 0
		if m.State != gossip.Alive {
			n += 2
		}
		if !slices.Contains(known, m.ID) {
			n++
		}
		return n
	}
	slices.SortFunc(chosen,
		func(a, b gossip.Member) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), a.ID.Compare(b.ID)) })

	follows := make(map[string]int)
	for _, m := range chosen {
		if r.alive && m.State != gossip.Alive {
			break // if there are live members, only their claims count
		}
		r.members = max(r.members, m.RegionSize, 1)
		follows[m.Primary]++
	}
	r.follows = mostFrequent(follows)

	for _, m := range chosen[:min(len(chosen), maxEntryNodes)] {
		r.entryNodes = append(r.entryNodes, m.ID)
	}
	return r, conflict
}

// chooseCluster decides which cluster owns the region's name: the one that had
// it before, otherwise the one with the most nodes. Clusters with live nodes
// come before others. If several have live nodes, it returns a message about
// them.
func (r *region) chooseCluster(all []gossip.Member) trouble {
	alive, listed := make(map[[16]byte]int), make(map[[16]byte]int)
	for _, m := range all {
		if m.Cluster != [16]byte{} {
			listed[m.Cluster]++
			if m.State == gossip.Alive {
				alive[m.Cluster]++
			}
		}
	}

	among := alive
	if len(alive) == 0 {
		among = listed
	}
	if len(among) == 0 {
		return ""
	}

	if among[r.cluster] == 0 {
		clusters := slices.SortedFunc(maps.Keys(among), func(a, b [16]byte) int {
			return cmp.Or(cmp.Compare(among[b], among[a]), bytes.Compare(a[:], b[:]))
		})
		r.cluster = clusters[0]
	}

	if len(alive) < 2 {
		return ""
	}

	others := ""
	for _, c := range slices.SortedFunc(maps.Keys(alive),
		func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }) {
		if c != r.cluster {
			others += fmt.Sprintf(" %x", c)
		}
	}

	return trouble(fmt.Sprintf(
		"several clusters use the region name %q: calls go to cluster %x, and the nodes of%s are ignored. "+
			"Give each cluster its own --region", r.name, r.cluster, others))
}

// mostFrequent returns the text with the highest count. If several have that
// count, it returns the first in alphabetical order.
func mostFrequent(counts map[string]int) string {
	texts := slices.Sorted(maps.Keys(counts))
	if len(texts) == 0 {
		return ""
	}
	return slices.MaxFunc(texts, func(a, b string) int { return cmp.Compare(counts[a], counts[b]) })
}
