package limiter

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// acquisition says which slots a check in progress acquires.
type acquisition struct {
	id     uint64        // derived from the request's id, if it has one
	nonce  uint64        // of this attempt
	ttl    time.Duration // 0: as long as the limits say
	who    string
	groups map[uint64]uint32 // by Key.Subject; see groupOf
	// sources has the Source of each limit of slots.
	sources map[counters.Key]uint64
	// maybeStored has the slots that owners may have stored. They are released unless
	// the check is admitted.
	maybeStored []slotPart
	alone       bool // some were granted here, by on_partition: allow
	isAtHome    bool // this node decides as the owner of the first slots; see acquireHere
	// isRepetition means that an earlier attempt holds the slots, and that its
	// caller may know of them.
	isRepetition bool
	// isIDReused means that another request with the same id, which asked for
	// something else, has slots at this node. So the check was refused.
	isIDReused bool
}

// attempt returns the acquisition as the table of counters takes it; nil if there is none.
func (acq *acquisition) attempt() *counters.SlotAttempt {
	if acq == nil {
		return nil
	}
	return &counters.SlotAttempt{ID: acq.id, Nonce: acq.nonce, TTL: acq.ttl, Who: acq.who,
		Group: func(subject uint64) uint32 { return acq.groups[subject] }}
}

// partOf returns the slots that op acquires.
func (acq *acquisition) partOf(op *counters.Op) slotPart {
	return slotPart{
		SlotPart: counters.SlotPart{
			Key: op.Key, Units: op.Cost, TTL: op.Limit.Window, Group: acq.groups[op.Key.Subject],
		},
		holdFor: min(cmp.Or(acq.ttl, op.Limit.Window), op.Limit.Window), shadow: op.Shadow, source: acq.sources[op.Key],
	}
}

// markStored records that an owner may have stored the slots of ops. Like the
// methods below, it does nothing if the check acquires no slots.
func (acq *acquisition) markStored(ops []counters.Op) {
	if acq == nil {
		return
	}
	for i := range ops {
		op := &ops[i]
		isNoted := func(part slotPart) bool { return part.Key == op.Key }
		if op.Limit.Kind == algorithms.Concurrency && op.Mode == counters.CheckMode &&
			!slices.ContainsFunc(acq.maybeStored, isNoted) {
			acq.maybeStored = append(acq.maybeStored, acq.partOf(op))
		}
	}
}

// mayHold reports whether the owner of subject may have stored slots.
func (acq *acquisition) mayHold(subject uint64) bool {
	return acq != nil && slices.ContainsFunc(acq.maybeStored, func(part slotPart) bool { return part.Key.Subject == subject })
}

// forget records that the owner of subject has certainly stored nothing.
func (acq *acquisition) forget(subject uint64) {
	if acq != nil {
		acq.maybeStored = slices.DeleteFunc(acq.maybeStored, func(part slotPart) bool { return part.Key.Subject == subject })
	}
}

// markAlone records that this node, which is cut off, decides about slots.
func (acq *acquisition) markAlone() {
	if acq != nil {
		acq.alone = true
	}
}

// slot returns the slot that a caller holds once a is allowed. The caller needs
// the slots of all limits, so the slot lasts until the first of them ends.
func (acq *acquisition) slot(l *Limiter, a *Answer) *slot {
	sl := &slot{id: acq.id, nonce: acq.nonce, alone: acq.alone, left: cmp.Or(acq.ttl, defaultSlotTTL)}
	if acq.alone {
		sl.granter = l.cluster.Self
		sl.madeAt = a.Now.Wall
	}

	first := true
	for i := range a.Limits {
		op := &a.scratch.ops[i]
		if op.Limit.Kind != algorithms.Concurrency || op.Cost == 0 {
			continue
		}

		part := acq.partOf(op)
		sl.parts = append(sl.parts, part)
		left := cmp.Or(op.SlotLeft(), part.holdFor)
		if first || left < sl.left {
			sl.left = left
			first = false
		}
	}

	return sl
}

// newAcquisition returns what q, for which a is prepared, would acquire.
func (a *Answer) newAcquisition(q *Query) *acquisition {
	acq := &acquisition{id: rand.Uint64(), nonce: rand.Uint64(), ttl: q.SlotTTL, who: q.Who,
		groups: map[uint64]uint32{}, sources: map[counters.Key]uint64{}}
	for i := range a.scratch.match.Hits {
		hit := &a.scratch.match.Hits[i]
		acq.groups[hit.Subject.Hi] = groupOf(q, i, hit)
		for _, limit := range hit.Limits {
			if limit.Kind == algorithms.Concurrency {
				acq.sources[counterKey(hit, limit)] = limit.Source
			}
		}
	}
	return acq
}

// storedAt is a partition in which slots were stored, and the lineage that it had before.
type storedAt struct {
	partition int
	lineage   uint64
}

// confirmSlots waits until what was stored in the partitions of list would
// outlive this node. It returns false if that is not confirmed within
// confirmSlotsTimeout, or if this node may no longer own the partitions.
func (l *Limiter) confirmSlots(list []storedAt) bool {
	cp := l.cluster
	if cp == nil || len(list) == 0 {
		return true
	}

	ctx, cancel := context.WithTimeout(cp.ctx, confirmSlotsTimeout)
	defer cancel()

	// The confirmations run at the same time, because all of them share one
	// timeout.
	results := make(chan bool, len(list))
	for _, at := range list {
		confirm := func() { results <- cp.Confirmer == nil || cp.Confirmer.ConfirmNotes(ctx, at.partition) == nil }
		if len(list) == 1 {
			confirm()
		} else {
			go confirm()
		}
	}

	outlives := true
	for range list {
		outlives = <-results && outlives
	}

	// A partition that has moved or begun anew meanwhile may lack the slots.
	for _, at := range list {
		outlives = outlives && l.table.IsOpen(at.partition) && l.table.Lineage(at.partition) == at.lineage
	}

	return outlives && cp.Authority()
}

func hasSlots(ops []counters.Op) bool {
	return slices.ContainsFunc(ops, func(op counters.Op) bool { return op.Limit.Kind == algorithms.Concurrency })
}
