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
	// settleDown is how long the set of wanted nodes must stay the same before a ring is proposed.
	settleDown = 200 * time.Millisecond
	// firstRing bounds how long the first ring waits for the nodes that the cluster expects.
	firstRing = 3 * time.Second
	// holeLife is how long a ring with a hole, left by a node that was taken out, stays before it is rebuilt.
	holeLife = 5 * time.Second
	// vainPatience is how long a node must ask without success before it is ended. vainPause is the minimum time until the
	// next one is.
	vainPatience = 5 * time.Second
	vainPause    = 10 * time.Second
	// relayedPatience is how long a majority must reach a node only through others before it leaves the ring.
	relayedPatience = 10 * time.Second
	// followTime is how long after a majority of the ring a node may apply new rules before it is refused. Including the
	// rest of its term, it uses the old rules for less than 5 s.
	followTime = 2500 * time.Millisecond
	// late is how late the leader's own loop may run before the leader stops trusting silence.
	late = 500 * time.Millisecond

	// maxRecords bounds the nodes a leader tracks; requests from further nodes are refused.
	maxRecords = 8192
	// recordLife is how long the leader remembers a node that is not in the ring and asks nothing.
	recordLife = 10 * time.Minute
	// cryEvery is the minimum interval between two alarms about one node.
	cryEvery = 10 * time.Second

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
	whyGeneration = "the node's generation is another"
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

// ledger is what a leader has seen and granted in one reign. Its methods take the time, the state and gossip's view; it has
// no clock, no lock and no goroutine. Times are readings of the leader's monotonic clock.
type ledger struct {
	self   ring.NodeID
	boot   uint64 // of self
	expect int
	reign  uint64

	since   time.Duration // when the reign's first entry committed; anything earlier is unknown
	trusted time.Duration // silence counts from here at the earliest. Invariant: trusted >= since
	looked  time.Duration // when look last ran
	records map[ring.NodeID]*record
	// floor is the index that a node must have applied to be granted authority. It never decreases.
	floor uint64
	// rises are the newest rules that a majority of the ring has applied, and when it had, oldest first. The floor rises to
	// each after followTime. Each tick adds at most one, so the list is bounded.
	rises []rise
	// proved is when an empty entry of this leader last committed.
	proved time.Duration
	// vainEnded is when a node was last marked to be ended for asking without success, or the lead was handed over instead.
	vainEnded time.Duration
	// behind are the nodes asking without success, sorted. It is replaced, never modified.
	behind []ring.NodeID

	wanted      []ring.NodeID // nodes with authority that may be in the ring, sorted
	wantedSince time.Duration // when wanted last changed
	to          *ring.Table   // State.To as last seen
	toSince     time.Duration // when to last changed

	cry    func(msg string, id ring.NodeID) // alerts an operator
	handOn func()                           // transfers the lead to another node
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

	// vainSince is when the node began asking without success; never while it has authority, or is refused for reasons that
	// don't count against it.
	vainSince time.Duration
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
	cried     time.Duration
}

func newLedger(self ring.NodeID, boot uint64, expect int, reign uint64, now time.Duration) *ledger {
	return &ledger{
		self: self, boot: boot, expect: expect, reign: reign,
		since: now, trusted: now, looked: now, wantedSince: now, toSince: now, proved: now, vainEnded: never,
		records: make(map[ring.NodeID]*record),
	}
}

func newRecord(boot uint64) *record {
	return &record{
		boot: boot, asked: never, granted: never, newerAsked: never, cried: never,
		vainSince: never, staleSince: never, cutSince: never, relayedSince: never, wellSince: never,
	}
}

// record returns the record of id, reset if another process has been registered since. It is nil if the ledger is full.
func (l *ledger) record(s *agreement.State, id ring.NodeID) *record {
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
		next.cried, next.ended = r.cried, r.ended
		next.ending, next.endingSince, next.why = r.ending, r.endingSince, r.why
		if r.newer == boot {
			next.asked = r.newerAsked
		}
		r, l.records[id] = next, next
	}
	return r
}

// hear records a request and returns the reason for refusing it; empty if it may be granted once an empty entry has
// committed.
func (l *ledger) hear(now time.Duration, s *agreement.State, q *Request) Reply {
	switch {
	case q.Node.IsZero() || q.Boot == 0:
		return Reply{Why: whyNoBoot}
	case !q.bounded():
		return Reply{Why: whyTooLarge}
	case s.WasRemoved(q.Boot):
		return Reply{Why: whyRemoved, Removed: true}
	}
	r := l.record(s, q.Node)
	switch {
	case r == nil:
		return Reply{Why: whyBusy}
	case q.Boot != r.boot:
		return Reply{Why: l.hearOther(now, s, r, q)}
	}
	r.asked = now
	r.leaving, r.without = q.Leaving, q.Without
	r.unreachable, r.relayed = q.Unreachable, q.Relayed
	if q.Generation == s.Generation(q.Node) {
		r.settled, r.applied = q.Settled, q.Applied
	}
	if q.GivingUp {
		r.gaveUp = true
	}
	reply := l.judge(s, q)
	r.ask(now, reply.Why)
	return reply
}

// ask records whether the node asks without success: for a reason of its own, or although it was granted authority before.
func (r *record) ask(now time.Duration, why string) {
	switch why {
	case whyEnding:
		return
	case whyStuck, whyLevel, whyBehind, whyBootBehind, whyRules, whyGeneration:
	case "":
		if r.granted == never {
			r.without = 0
		}
	default:
		r.without = 0
	}
	switch {
	case r.without == 0:
		r.vainSince = never
	case r.vainSince == never:
		r.vainSince = now
	}
}

