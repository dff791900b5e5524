package partitions

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// phase is the state of a partition on this node. In all phases but owning, the
// gate is shut.
//
//	            the token is         the phase that follows
//	away        elsewhere, as far    owning after a flip; doubtful, recovering or
//	            as is known          owning if a state makes this node the owner
//	owning      here                 freezing
//	freezing    here                 flipping; owning if the receiver has changed
//	                                 or lacks the copy
//	flipping    here or at receiver  handedOver or owning after the answer;
//	                                 doubtful without one
//	handedOver  at receiver          see the last two rows
//	doubtful    here or at the       handedOver, recovering or owning after its
//	            other side           answer
//	recovering  here                 owning after the search
//	flipping,   as above             recovering or owning once the other side is
//	handedOver,                      gone or no longer the target
//	doubtful
//	any         as above             away once a state says that the token is
//	                                 elsewhere, or this process was ended
type phase uint32

const (
	away       phase = iota // the token is not here, or is not known to be
	owning                  // the token is here and the gate is open
	freezing                // being handed over: the gate is shut and the last changes are on their way
	flipping                // being handed over: the flip is sent, and its answer has not arrived
	handedOver              // the other node took the token
	doubtful                // this node may have the token, and asks the other side of the move
	recovering              // the token is here, but this node still searches for the newest counters
)

// pushesChanges reports whether the copy targets of a partition in this phase
// need this node's changes.
func (ph phase) pushesChanges() bool { return ph == owning || ph == freezing }

// acceptsPushes reports whether a node takes copies and changes of a partition
// in this phase: another node has the token.
func (ph phase) acceptsPushes() bool { return ph == away || ph == handedOver }

// partState is this node's state of a partition.
type partState struct {
	phase   phase
	version // how new the counters here are, as owner or as copy
	// receiver is the node that this node froze the partition for, or recorded as
	// having taken the token; zero if neither.
	receiver           ring.NodeID
	receiverBoot       uint64        // the receiver's boot when this node froze the partition or recorded its hand-over
	receiverGeneration int64         // the receiver's generation at that time
	flipNumber         uint64        // number of the last flip, or question about it
	declined           declinedFlips // flips that this node no longer accepts
	frozenAt           time.Time     // when the partition was frozen

	// source is the node whose counters these are a copy of: the node that pushes
	// them, took the token, or sent them. It is zero if there is no copy.
	source ring.NodeID
	// copyComplete means that the copy has all counters of source or, if source is
	// zero, all that this node froze. At an owner it means nothing: see
	// hasAllCounters.
	copyComplete   bool
	pusherBoot     uint64 // boot of the process that pushed last
	lastPushNumber uint64 // number of its last push
	// sectionNumber is the number of the last section received of the copy or round
	// in progress. It is 0 if none is in progress, or if the phase has changed
	// since: sections are missing then.
	sectionNumber uint64
	// While a complete copy is sent again, notResent holds the counters here that
	// the new copy has not brought yet. They are reset when that copy ends.
	// notResent is nil otherwise, and in all phases but away and handedOver.
	notResent map[counters.Key]algorithms.Kind

	search *search // recovering: what is known about copies elsewhere
}

// hasCounters reports whether this node has the token or at least the beginning of a copy.
func (pt *partState) hasCounters() bool { return pt.phase != away || !pt.source.IsZero() }

// hasAllCounters reports whether this node has all of the partition's counters,
// as of the time when it was last the owner or a copy target.
func (pt *partState) hasAllCounters() bool {
	return pt.copyComplete || pt.phase == owning || pt.phase == freezing || pt.phase == flipping
}

// frozenHere reports whether the counters here are exactly those that this
// node, as the owner, froze.
func (pt *partState) frozenHere() bool { return pt.copyComplete && pt.source.IsZero() }

// isOthersCopy reports whether the counters here are a complete copy of another
// node's than self. In handedOver, they may be the counters that this node froze
// for that node.
func (pt *partState) isOthersCopy(self ring.NodeID) bool {
	return pt.copyComplete && !pt.source.IsZero() && pt.source != self
}

// setReceiver records node, as it is in state, as the other side of the move.
func (pt *partState) setReceiver(state *adoptedState, node ring.NodeID) {
	pt.receiver = node
	pt.receiverBoot = state.Boot(node)
	pt.receiverGeneration = state.Generation(node)
}

// receiverReplaced reports whether the receiver of this node's flip has been
// ended since, or has begun another process. It is true even if the receiver
// has come back.
func (pt *partState) receiverReplaced(state *adoptedState) bool {
	return state.Boot(pt.receiver) != pt.receiverBoot || state.Generation(pt.receiver) != pt.receiverGeneration
}

// declinedFlips is the last flip or question that this node has answered with
// "not taken". It accepts no flip of that process up to this number any more.
type declinedFlips struct {
	boot       uint64 // of the sending process; boots are random
	flipNumber uint64
}

// declineFlips records that this node accepts no flip of the process boot up to a
// number, because it answers "not taken".
func (pt *partState) declineFlips(boot, flipNumber uint64) {
	if pt.declined.boot != boot {
		pt.declined = declinedFlips{boot: boot}
	}
	pt.declined.flipNumber = max(pt.declined.flipNumber, flipNumber)
}

// search is the search for the newest counters of a partition: what this node
// knows about the copies elsewhere.
type search struct {
	since time.Time
	found map[ring.NodeID]copyInfo // by holder
	// gotWhole means that a complete copy has come here, from a node that was not
	// ended. That counts even if the process that sent it is gone by now.
	gotWhole bool
}

// copyInfo describes one holder's copy.
type copyInfo struct {
	boot  uint64 // of its process
	whole bool   // its copy is complete; only then is version compared
	version
	done     bool // nothing more is expected of it: its copy is here, it has none, or it timed out
	timedOut bool // this node gave up waiting for it
}

// partitionSet is a set of partitions.
type partitionSet [ring.Partitions / 64]uint64

func (set *partitionSet) has(p int) bool { return set[p/64]>>(p%64)&1 != 0 }

func (set *partitionSet) put(p int, in bool) {
	set[p/64] &^= 1 << (p % 64)
	if in {
		set[p/64] |= 1 << (p % 64)
	}
}
