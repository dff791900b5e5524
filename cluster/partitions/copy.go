package partitions

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// acceptPush receives copies and changes from an owner. behind means that this
// node has not applied the sender's agreed state. It then begins no copy.
func (k *Keeper) acceptPush(state *adoptedState, c *peer.Call, h header, d *wire.Decoder, behind bool) {
	now := k.config.Now()
	var refused []int
	for d.More() {
		var s section
		accepted := false
		decodeSection(d, now, func(head section) bool {
			s = head
			accepted = k.beginSection(state, c.From, h.seq, s, behind)
			if accepted {
				// The sender counted the records by its clock. So the partition's clock
				// here follows the sender's before the records are put.
				k.config.Table.FollowClock(now, s.p, s.wall)
			}
			return accepted
		}, func(rec counters.Record) { k.putRecord(c.From.Node, s, now, rec) })

		if !d.Failed() && accepted {
			accepted = k.endSection(c.From.Node, s)
		}
		if !accepted {
			refused = append(refused, s.p)
		}
	}

	answerCall(c, d, appendPartitions(nil, refused))
}

// beginSection reports whether to accept a section of sender's push. It
// declines a section if the sender is not an owner, if the token is here, if a
// newer push has arrived already, or if an earlier part is missing: the
// beginning of the copy or round, or earlier changes. A node that is behind
// accepts changes and further sections, but begins no copy.
func (k *Keeper) beginSection(state *adoptedState, sender peer.Identity, seq uint64, s section, behind bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()

	pt := &k.parts[s.p]
	pusher := sender.Node
	begins := s.flags&sectionBegins != 0

	oldOwner, newOwner := state.Owners(s.p)
	isSide := pusher == oldOwner || pusher == newOwner
	// An equal number is no older push, but another section of the same message.
	isOlder := pt.pusherBoot == sender.Boot && seq < pt.lastPushNumber

	switch {
	case !isSide || isOlder || !pt.phase.acceptsPushes():
		return false
	case begins && (behind || s.sectionNumber != 1):
		// A node that is behind may be about to learn that it no longer needs the
		// copy, and would then drop it.
		return false
	case !begins && !pt.isNext(pusher, &s):
		return false
	}

	if begins {
		k.beginCopy(pusher, s)
	}

	pt.sectionNumber = s.sectionNumber
	pt.pusherBoot = sender.Boot
	pt.lastPushNumber = seq
	return true
}

// beginCopy prepares for pusher's complete copy, which begins with s. The sender
// sends the copy again if some changes to the last one were not acknowledged. A
// copy that comes again does not clear the one here: an outdated copy is better
// than none. The caller must hold mu.
func (k *Keeper) beginCopy(pusher ring.NodeID, s section) {
	pt := &k.parts[s.p]
	if pt.isCopyOf(pusher, s.lineage) && pt.copyComplete {
		pt.notResent = k.kindsOf(s.p)
		return
	}

	k.config.Table.Drop(s.p)
	k.debts.markDropped(s.p)
	pt.source = pusher
	pt.version = version{lineage: s.lineage}
	pt.copyComplete = false
	pt.notResent = nil
}

// isCopyOf reports whether the counters here are pusher's in a lineage.
func (pt *partState) isCopyOf(pusher ring.NodeID, lineage uint64) bool {
	return pt.source == pusher && pt.lineage == lineage
}

// isNext reports whether pusher's section s continues the copy here without a
// gap. Otherwise a debtor's note could arrive here without some of the debts
// that it covers.
func (pt *partState) isNext(pusher ring.NodeID, s *section) bool {
	if !pt.isCopyOf(pusher, s.lineage) || s.sectionNumber != pt.sectionNumber+1 {
		return false
	}
	return s.flags&sectionCopy != 0 || s.tenure == pt.tenure && s.round == pt.round+1
}

// isReceiving reports whether pusher's section s, which beginSection has
// accepted, is still being received. It is not if the phase has changed since,
// even if the old phase is back: records that came in between were ignored.
func (pt *partState) isReceiving(pusher ring.NodeID, s *section) bool {
	return pt.phase.acceptsPushes() && pt.isCopyOf(pusher, s.lineage) && s.sectionNumber == pt.sectionNumber
}

// putRecord stores one record of a push. It ignores the record if the phase has
// changed since the push began: a promotion may have brought the token here, and
// then the counters here are newer.
func (k *Keeper) putRecord(pusher ring.NodeID, s section, now algorithms.Instant, rec counters.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pt := &k.parts[s.p]
	if !pt.isReceiving(pusher, &s) {
		return
	}

	if rec.Note == nil {
		delete(pt.notResent, rec.Key)
	}

	// The owner's counter may lack the costs that this node admitted without the
	// owner.
	k.debts.markOverwritten(rec.Key)
	k.config.Table.Put(now, rec) // if there is no room, the copy lacks this counter
}

// kindsOf returns the counters of p that are here, and their kinds. It leaves
// out notes: they expire by themselves, and some have the keys of counters.
func (k *Keeper) kindsOf(p int) map[counters.Key]algorithms.Kind {
	kinds := map[counters.Key]algorithms.Kind{}
	_ = k.config.Table.Copy(p, func(records []counters.Record) error {
		for i := range records {
			if records[i].Note == nil {
				kinds[records[i].Key] = records[i].Kind
			}
		}
		return nil
	})
	return kinds
}

// resetStale resets the counters that a copy sent again did not bring: the
// sender has none of them now, and this node may have missed the change
// that reset them. The caller must hold mu.
func (k *Keeper) resetStale(pt *partState) {
	now := k.config.Now()
	for key, kind := range pt.notResent {
		k.debts.markOverwritten(key)
		k.config.Table.Put(now, counters.Record{Key: key, Kind: kind})
	}
	pt.notResent = nil
}

// endSection updates the copy's version after a section. It returns false if the
// phase has changed since the section began, because records of it may be
// missing here.
func (k *Keeper) endSection(pusher ring.NodeID, s section) bool {
	k.mu.Lock()
	defer k.mu.Unlock()

	pt := &k.parts[s.p]
	if !pt.isReceiving(pusher, &s) {
		return false
	}

	switch {
	case s.flags&sectionEnds != 0:
		k.resetStale(pt)
		pt.version = s.version
		pt.copyComplete = true
		pt.sectionNumber = 0
	case s.flags&(sectionCopy|sectionMore) == 0:
		pt.round = s.round
		pt.sectionNumber = 0
	}

	return true
}
