package localcache

import (
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// Unspent is a holder's report to an owner about one subject: what is left of
// the grants that it has from that process.
type Unspent struct {
	// LastGrant is the highest ID that has arrived: grants with higher IDs may
	// still be on their way. Nothing is left of a grant with a lower ID that is not
	// in Held.
	LastGrant uint64
	Held      []HeldGrant // also those that have ended and are yet to be given back; at most MaxUnspent
}

// MaxUnspent bounds the grants in an Unspent. A further grant counts as spent.
const MaxUnspent = 64

// Unspent reports what is left of the subject's grants from a process of owner.
func (ls *Leases) Unspent(subject uint64, owner ring.NodeID, boot uint64) Unspent {
	sh, le := ls.lockSubject(subject)
	defer sh.mu.Unlock()

	u := Unspent{LastGrant: math.MaxInt64} // without a lease here, a grant that is on its way goes back unspent
	// A lease that has asked a new owner does not know its process before the first answer.
	if le != nil && le.source.Owner == owner && (le.source.Boot == boot || le.source.Boot == 0) {
		u.LastGrant = le.lastGrant
		u.Held = le.reportHeld()
	}
	for i := range sh.ended {
		eg := &sh.ended[i]
		if eg.Ops[0].Key.Subject == subject && eg.Source.Owner == owner && eg.Source.Boot == boot {
			u.Held = append(u.Held, eg.report())
		}
	}

	u.Held = u.Held[:min(len(u.Held), MaxUnspent)]
	return u
}

// report says what is left of an ended grant.
func (eg *EndedGrant) report() HeldGrant {
	h := HeldGrant{ID: eg.Grant}
	for i := range eg.Ops {
		h.Left = append(h.Left, eg.Ops[i].Cost)
	}
	return h
}

// AddUnspent adds what this node still holds of a subject to what remains in
// the decisions of ops: nobody else can spend it. from made the decisions after
// its steady clock read steady. Only grants of earlier questions count. from
// may have debited the grant of such a question only after these decisions.
// In that case Remaining is too high by that grant. A cost that was refused
// stays refused.
func (ls *Leases) AddUnspent(from Source, steady int64, ops []counters.Op) {
	sh, le := ls.lockLease(ops)
	defer sh.mu.Unlock()
	if le == nil || le.source != from || !le.matches(ops) {
		return
	}
	le.addUnspent(ops, func(gr *grant) bool { return gr.debitedAt < steady })
}

// OutstandingGrant is a grant that an owner has made and not got back.
type OutstandingGrant struct {
	ID     uint64
	Holder ring.NodeID

	parts []ledgerPart
}

// Outstanding returns how many units of the counter's part are still out. left
// is what the holder says is left of each part; nil if the holder has not
// answered, so that all may be left.
func (g *OutstandingGrant) Outstanding(counter uint64, left []int64) int64 {
	i := slices.IndexFunc(g.parts, func(p ledgerPart) bool { return p.counter == counter })
	switch {
	case i < 0 || left != nil && i >= len(left):
		return 0
	case left == nil:
		return g.parts[i].outstanding
	}
	return min(left[i], g.parts[i].outstanding)
}

// View calls read with the subject's outstanding grants from counters of a
// lineage. While read runs, no grant of the subject is made and none comes
// back. So the counters that read looks at agree with the grants.
func (led *LeaseLedger) View(now time.Duration, lineage, subject uint64, read func(outstanding []OutstandingGrant)) {
	sh, sub := led.lock(subject)
	defer sh.mu.Unlock()
	var outstanding []OutstandingGrant
	if sub != nil {
		for i := range sub.grants {
			lg := &sub.grants[i]
			if now < lg.until && lg.lineage == lineage {
				outstanding = append(outstanding, OutstandingGrant{ID: lg.id, Holder: lg.holder, parts: lg.parts})
			}
		}
	}
	read(outstanding)
}
