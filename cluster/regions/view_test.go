package regions

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

var self = Node{ID: ring.NodeID{1}, Region: "ap"}

func member(region string, i int, change ...func(*gossip.Member)) gossip.Member {
	m := gossip.Member{
		ID: ring.NodeID{2, 14: byte(len(region)), 15: byte(i)}, Region: region, Address: "10.0.0.1",
		PeerPort: 1000 + i, RegionSize: 3, Primary: "eu",
		Cluster: [16]byte{1},
	}
	copy(m.ID[1:], region)
	for _, c := range change {
		c(&m)
	}
	return m
}

func failed(m *gossip.Member) { m.State = gossip.Failed }
func left(m *gossip.Member)   { m.State = gossip.Left }
func of(cluster byte) func(*gossip.Member) {
	return func(m *gossip.Member) { m.Cluster = [16]byte{cluster} }
}
func says(members int, primary string) func(*gossip.Member) {
	return func(m *gossip.Member) { m.RegionSize, m.Primary = members, primary }
}

// text formats a view for a table test: each region with its entry nodes.
func (v *wanView) text() string {
	var all []string
	for _, r := range v.regions {
		entries := make([]string, 0, len(r.entryNodes))
		for _, id := range r.entryNodes {
			_, port, _ := strings.Cut(v.links[id], ":")
			entries = append(entries, port)
		}
		all = append(all,
			fmt.Sprintf("%s of %d follows %s %s", r.name, r.members, r.follows, strings.Join(entries, ",")))
	}
	return strings.Join(all, "; ")
}

func TestLook(t *testing.T) {
	for _, test := range []struct {
		name string
		have []gossip.Member
		want string
	}{
		{"nobody", nil, ""},
		{"the own region, and who says none", []gossip.Member{member("ap", 1), member("", 2)}, ""},
		{"by name", []gossip.Member{member("us", 1), member("eu", 2), member("eu", 1)},
			"eu of 3 follows eu 1001,1002; us of 3 follows eu 1001"},
		{"those that are alive first", []gossip.Member{member("eu", 1, failed), member("eu", 2)},
			"eu of 3 follows eu 1002,1001"},
		{"only failed ones", []gossip.Member{member("eu", 1, failed)}, "eu of 3 follows eu 1001"},
		{"those that have left",
			[]gossip.Member{member("eu", 1, left), member("us", 1, left), member("us", 2)},
			"us of 3 follows eu 1002"},
		{"what the living say",
			[]gossip.Member{member("eu", 1, failed, says(9, "us")), member("eu", 2, says(4, "ap"))},
			"eu of 4 follows ap 1002,1001"},
		{"what most say",
			[]gossip.Member{member("eu", 1, says(4, "us")), member("eu", 2, says(5, "eu")),
				member("eu", 3, says(5, "eu"))},
			"eu of 5 follows eu 1001,1002,1003"},
		{"who says nothing", []gossip.Member{member("eu", 1, says(0, ""))}, "eu of 1 follows  1001"},
		{"without a port", []gossip.Member{member("eu", 1, func(m *gossip.Member) { m.PeerPort = 0 })}, ""},
		{"a cluster that is not known yet",
			[]gossip.Member{member("eu", 1, of(0)), member("eu", 2)}, "eu of 3 follows eu 1001,1002"},
		{"the cluster of most",
			[]gossip.Member{member("eu", 1, of(2)), member("eu", 2, of(2)), member("eu", 3, of(1))},
			"eu of 3 follows eu 1001,1002"},
		{"the cluster that is there",
			[]gossip.Member{member("eu", 1, of(2), failed), member("eu", 2, of(2), failed), member("eu", 3, of(1))},
			"eu of 3 follows eu 1003"},
	} {
		v, _ := buildView(self, test.have, emptyView)
		expect.Equal(t, v.text(), test.want, "%s", test.name)
	}
}

// TestTheFirstOfANameKeepsIt: a cluster keeps its region's name as long as one
// of its nodes is alive. After that, the other cluster gets it.
func TestTheFirstOfANameKeepsIt(t *testing.T) {
	first, _ := buildView(self, []gossip.Member{member("eu", 1, of(2))}, emptyView)
	more := []gossip.Member{member("eu", 1, of(2)), member("eu", 2, of(1)), member("eu", 3, of(1))}
	second, troubles := buildView(self, more, first)
	if have := second.text(); have != "eu of 3 follows eu 1001" || len(troubles) != 1 {
		t.Errorf("have %q, %v", have, troubles)
	}
	if again, troubles2 := buildView(self, more, second); again.text() != second.text() ||
		!slices.Equal(troubles, troubles2) {
		t.Errorf("have %q, %v, then %q, %v", second.text(), troubles, again.text(), troubles2)
	}
	failed(&more[0])
	third, troubles := buildView(self, more, second)
	if have := third.text(); have != "eu of 3 follows eu 1002,1003" || len(troubles) != 0 {
		t.Errorf("have %q, %v", have, troubles)
	}
	more[0].State = gossip.Alive
	if fourth, _ := buildView(self, more, third); fourth.text() != third.text() {
		t.Errorf("have %q, want %q", fourth.text(), third.text())
	}
}

func TestLookIsBounded(t *testing.T) {
	var all []gossip.Member
	for r := range 40 {
		for i := range 20 {
			all = append(all, member(fmt.Sprintf("r%02d", r), i))
		}
	}
	v, troubles := buildView(self, all[20:], emptyView) // r01 to r39
	if len(v.regions) != maxRegions || len(v.links) != maxRegions*maxEntryNodes || len(troubles) != 39-maxRegions {
		t.Errorf("have %d regions, %d links, %d troubles", len(v.regions), len(v.links), len(troubles))
	}
	again, _ := buildView(self, all, v) // adds r00, which comes too late
	if again.region("r00") != nil || again.text() != v.text() {
		t.Errorf("have %s, want %s", again.text(), v.text())
	}
	// Links stay when other nodes appear, and so does the node of the last call.
	id := v.region("r01").entryNodes[0]
	v.region("r01").nextEntryNode.Store(&id)
	more := append([]gossip.Member{member("r01", 0, func(m *gossip.Member) { m.ID = ring.NodeID{} })}, all...)
	again, _ = buildView(self, more, v)
	if !slices.Equal(again.region("r01").entryNodes, v.region("r01").entryNodes) ||
		*again.region("r01").nextEntryNode.Load() != id {
		t.Errorf("have %v, want %v", again.region("r01").entryNodes, v.region("r01").entryNodes)
	}
}
