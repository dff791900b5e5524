package authority

import (
	"math"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

const (
	// silencePatience is how long a node must send no requests to count as silent.
	silencePatience = time.Second
	// unreachablePatience is how long a majority must report a node unreachable
	// before the node is ended although it still asks. It is also how long a
	// reachable node must ask nothing before it is ended.
	unreachablePatience = 3 * time.Second
	// wantedPatience is how long the set of wanted nodes must stay the same before
	// a ring is proposed.
	wantedPatience = 200 * time.Millisecond
	// firstRingWait bounds how long the first ring waits for the nodes that the cluster expects.
	firstRingWait = 3 * time.Second
	// holePatience is how long a ring keeps a hole, left by a node that was taken
	// out, before it is rebuilt.
	holePatience = 5 * time.Second
	// behindPatience is how long a node must ask without success before it is
	// ended. behindPause is the minimum time between two such ends.
	behindPatience = 5 * time.Second
	behindPause    = 10 * time.Second
	// relayedPatience is how long a majority must reach a node only through other
	// nodes before it is taken out of the ring.
	relayedPatience = 10 * time.Second
	// rulesGrace is how much later than a majority of the ring a node may apply new
	// rules before it is refused. Its authority may outlast that by up to Validity.
	// So it uses the old rules for less than 5 s.
	rulesGrace = 2500 * time.Millisecond
	// tickInterval is how often the leader checks for work.
	tickInterval = 50 * time.Millisecond
	// loopSlack is how late the leader's own loop may run before the leader no
	// longer counts silence against nodes.
	loopSlack = 500 * time.Millisecond

	// maxRecords bounds the nodes that a leader tracks. It refuses requests from further nodes.
	maxRecords = 8192
	// recordTTL is how long the leader remembers a node that is not in the ring and
	// sends no requests.
	recordTTL = 10 * time.Minute
	// alarmInterval is the minimum interval between two alarms about one node.
	alarmInterval = 10 * time.Second

	// never is a moment before all others, far enough from the minimum that
	// differences don't overflow.
	never = time.Duration(math.MinInt64 / 4)
)

// Reasons for a refusal.
const (
	reasonNotLeading = "this node does not lead"
	reasonNoAnswer   = "no majority has confirmed in time that this node leads"
	reasonBusy       = "too many nodes wait for an answer"
	reasonFull       = "the leader knows too many nodes already"
	reasonMissedEnd  = "the node has not applied the last entry that ended a node"
	reasonNoBoot     = "the request names no process"
	reasonTooLarge   = "the request exceeds a bound"
	reasonBootBehind = "the node has not applied the entry that registered its process"
	reasonRules      = "the node has not applied the rules that the other nodes use"
	reasonGeneration = "the node has been ended, and has not applied that yet"
	reasonEnding     = "the node is being ended"
	reasonReplaced   = "another process of the node has replaced this one"
	reasonReplacing  = "another process of the node is replacing this one"
	reasonClone      = "another process with this node's identity is also asking: is this a copied data directory?"
	reasonRejected   = "the process can't be registered: the leader's log says why"
	reasonRegister   = "the authority of the node's previous process has not expired yet"
	reasonRemoved    = "an operator has removed the process: stop it"
	reasonStuck      = "the node no longer applies entries"
	reasonLevel      = "the node's release does not know the cluster's feature level: run a later one"
	reasonGaveUp     = "the process has given up its authority"
)

// reignState is a leader's record of what it has observed and granted in one
// reign. Its methods take the time, the state and gossip's nodes as arguments:
// it has no clock, no lock and no goroutine. Times are readings of the leader's
// monotonic clock.
type reignState struct {
	self            ring.NodeID
	boot            uint64 // of self
	bootstrapExpect int    // see GranterConfig
	number          uint64 // of the reign

	reignBegan  time.Duration // when the reign's mark was applied; anything earlier is unknown
	silenceFrom time.Duration // silence before this time does not count. Invariant: silenceFrom >= reignBegan
	lastTick    time.Duration // when detectStall last ran
	records     map[ring.NodeID]*record
	// floor is the index that a node must have applied to be granted authority. It never decreases.
	floor uint64
	// latestClock is the latest of Clocks.Latest in any request.
	latestClock int64
	// pendingFloors are indices of new rules that a majority of the ring has
	// applied, and since when, oldest first. The floor rises to each of them after
	// rulesGrace. Each tick adds at most one, so the list is bounded.
	pendingFloors []pendingFloor
	// leadConfirmedAt is when the outcome of this node's last confirmation was
	// handled; at first, when the reign began.
	leadConfirmedAt time.Duration
	// behindActedAt is when the leader last did something about a node that is
	// behind: it marked the node to be ended, or transferred its own lead. It also
	// transfers the lead if it is reached only through other nodes.
	behindActedAt time.Duration
	// ungranted are the nodes that ask without success, sorted. The slice is
	// replaced, never modified.
	ungranted []ring.NodeID

	wanted      []ring.NodeID // nodes with authority that should be in the ring, sorted
	wantedSince time.Duration // when wanted last changed
	lastRing    *ring.Table   // State.To as last seen
	ringSince   time.Duration // when lastRing last changed

	alarm        func(msg string, args ...any) // alerts an operator, as slog.Logger.Error does
	transferLead func()                        // transfers the lead to another node
}

// pendingFloor is when a majority of the ring had applied the entry at index.
type pendingFloor struct {
	index uint64
	at    time.Duration
}

// record is a leader's record of one node.
type record struct {
	boot         uint64        // the registered process, which the fields up to noAuthorityFor describe
	lastAsked    time.Duration // when it last asked; never if it has not
	lastGranted  time.Duration // when the leader last granted it authority
	gaveUp       bool
	settledEpoch int64  // from its last request with the current generation
	applied      uint64 // from the same request
	clock        int64  // Clocks.Earliest in its last request
	leaving      bool
	// unreachable and relayed are the lists in the last request. noAuthorityFor is
	// how long the process had had no authority then.
	unreachable, relayed []ring.NodeID
	noAuthorityFor       time.Duration

	// ungrantedSince is when the node began to ask without success; never while it
	// has authority, or is refused for a reason that does not count against it.
	ungrantedSince time.Duration
	// laggingSince is when the node, as a member of the ring, was first seen to
	// lack the newest revision, or never.
	laggingSince time.Duration
	// unreachableSince is when a majority began to report the node unreachable, or
	// never. notDirectSince is when a majority began to report it either unreachable
	// or relayed, or never.
	unreachableSince, notDirectSince time.Duration
	// healthySince is when the node became healthy, or never. A healthy node has
	// authority and is directly reachable.
	healthySince time.Duration
	// ending means that the node is granted nothing, and is ended once its
	// authority has expired. endingSince is when the leader decided that, and
	// endingReason why.
	ending       bool
	endingSince  time.Duration
	endingReason agreement.Reason
	// endProposed means that the entry that ends the node has been proposed and its
	// outcome is unknown. The entry can't be withdrawn.
	endProposed bool

	successor newProcess
	// bootProposed means that an entry that registers successor has been proposed
	// and its outcome is unknown.
	bootProposed bool
	lastAlarm    time.Duration
}

// newProcess is a node's process that asks but is not registered.
type newProcess struct {
	boot         uint64        // 0 if there is none
	since        time.Duration // when it first asked
	asked        time.Duration // when it last asked; never if it has not
	unfit        bool          // it is stuck, or doesn't know the agreed feature level: don't register it
	registration agreement.RegisterProcess
	// rejected means that the agreed state would have rejected its registration, and
	// that the operator was told.
	rejected bool
}

// recordRequest records that the process boot asks at now.
func (p *newProcess) recordRequest(boot uint64, now time.Duration) {
	if p.boot != boot {
		*p = newProcess{boot: boot, since: now}
	}
	p.asked = now
}

func newReignState(self ring.NodeID, boot uint64, bootstrapExpect int, number uint64, now time.Duration) *reignState {
	return &reignState{
		self: self, boot: boot, bootstrapExpect: bootstrapExpect, number: number,
		reignBegan: now, silenceFrom: now, lastTick: now, wantedSince: now, ringSince: now,
		leadConfirmedAt: now, behindActedAt: never,
		records: make(map[ring.NodeID]*record),
	}
}

func newRecord(boot uint64) *record {
	return &record{
		boot: boot, lastAsked: never, lastGranted: never, successor: newProcess{asked: never}, lastAlarm: never,
		ungrantedSince: never, laggingSince: never, unreachableSince: never, notDirectSince: never, healthySince: never,
	}
}

// ensureRecord returns the record of id. It creates the record if there is none,
// and replaces it if another process has been registered. It returns nil if the
// reignState is full.
func (rs *reignState) ensureRecord(s *agreement.State, id ring.NodeID) *record {
	rec := rs.records[id]
	if rec == nil {
		if len(rs.records) >= maxRecords {
			return nil
		}
		rec = newRecord(s.Boot(id))
		rs.records[id] = rec
	}

	// Facts about the old process say nothing about the new one. Only the alarm
	// and the end concern the node itself.
	boot := s.Boot(id)
	if rec.boot != boot {
		fresh := newRecord(boot)
		fresh.lastAlarm = rec.lastAlarm
		fresh.endProposed = rec.endProposed
		fresh.ending = rec.ending
		fresh.endingSince = rec.endingSince
		fresh.endingReason = rec.endingReason

		// The new process has asked before. Without the time of that request, it could
		// count as silent at once.
		if rec.successor.boot == boot {
			fresh.lastAsked = rec.successor.asked
		}

		rs.records[id] = fresh
		rec = fresh
	}
	return rec
}

// hasAuthority reports whether this leader has granted id authority that may
// still be valid. Authority from an earlier leader doesn't count.
func (rs *reignState) hasAuthority(now time.Duration, s *agreement.State, id ring.NodeID) bool {
	rec := rs.records[id]
	return rec != nil && rec.boot == s.Boot(id) && rec.boot != 0 && now-rec.lastGranted < Validity &&
		!rec.gaveUp && !rec.ending && !rec.endProposed && !rec.bootProposed
}

// hasExpired reports whether all authority of rec's node has certainly expired,
// no matter which leader granted it. Between Validity and EndingWait after a
// grant, neither hasExpired nor hasAuthority is true.
func (rs *reignState) hasExpired(now time.Duration, rec *record) bool {
	return rec.gaveUp || now-max(rs.reignBegan, rec.lastGranted) >= EndingWait
}

// silence returns how long a node that last asked at asked has been silent, as
// far as this leader can tell.
func (rs *reignState) silence(now, asked time.Duration) time.Duration {
	return now - max(rs.silenceFrom, asked)
}
