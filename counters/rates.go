package counters

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// How much may still come back to a bucket depends on two facts that the bucket
// does not remember: the rates at which it has drained, and how much was put
// back into it. A limit's rate may change, by new rules, tiers or steps, or
// from one caller to the next. And after one cost has come back, less of
// another is left in the bucket than its TakeRecord says. So a note of kind
// notes.Rate keeps both facts for as long as anything may come back.

func rateKey(k Key) notes.Key { return notes.Key{Subject: k.Subject, ID: k.Counter, Kind: notes.Rate} }

// sharedRate is the At of a rate that more than one reservation needs, or
// another cost that may come back. As long as only one reservation needs it, At
// is when that reservation was made.
const sharedRate = 0

// bucketPast returns what is known of k, a bucket.
func (t *Table) bucketPast(now algorithms.Instant, k Key) notes.Note {
	if !t.notes.HasRates(k.Partition()) {
		return notes.Note{}
	}
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	n, _ := lp.Get(rateKey(k))
	return n
}

// hasForgottenRates reports whether k's partition has forgotten rates since a
// steady time that late settlements may need.
func (t *Table) hasForgottenRates(now algorithms.Instant, k Key, since int64) bool {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	return lp.HasForgottenRates(k.Subject, since)
}

// hasRoomForRate reports whether there is room to record what comes back into
// k, a bucket. Rates without a reservation share one group, so a flood of
// rolled-back checks uses only one rule's share.
func (t *Table) hasRoomForRate(now algorithms.Instant, k Key) bool {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	return lp.HasRoom(&notes.Note{Key: rateKey(k), Inline: k.IsInline()})
}

// raiseDrainRate records that k, a bucket, has drained at the rate of l, and
// returns how much was put back into it so far. The caller must hold the shard.
func (t *Table) raiseDrainRate(now algorithms.Instant, k Key, l *algorithms.Limit) (returned int64) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	n, found := lp.Get(rateKey(k))
	if !found {
		return 0
	}

	raised := n.MaxRate() > 0 && n.MaxRate() < uint64(l.Amount)
	second := now.Steady / 1e9
	ends := n.Returned() > 0 && n.UntilSecond < second+notes.RateRetention/2 // a Give of what is taken now will need the note

	// The note is put only if it changes: each Put is sent to the standby and
	// written to disk.
	if raised || ends {
		n.RaiseMaxRate(uint64(l.Amount))
		n.UntilSecond = max(n.UntilSecond, second+notes.RateRetention)
		lp.Put(&n)
	}
	return int64(n.Returned())
}

// recordReturn records that units were put back into k, a bucket under l. The
// caller must hold the shard.
func (t *Table) recordReturn(now algorithms.Instant, k Key, l *algorithms.Limit, units int64) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	n, _ := lp.Get(rateKey(k))
	n.Key = rateKey(k)
	n.At = sharedRate
	n.Inline = k.IsInline()
	n.SetPast(n.MaxRate(), n.Returned()+uint64(units))
	n.RaiseMaxRate(uint64(l.Amount))
	n.UntilSecond = max(n.UntilSecond, now.Steady/1e9+notes.RateRetention)
	lp.Put(&n)
}
