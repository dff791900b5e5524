package partitions

import (
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// A node that was ended because it stopped applying the log is alive, and may hold counters that no other node has: it
// kept pushing to the standbys it had when it last applied something. A new owner without a whole copy asks it. It need
// not know that it was ended: it has had no authority since before that was agreed on, so its counters are final. The new
// owner may be a new process that never saw the ring with the ended node, so it asks every such node that can be reached,
// whatever it owned.

// ended lists the nodes that were ended, have been in no ring since, and can be reached.
func (k *Keeper) ended(v *view) (list []ring.NodeID) {
	for id := range v.Generations {
		if id != k.cfg.Self && v.Boot(id) != 0 && !v.InRing(id) && k.cfg.Calls.Reachable(id) {
			list = append(list, id)
		}
	}
	return list
}

// gets reports whether this node is asking node for copies.
func (k *Keeper) gets(node ring.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.errands[errand{node, MethodPull}]
}

// any reports whether this node has something of p: the token, or at least the beginning of a copy.
func (pt *part) any() bool { return pt.phase != away || !pt.source.IsZero() }

// complete reports whether this node has all of p as of when it last took part in it.
func (pt *part) complete() bool {
	return pt.whole || pt.phase == held || pt.phase == freezing || pt.phase == flipping
}

// final returns those of the partitions of which this node had something when it lost its authority. If it has authority
// again, it has applied its end, and forgotten its counters. The caller holds mu.
func (k *Keeper) final(list []int) []int {
	if k.cfg.Authority() {
		return nil
	}
	return slices.DeleteFunc(list, func(p int) bool { return !k.parts[p].any() })
}