// knows returns the newest feature level that the asking process knows.
func (q *Request) knows() agreement.Level { return max(1, q.Level) }

// hearOther records a request from a process that is not the registered one, and returns the reason for refusing it.
func (l *ledger) hearOther(now time.Duration, s *agreement.State, r *record, q *Request) string {
	switch {
	case q.GivingUp:
		return whyGaveUp
	case s.Boots[q.Node].Was(q.Boot):
		return whyReplaced
	case q.Node == l.self && q.Boot != l.boot:
		l.complain(now, r, q.Node)
		return whyClone
	}
	if r.newer != q.Boot {
		r.newer, r.newerSince = q.Boot, now
	}
	r.newerAsked = now
	if r.asked > r.newerSince && now-r.asked < patience {
		l.complain(now, r, q.Node)
		return whyClone
	}
	low := q.knows() < s.Level
	r.newerStuck = q.Stuck || low
	r.newerBuild = agreement.Boot{Level: q.Level, Release: q.Release, Zones: q.Zones}
	why := whyRegister
	switch {
	case q.Stuck:
		why = whyStuck
	case low:
		why = whyLevel
	}
	if l.silence(now, r.asked) >= patience {
		r.without = q.Without
		r.ask(now, why)
	}
	return why
}

func (l *ledger) complain(now time.Duration, r *record, id ring.NodeID) {
	if now-r.cried >= cryEvery {
		r.cried = now
		l.cry("two processes with one identity ask for authority; the newer one is refused", id)
	}
}

// judge returns why the request can't be granted now; an empty reason if it can. It runs twice: when the request arrives
// and when it is granted.
func (l *ledger) judge(s *agreement.State, q *Request) Reply {
	r := l.record(s, q.Node)
	switch {
	case r == nil:
		return Reply{Why: whyBusy}
	case q.Boot != r.boot:
		return Reply{Why: whyReplaced}
	case r.gaveUp:
		return Reply{Why: whyGaveUp}
	case r.ending || r.ended:
		return Reply{Why: whyEnding}
	case r.replacing:
		return Reply{Why: whyReplacing}
	case q.Stuck:
		return Reply{Why: whyStuck}
	case q.Applied < s.LastEnded:
		return Reply{Why: whyBehind, Index: s.LastEnded}
	case q.Applied < s.Boots[q.Node].Index:
		return Reply{Why: whyBootBehind, Index: s.Boots[q.Node].Index}
	case q.Applied < l.floor:
		return Reply{Why: whyRules, Index: l.floor}
	case q.Generation != s.Generation(q.Node):
		return Reply{Why: whyGeneration}
	}
	return Reply{}
}

// grant judges the request again, after the empty entry. If nothing speaks against it, grant records the time. The reply is
// sent after that.
func (l *ledger) grant(now time.Duration, s *agreement.State, q *Request) Reply {
	reply := l.judge(s, q)
	if reply.Why == "" {
		l.records[q.Node].granted = now
		reply = Reply{Granted: true, Index: s.Index}
	}
	return reply
}

// honoured reports whether every node that may have authority has applied index. If so, it raises the floor to keep it that
// way. A node with authority from an earlier leader that has not asked this one may have applied less.
func (l *ledger) honoured(now time.Duration, index uint64) bool {
	if now-l.since < Wait {
		return false
	}
	for _, r := range l.records {
		if r.applied < index && !l.expired(now, r) {
			return false
		}
	}
	l.floor = max(l.floor, index)
	return true
}

// followed reports whether a majority of the ring has applied index; true without a ring.
func (l *ledger) followed(s *agreement.State, index uint64) bool {
	members, have := s.To.Members(), 0
	for _, id := range members {
		if r := l.records[id]; r != nil && r.applied >= index {
			have++
		}
	}
	return 2*have > len(members) || len(members) == 0
}

// raiseFloor makes the floor follow the newest rules. It rises once every node that may have authority has applied them, or
// followTime after a majority of the ring has.
func (l *ledger) raiseFloor(v *view) {
	if v.ruled > l.floor && !l.honoured(v.now, v.ruled) && l.followed(v.state, v.ruled) &&
		(len(l.rises) == 0 || l.rises[len(l.rises)-1].index < v.ruled) {
		l.rises = append(l.rises, rise{v.ruled, v.now})
	}
	for len(l.rises) > 0 && (l.rises[0].index <= l.floor || v.now-l.rises[0].at >= followTime) {
		l.floor = max(l.floor, l.rises[0].index)
		l.rises = l.rises[1:]
	}
}

// holds reports whether id may have authority that this leader granted. A node that may have some from an earlier leader
// but hasn't asked since doesn't count.
func (l *ledger) holds(now time.Duration, s *agreement.State, id ring.NodeID) bool {
	r := l.records[id]
	return r != nil && r.boot == s.Boot(id) && r.boot != 0 && now-r.granted < Term &&
		!r.gaveUp && !r.ending && !r.ended && !r.replacing
}

// expired reports whether all authority of r's node has expired, whichever leader granted it.
func (l *ledger) expired(now time.Duration, r *record) bool {
	return r.gaveUp || now-max(l.since, r.granted) >= Wait
}

// silence returns how long a node that last asked at asked has been silent, as far as the leader can tell.
func (l *ledger) silence(now, asked time.Duration) time.Duration { return now - max(l.trusted, asked) }
