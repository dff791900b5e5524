package partitions

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// lookTimeout bounds how long a node may take to tell how new its copies are.
	lookTimeout = 2 * time.Second
	// pullTimeout bounds how long it may take to give them.
	pullTimeout = 30 * time.Second
	// slowPatience is how many times Config.Patience a node has that can be reached, if there is no whole copy here or a newer
	// one there.
	slowPatience = 5
	// backTimeout bounds one message of a copy.
	backTimeout = 5 * time.Second
)

// search is what this node knows about copies of a partition that it goes on with.
type search struct {
	since time.Time
	found map[ring.NodeID]finding // of holders
}

// finding is what one of them has.
type finding struct {
	boot  uint64 // of its process
	whole bool   // its copy is complete, and can be compared
	order
	done bool // its copy is here, or it has none, or it was waited for in vain
	vain bool
}

// holders lists the nodes that may have a copy of p: both ends of a move, and their standbys. If one of them was ended, those
// that have taken its place are what was its standbys.
func (v *view) holders(self ring.NodeID, p int, buf []ring.NodeID) []ring.NodeID {
	from, to := v.Owner(p)
	return others(self, buf, v.From.Standby(p), to, v.To.Standby(p), from)
}

// recover looks for the newest copies of partitions whose tokens are here: it asks the holders how new theirs are, then gets
// the newest. It goes on with what there is when each has answered or was waited for in vain. It runs in the loop.
func (k *Keeper) recover() {
	v := k.view.Load()
	looks, pulls := map[ring.NodeID][]int{}, map[ring.NodeID][]int{}
	alone, doubt := 0, 0
	ended := k.ended(v)
	k.mu.Lock()
	for p := range k.parts {
		pt := &k.parts[p]
		if pt.phase != recovering || !k.recovered(v, p, ended, looks, pulls) {
			continue
		}
		switch vain, given := pt.search.outcome(); {
		case vain && pt.whole:
			doubt++
		case vain && !given:
			alone++
		}
		k.begin(p)
	}
	for node := range looks {
		k.errands[errand{node, MethodLook}] = true
	}
	for node := range pulls {
		k.errands[errand{node, MethodPull}] = true
	}
	k.mu.Unlock()
	if alone > 0 {
		k.cfg.Logger.Warn("partitions go on with what the last checkpoint had: their standbys gave nothing back",
			"partitions", alone)
	}
	if doubt > 0 {
		k.cfg.Logger.Warn("partitions go on with the copy here: a node that may have a newer one did not answer",
			"partitions", doubt)
	}
	for node, list := range looks {
		k.look(v, node, list)
	}
	for node, list := range pulls {
		body := k.copyRequest(v, node, list)
		k.done.Go(func() { k.pull(node, list, body) })
	}
}

// recovered reports whether nothing is left to wait for before p is decided here. Otherwise it adds p to what is to be asked
// now. It is called under mu.
func (k *Keeper) recovered(v *view, p int, ended []ring.NodeID, looks, pulls map[ring.NodeID][]int) bool {
	pt := &k.parts[p]
	s := pt.search
	var buf [8]ring.NodeID
	nodes := append(v.holders(k.cfg.Self, p, buf[:0]), ended...)
	open := false
	for _, node := range nodes {
		f, known := s.found[node]
		switch {
		case known && f.boot == v.Boot(node):
		case !k.patient(pt, node):
			s.found[node] = finding{boot: v.Boot(node), done: true, vain: true}
		case !k.errands[errand{node, MethodLook}] && k.ready(node):
			looks[node] = append(looks[node], p)
			open = true
		default:
			open = true
		}
	}
	for !open {
		node := s.newest(pt, nodes)
		switch {
		case node.IsZero():
			return true
		case !k.patient(pt, node):
			s.found[node] = finding{boot: v.Boot(node), done: true, vain: true}
			continue
		case !k.errands[errand{node, MethodPull}] && k.ready(node):
			pulls[node] = append(pulls[node], p)
		}
		return false
	}
	return false
}

// patient reports whether node is still to be waited for. It is called under mu.
func (k *Keeper) patient(pt *part, node ring.NodeID) bool {
	waited := time.Since(pt.search.since)
	if !k.cfg.Calls.Reachable(node) || pt.whole && !pt.search.found[node].whole {
		return waited < k.cfg.Patience
	}
	return k.errands[errand{node, MethodPull}] || waited < slowPatience*k.cfg.Patience
}

