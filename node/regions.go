package node

import (
	"cmp"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/persist"
)

// savedAddresses reads the file that saveAddresses has written, if there is one.
func (n *Node) savedAddresses(name string) []string {
	text, err := os.ReadFile(filepath.Join(n.dir, name))
	if err != nil || n.dir == "" {
		return nil // a new node has only its configured addresses
	}
	return strings.Fields(string(text))
}

// saveAddresses saves addresses of other nodes, to find them after a restart.
func (n *Node) saveAddresses(name string, addresses []string) {
	if n.dir == "" {
		return
	}
	text := []byte(strings.Join(addresses, "\n") + "\n")
	if err := persist.ReplaceFile(filepath.Join(n.dir, name), text); err != nil {
		n.log.Warn("the addresses of other nodes can't be saved", "file", name, "error", err)
	}
}

// regions lists this node's region and all others that are committed or visible, sorted by name.
func (n *Node) regions(view cluster.View) []admin.Region {
	byName := map[string]*admin.Region{}
	get := func(name string) *admin.Region {
		if byName[name] == nil {
			byName[name] = &admin.Region{Name: name, Primary: name == n.config.PrimaryRegion}
		}
		return byName[name]
	}

	home := get(n.config.Region)
	home.Reachable = true
	for _, m := range view.Members {
		if m.State == gossip.Alive {
			home.Members++
		}
	}

	for _, far := range n.wan.Regions() {
		r := get(far.Name)
		r.Primary = r.Primary || far.Primary
		r.Reachable = far.Reachable
		r.Members = far.Members
		r.Address, _, _ = net.SplitHostPort(far.Address) // empty if there is none
	}

	for _, name := range n.cluster.StateInUse().Regions.Committed {
		get(name).Committed = true
	}

	list := make([]admin.Region, 0, len(byName))
	for _, r := range byName {
		list = append(list, *r)
	}

	slices.SortFunc(list, func(a, b admin.Region) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
