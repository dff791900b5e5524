package partitions

import (
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// A node that was ended for what it does not apply is alive, and has in memory what nobody else may have: it went on pushing to
// those that were its standbys when it applied something last. Who goes on without a whole copy asks it. It needs not know that
// it was ended: it has had no authority since before that was agreed on, so what it has is final. Who goes on may be a new
// process, which never saw the ring with the ended node; so every one that can be reached is asked, whatever it had.

// ended lists the nodes that were ended, are in no ring since, and can be reached.
func (k *Keeper) ended(v *view) (list []ring.NodeID) {
	for id := range v.Generations {
		if id != k.cfg.Self && v.Boot(id) != 0 && !v.InRing(id) && k.cfg.Calls.Reachable(id) {
			list = append(list, id)
		}
	}
	return list
}

// gets reports whether this node has asked node for copies.
func (k *Keeper) gets(node ring.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.errands[errand{node, MethodPull}]
}

// any reports whether this node has something of p: the token, or a copy or the beginning of one.
func (pt *part) any() bool { return pt.phase != away || !pt.source.IsZero() }

// complete reports whether what is here of p is all there was when this node had to do with it last.
func (pt *part) complete() bool {
	return pt.whole || pt.phase == held || pt.phase == freezing || pt.phase == flipping
}

// final are those of the partitions of which this node had something when it lost its authority. If it has authority again, it has
// applied its end, and forgotten what it had. It is called under mu.
func (k *Keeper) final(list []int) []int {
	if k.cfg.Authority() {
		return nil
	}
	return slices.DeleteFunc(list, func(p int) bool { return !k.parts[p].any() })
}