// newest is the node whose copy is to be got next, zero if there is none. Of each lineage that is the newest copy, and only
// if it is newer than the one here. Copies that can't be compared, as what a checkpoint had, count only where there is no other.
func (s *search) newest(pt *part, nodes []ring.NodeID) ring.NodeID {
	given := pt.whole
	for i, node := range nodes {
		f := s.found[node]
		given = given || f.whole && f.done && !f.vain
		if f.done || !f.whole || pt.whole && f.lineage == pt.lineage && !f.after(pt.order) {
			continue
		}
		if !slices.ContainsFunc(nodes, func(other ring.NodeID) bool {
			g := s.found[other]
			return g.whole && !g.vain && (g.after(f.order) || g.order == f.order && slices.Index(nodes, other) < i)
		}) {
			return node
		}
	}
	for _, node := range nodes {
		if f := s.found[node]; !given && !f.done && !f.whole {
			return node
		}
	}
	return ring.NodeID{}
}

// outcome reports whether some node was waited for in vain, and whether some gave its copy.
func (s *search) outcome() (vain, given bool) {
	for _, f := range s.found {
		vain = vain || f.vain
		given = given || f.done && !f.vain
	}
	return vain, given
}

// copyRequest asks node about its copies; it says whether the node was ended and may not know that.
func (k *Keeper) copyRequest(v *view, node ring.NodeID, list []int) []byte {
	return appendPartitions(wire.AppendBool(k.appendHeader(nil, 0), !v.InRing(node)), list)
}

// look asks node how new its copies are.
func (k *Keeper) look(v *view, node ring.NodeID, list []int) {
	boot := v.Boot(node)
	k.cfg.Calls.Go(node, MethodLook, k.copyRequest(v, node, list), lookTimeout, func(reply []byte, err error) {
		found := make(map[int]finding, len(list))
		if err == nil {
			found, err = parseFindings(reply)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.errands, errand{node, MethodLook})
		if err != nil {
			k.failed(node)
			return
		}
		for _, p := range list {
			if s := k.parts[p].search; s != nil {
				f, has := found[p]
				f.boot, f.done = boot, !has
				s.found[node] = f
			}
		}
		k.wake()
	})
}

// pull gets the copies of one node.
func (k *Keeper) pull(node ring.NodeID, list []int, body []byte) {
	ctx, cancel := context.WithTimeout(k.ctx, pullTimeout)
	defer cancel()
	_, err := k.cfg.Calls.Call(ctx, node, MethodPull, body)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.errands, errand{node, MethodPull})
	delete(k.giving, node)
	if k.ctx.Err() != nil {
		return
	}
	defer k.wake()
	if err != nil {
		k.failed(node)
		k.cfg.Logger.Debug("a node gave no copies yet", "node", node.String(), "error", err)
		return
	}
	for _, p := range list {
		if s := k.parts[p].search; s != nil {
			f := s.found[node]
			f.done = true
			s.found[node] = f
		}
	}
	k.cfg.Logger.Info("partitions recovered from a copy", "node", node.String(), "partitions", len(list))
}

func appendFinding(b []byte, p int, f finding) []byte {
	return appendOrder(wire.AppendBool(binary.AppendUvarint(b, uint64(p)), f.whole), f.order)
}

func parseFindings(b []byte) (map[int]finding, error) {
	d := wire.NewDecoder(b)
	found := map[int]finding{}
	for d.More() {
		p := decodePartition(d)
		found[p] = finding{whole: d.Bool(), order: decodeOrder(d)}
	}
	return found, d.Err()
}

// dropOthers drops the counters of partitions that are neither this node's nor its to keep copies of.
func (k *Keeper) dropOthers() {
	k.mu.Lock()
	v := k.view.Load()
	due := k.drops && v.member && v.From != nil && v.Settled
	k.drops = k.drops && !due
	k.mu.Unlock()
	for p := 0; due && p < ring.Partitions; p++ {
		due = k.dropOther(v, p) // if not, the next view asks for it again
	}
}

// dropOther drops the counters of p if they are of no concern here, unless there is another view than v: then a copy of p may
// just be coming.
func (k *Keeper) dropOther(v *view, p int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	pt := &k.parts[p]
	owner, _ := v.Owner(p)
	switch {
	case k.view.Load() != v:
		return false
	case pt.phase == away && owner != k.cfg.Self && v.From.Standby(p) != k.cfg.Self:
		pt.source, pt.whole = ring.NodeID{}, false
		k.cfg.Table.Drop(p)
		k.debts.replace(p)
	}
	return true
}
