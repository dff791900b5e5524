package partitions

import (
	"encoding/binary"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxFrozen bounds the partitions that are frozen at once: their checks wait.
	maxFrozen = 256
	// flipTimeout is how long the answer to a flip or a question may take.
	flipTimeout = 2 * time.Second
)

// handOver moves tokens to where the ring wants them, as far as their copies are there. It runs in the loop.
func (k *Keeper) handOver() {
	v := k.view.Load()
	if !v.member || v.Settled || v.From == nil {
		return
	}
	for _, p := range k.freeze(v) {
		k.pushTo(p, k.cfg.Table.ReplicateOne(p, nil))
	}
	k.flushAll()
	for node, list := range k.flips(v) {
		k.flip(v, node, list)
	}
}

// freeze shuts the gates of partitions whose copies are where they should go, and returns them.
func (k *Keeper) freeze(v *view) (frozen []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	busy := 0
	for p := range k.parts {
		if ph := k.parts[p].phase; ph == freezing || ph == flipping {
			busy++
		}
	}
	for p := range k.parts {
		pt := &k.parts[p]
		from, to := v.Owner(p)
		if busy >= maxFrozen {
			break
		}
		if pt.phase != held || from != k.cfg.Self || to == from || !k.synced(p, to) || !k.ready(to) {
			continue
		}
		pt.other, pt.boot, pt.ends, pt.began = to, v.Boot(to), v.Generation(to), time.Now()
		k.setPhase(p, freezing)
		frozen = append(frozen, p)
		busy++
	}
	return frozen
}

// flips are the frozen partitions whose last changes are acknowledged, by where they go. They count as flipping from
// here on.
func (k *Keeper) flips(v *view) map[ring.NodeID][]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	ready := map[ring.NodeID][]int{}
	for p := range k.parts {
		pt := &k.parts[p]
		if pt.phase != freezing || k.view.Load() != v {
			continue
		}
		f := k.followers[pt.other]
		switch {
		case f == nil || f.parts[p] == nil:
			k.setPhase(p, held) // the copy is not whole after all
		case f.parts[p].whole && f.parts[p].flying == 0:
			pt.attempt++
			k.setPhase(p, flipping)
			ready[pt.other] = append(ready[pt.other], p)
		}
	}
	return ready
}

// flip sends tokens to node.
func (k *Keeper) flip(v *view, node ring.NodeID, list []int) {
	body := k.header(nil)
	body = binary.LittleEndian.AppendUint64(body, v.Boot(node))
	body = binary.AppendUvarint(body, uint64(len(list)))
	attempts := make([]uint64, len(list))
	k.mu.Lock()
	for i, p := range list {
		attempts[i] = k.parts[p].attempt
		body = binary.AppendUvarint(body, uint64(p))
		body = binary.AppendUvarint(body, attempts[i])
		body = appendOrder(body, k.parts[p].order)
	}
	k.mu.Unlock()
	k.cfg.Calls.Go(node, MethodFlip, body, flipTimeout, func(reply []byte, err error) {
		var kept []int
		if err == nil {
			kept, err = parsePartitions(reply)
		}
		k.flipped(node, list, attempts, kept, err)
	})
}

