package partitions

import (
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
)

// A node that was ended for what it does not apply is alive, and has in memory what nobody else may have: it went on pushing to
// those that were its standbys when it applied something last. Who goes on without a whole copy asks it. It needs not know that
// it was ended: it has had no authority since before that was agreed on, so what it has is final.

// endedSince lists the nodes that were ended between two views and can be reached.
func (k *Keeper) endedSince(before, v *view) (list []ring.NodeID) {
	for _, t := range []*ring.Table{before.From, before.To} {
		for _, id := range t.Members() {
			if id != k.cfg.Self && v.Generation(id) != before.Generation(id) && v.Boot(id) == before.Boot(id) &&
				!slices.Contains(list, id) && k.cfg.Calls.Reachable(id) {
				list = append(list, id)
			}
		}
	}
	return list
}

// noteFormer notes which of the nodes that were just ended had p, or a copy of it. It is called under mu.
func (k *Keeper) noteFormer(before *view, p int, ended []ring.NodeID) {
	if len(ended) == 0 {
		return
	}
	var buf [4]ring.NodeID
	for _, id := range before.holders(k.cfg.Self, p, buf[:0]) {
		if pt := &k.parts[p]; slices.Contains(ended, id) && !slices.Contains(pt.former, id) {
			pt.former = append(pt.former, id)
		}
	}
}

// gets reports whether this node has asked node for copies.
func (k *Keeper) gets(node ring.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pulling[node]
}

// complete reports whether what is here of p is all there was when this node had to do with it last.
func (pt *part) complete() bool {
	return pt.whole || pt.phase == held || pt.phase == freezing || pt.phase == flipping
}

// takeLookEnded tells the next owner how new what this node has is, after its end.
func (k *Keeper) takeLookEnded(c *peer.Call, d *wire.Decoder) {
	list := decodePartitions(d)
	if !k.ends(c, d) {
		return
	}
	var reply []byte
	k.mu.Lock()
	for _, p := range list {
		pt := &k.parts[p]
		reply = appendFinding(reply, p, finding{whole: pt.complete(), order: pt.order})
	}
	k.mu.Unlock()
	c.Reply(reply)
}

// takePullEnded gives the next owner what this node has, after its end.
func (k *Keeper) takePullEnded(c *peer.Call, d *wire.Decoder) {
	list := decodePartitions(d)
	if !k.ends(c, d) {
		return
	}
	orders := make([]order, len(list))
	k.mu.Lock()
	for i, p := range list {
		if pt := &k.parts[p]; pt.complete() {
			if orders[i] = pt.order; pt.phase == away {
				k.includeDebts(p)
			}
		}
	}
	k.mu.Unlock()
	k.done.Go(func() { k.giveBack(c, list, orders) })
}

// ends fails a call that is not well formed, or that can't be answered because this node has authority.
func (k *Keeper) ends(c *peer.Call, d *wire.Decoder) bool {
	switch {
	case d.Failed():
		c.Fail(codeMalformed, d.Err().Error())
	case k.cfg.Authority():
		c.Fail(codeBusy, "this node has authority")
	default:
		return true
	}
	return false
}
