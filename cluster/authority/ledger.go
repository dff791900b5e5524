package authority

import (
	"math"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

const (
	// patience is how long a node must ask nothing to count as silent.
	patience = time.Second
	// cutPatience is how long a majority must report a node unreachable before it is ended although it still asks.
	cutPatience = 3 * time.Second
	// wantedPatience is how long the set of wanted nodes must stay the same before a ring is proposed.
	wantedPatience = 200 * time.Millisecond
	// firstRing bounds how long the first ring waits for the nodes that the cluster expects.
	firstRing = 3 * time.Second
	// holePatience is how long a ring with a hole, left by a node that was taken out, stays before it is rebuilt.
	holePatience = 5 * time.Second
	// failingPatience is how long a node must ask without success before it is ended. failingPause is the minimum time
	// until the next one is.
	failingPatience = 5 * time.Second
	failingPause    = 10 * time.Second
	// relayedPatience is how long a majority must reach a node only through others before it leaves the ring.
	relayedPatience = 10 * time.Second
	// followTime is how long after a majority of the ring a node may apply new rules before it is refused. Including the
	// rest of its term, it uses the old rules for less than 5 s.
	followTime = 2500 * time.Millisecond
	// loopSlack is how late the leader's own loop may run before the leader stops trusting silence.
	loopSlack = 500 * time.Millisecond

	// maxRecords bounds the nodes a leader tracks; requests from further nodes are refused.
	maxRecords = 8192
	// recordTTL is how long the leader remembers a node that is not in the ring and asks nothing.
	recordTTL = 10 * time.Minute
	// alarmEvery is the minimum interval between two alarms about one node.
	alarmEvery = 10 * time.Second

	// never is a moment before all others, far enough from the minimum that differences don't overflow.
	never = time.Duration(math.MinInt64 / 4)
)

// Reasons for a refusal.
const (
	whyNotLeading = "this node does not lead"
	whyBusy       = "too many nodes wait for an answer"
	whyBehind     = "the node has not applied the last entry that ended a node"
	whyNoBoot     = "the request names no process"
	whyTooLarge   = "the request reports more than there may be"
	whyBootBehind = "the node has not applied the entry that registered its process"
	whyRules      = "the node has not applied rules that the others go by"
	whyGeneration = "the node has been ended, and has not applied that yet"
	whyEnding     = "the node is being ended"
	whyReplaced   = "another process of the node has taken its place"
	whyReplacing  = "another process of the node is taking its place"
	whyClone      = "another process with this node's identity is asking, too: is this a copied data directory?"
	whyRegister   = "the authority of the node's last process has not run out yet"
	whyRemoved    = "an operator has removed the process: stop it"
	whyStuck      = "the node applies nothing more"
	whyLevel      = "the node's release knows less than the cluster's feature level: run a later one"
	whyGaveUp     = "the process has given its authority up"
)

// authorityLedger is what a leader has seen and granted in one reign. Its methods take the time, the state and gossip's
// view; it has no clock, no lock and no goroutine. Times are readings of the leader's monotonic clock.
type authorityLedger struct {
	self   ring.NodeID
	boot   uint64 // of self
	expect int
	reign  uint64

	since    time.Duration // when the reign's first entry committed; anything earlier is unknown
	trusted  time.Duration // silence counts from here at the earliest. Invariant: trusted >= since
	lastTick time.Duration // when detectStall last ran
	records  map[ring.NodeID]*record
	// floor is the index that a node must have applied to be granted authority. It never decreases.
	floor uint64
	// rises are the newest rules that a majority of the ring has applied, and when it had, oldest first. The floor rises to
	// each after followTime. Each tick adds at most one, so the list is bounded.
	rises []rise
	// proved is when it was last confirmed that this node leads.
	proved time.Duration
	// failingEnded is when a node was last marked to be ended for asking without success, or the lead was handed over
	// instead.
	failingEnded time.Duration
	// failing are the nodes asking without success, sorted. It is replaced, never modified.
	failing []ring.NodeID

	wanted      []ring.NodeID // nodes with authority that may be in the ring, sorted
	wantedSince time.Duration // when wanted last changed
	to          *ring.Table   // State.To as last seen
	toSince     time.Duration // when to last changed

	alarm        func(msg string, id ring.NodeID) // alerts an operator
	transferLead func()                           // transfers the lead to another node
}

// rise is when a majority of the ring had applied the entry at index.
type rise struct {
	index uint64
	at    time.Duration
}

// record is what a leader knows about one node.
type record struct {
	boot    uint64        // the registered process, which the fields down to cutSince describe
	asked   time.Duration // its last request; never before the first
	granted time.Duration // when its last grant was decided
	gaveUp  bool
	settled int64  // as of its last request,
	applied uint64 // as of this index
	leaving bool
	// unreachable and relayed are from the last request. without is how long its process had had no authority then.
	unreachable, relayed []ring.NodeID
	without              time.Duration

	// failingSince is when the node began asking without success; never while it has authority, or is refused for reasons
	// that don't count against it.
	failingSince time.Duration
	// staleSince is when the node began holding up an unsettled ring change by not applying it; never once it has applied
	// it.
	staleSince time.Duration
	// cutSince is when a majority began reporting the node unreachable; never while none does. relayedSince is the same for
	// not directly reachable.
	cutSince, relayedSince time.Duration
	// wellSince is when the node began to have authority and be directly reachable.
	wellSince time.Duration
	// ending: the node gets no answer, and is ended once its authority has expired. endingSince is when that began, and why
	// is the reason.
	ending      bool
	endingSince time.Duration
	why         agreement.Reason
	// ended: the entry that ends the node has been proposed and its outcome is unknown. Nothing takes it back.
	ended bool

	// newer is a process that asks but is not registered, 0 if there is none. newerSince is when it began, newerAsked when
	// it last asked.
	newer      uint64
	newerSince time.Duration
	newerAsked time.Duration
	newerStuck bool // it is stuck or knows too low a feature level: don't register it
	newerBuild agreement.Boot
	// replacing: an entry that registers newer has been proposed and its outcome is unknown.
	replacing bool
	alarmedAt time.Duration
}

func newAuthorityLedger(self ring.NodeID, boot uint64, expect int, reign uint64, now time.Duration) *authorityLedger {
	return &authorityLedger{
		self: self, boot: boot, expect: expect, reign: reign,
		since: now, trusted: now, lastTick: now, wantedSince: now, toSince: now, proved: now, failingEnded: never,
		records: make(map[ring.NodeID]*record),
	}
}

func newRecord(boot uint64) *record {
	return &record{
		boot: boot, asked: never, granted: never, newerAsked: never, alarmedAt: never,
		failingSince: never, staleSince: never, cutSince: never, relayedSince: never, wellSince: never,
	}
}

// record returns the record of id, reset if another process has been registered since. It is nil if the ledger is full.
func (l *authorityLedger) record(s *agreement.State, id ring.NodeID) *record {
	r := l.records[id]
	if r == nil {
		if len(l.records) >= maxRecords {
			return nil
		}
		r = newRecord(s.Boot(id))
		l.records[id] = r
	}
	if boot := s.Boot(id); r.boot != boot {
		next := newRecord(boot)
		next.alarmedAt, next.ended = r.alarmedAt, r.ended
		next.ending, next.endingSince, next.why = r.ending, r.endingSince, r.why
		if r.newer == boot {
			next.asked = r.newerAsked
		}
		r, l.records[id] = next, next
	}
	return r
}

// hasAuthority reports whether id may have authority that this leader granted. A node that may have some from an earlier
// leader but hasn't asked since doesn't count.
func (l *authorityLedger) hasAuthority(now time.Duration, s *agreement.State, id ring.NodeID) bool {
	r := l.records[id]
	return r != nil && r.boot == s.Boot(id) && r.boot != 0 && now-r.granted < Term &&
		!r.gaveUp && !r.ending && !r.ended && !r.replacing
}

// expired reports whether all authority of r's node has expired, whichever leader granted it.
func (l *authorityLedger) expired(now time.Duration, r *record) bool {
	return r.gaveUp || now-max(l.since, r.granted) >= EndingWait
}

// silence returns how long a node that last asked at asked has been silent, as far as the leader can tell.
func (l *authorityLedger) silence(now, asked time.Duration) time.Duration {
	return now - max(l.trusted, asked)
}