// flipped takes note of the answer to a flip. Without one it is not known whether the tokens were taken.
func (k *Keeper) flipped(node ring.NodeID, list []int, attempts []uint64, kept []int, err error) {
	refused := make(map[int]bool, len(kept))
	for _, p := range kept {
		refused[p] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil || len(kept) > 0 {
		k.failed(node)
	}
	for i, p := range list {
		pt := &k.parts[p]
		if pt.phase != flipping || pt.attempt != attempts[i] || pt.other != node {
			continue
		}
		switch {
		case err != nil:
			pt.attempt++
			pt.whole = true // what is here is all there was when it froze
			k.setPhase(p, doubtful)
		case refused[p]:
			if f := k.followers[node]; f != nil {
				delete(f.parts, p)
			}
			k.setPhase(p, held)
		default:
			pt.whole = true // what is here is all there was when it froze
			k.handed(p, node)
			k.stats.HandOffs++
			k.stats.Frozen += time.Since(pt.began)
		}
	}
}

// handed takes note that node has the token of p, and will push its changes here while the ring is not settled.
func (k *Keeper) handed(p int, node ring.NodeID) {
	pt := &k.parts[p]
	v := k.view.Load()
	if pt.own() {
		pt.passOn()
	}
	pt.source, pt.other, pt.boot, pt.ends = node, node, v.Boot(node), v.Generation(node)
	k.unfollow(p)
	k.setPhase(p, handed)
}

// takeFlips takes tokens.
func (k *Keeper) takeFlips(v *view, c *peer.Call, d *wire.Decoder) {
	boot, n := d.Uint64(), decodeCount(d)
	var kept []int
	k.mu.Lock()
	for range n {
		p, attempt, at := decodePartition(d), d.Uvarint(), decodeOrder(d)
		if d.Failed() {
			break
		}
		pt := &k.parts[p]
		from, to := v.Owner(p)
		// Without authority it would be decided by nobody here.
		good := boot == k.cfg.Boot && k.view.Load() == v && k.cfg.Authority() && from == c.From.Node && to == k.cfg.Self && from != to &&
			pt.phase == away && pt.source == from && pt.order == at && pt.whole &&
			(pt.void.boot != c.From.Boot || attempt > pt.void.attempt)
		if !good {
			pt.refuse(c.From.Boot, attempt)
			kept = append(kept, p)
			continue
		}
		pt.source, pt.whole = ring.NodeID{}, false
		pt.passOn()
		k.unfollow(p)
		if !k.collecting {
			// What the other has is what is here: changes are enough from now on.
			k.follower(from).parts[p] = &progress{whole: true}
		}
		k.setPhase(p, held)
		k.keepDebts(p)
	}
	k.mu.Unlock()
	finish(c, d, appendPartitions(nil, kept))
}

// refuse makes flips up to an attempt void: their sender is told that they were not taken.
func (pt *part) refuse(boot, attempt uint64) {
	if pt.void.boot != boot {
		pt.void = void{boot: boot}
	}
	pt.void.attempt = max(pt.void.attempt, attempt)
}

// askAround asks the other ends of moves whether they have taken the tokens that this node is in doubt about.
func (k *Keeper) askAround() {
	v := k.view.Load()
	questions := map[ring.NodeID][]int{}
	attempts := map[int]uint64{}
	boots := map[ring.NodeID]uint64{}
	k.mu.Lock()
	for p := range k.parts {
		if k.parts[p].phase != doubtful {
			continue
		}
		if _, to := v.Owner(p); !k.asking[to] && k.ready(to) {
			boots[to] = v.Boot(to)
			questions[to] = append(questions[to], p)
			attempts[p] = k.parts[p].attempt
		}
	}
	for node := range questions {
		k.asking[node] = true
	}
	k.mu.Unlock()
	for node, list := range questions {
		body := k.header(nil)
		body = binary.AppendUvarint(body, uint64(len(list)))
		for _, p := range list {
			body = binary.AppendUvarint(body, uint64(p))
			body = binary.AppendUvarint(body, attempts[p])
		}
		k.cfg.Calls.Go(node, MethodAsk, body, flipTimeout, func(reply []byte, err error) {
			var taken []int
			if err == nil {
				taken, err = parsePartitions(reply)
			}
			k.answered(node, boots[node], list, attempts, taken, err)
		})
	}
}

// answered takes note of the answer to a question, which was for a process of node.
func (k *Keeper) answered(node ring.NodeID, boot uint64, list []int, attempts map[int]uint64, taken []int, err error) {
	has := make(map[int]bool, len(taken))
	for _, p := range taken {
		has[p] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.asking, node)
	if err != nil {
		k.failed(node)
		return
	}
	v := k.view.Load()
	for _, p := range list {
		pt := &k.parts[p]
		if _, to := v.Owner(p); pt.phase != doubtful || pt.attempt != attempts[p] || to != node ||
			boot != v.Boot(node) {
			continue // asked again, of whom it may concern now
		}
		if has[p] {
			k.handed(p, node)
		} else {
			// Nobody has had the token since it was frozen here, if the one that was sent it says so itself.
			k.goOn(v, p, pt.own() && !pt.lost(v))
		}
	}
}

// takeQuestion answers whether tokens were taken. Where they were not, flips sent before are void.
func (k *Keeper) takeQuestion(v *view, c *peer.Call, d *wire.Decoder) {
	n := decodeCount(d)
	var taken []int
	k.mu.Lock()
	for range n {
		p, attempt := decodePartition(d), d.Uvarint()
		if d.Failed() {
			break
		}
		pt := &k.parts[p]
		from, to := v.Owner(p)
		switch {
		case pt.phase == held:
			taken = append(taken, p)
		case from == c.From.Node && to == k.cfg.Self:
			pt.refuse(c.From.Boot, attempt)
		default:
			d.Failf("partition %d does not move from the asking node to this one", p)
		}
	}
	k.mu.Unlock()
	finish(c, d, appendPartitions(nil, taken))
}
