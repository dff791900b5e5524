package authority

import (
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

// view is the input of a decision, besides the ledger.
type view struct {
	now        time.Duration
	wallClock  time.Time
	state      *agreement.State
	rulesIndex uint64 // a node that has applied this index uses the newest rules
	nodes      map[ring.NodeID]Node
	// members are the members of From and To, sorted.
	members []ring.NodeID
}

func newView(now time.Duration, wallClock time.Time, s *agreement.State, rulesIndex uint64, nodes []Node) *view {
	v := &view{now: now, wallClock: wallClock, state: s, rulesIndex: rulesIndex, nodes: make(map[ring.NodeID]Node, len(nodes))}
	for _, n := range nodes {
		v.nodes[n.ID] = n
	}
	v.members = append(slices.Clone(s.From.Members()), s.To.Members()...)
	slices.SortFunc(v.members, ring.NodeID.Compare)
	v.members = slices.Compact(v.members)
	return v
}

// nextEntry updates the ledger and returns the entry to propose now, or nil. The caller must report the entry's outcome with
// outcomeKnown before it calls nextEntry again, and must call nextEntry or detectStall at least every tickInterval.
func (l *ledger) nextEntry(v *view) agreement.Entry {
	l.detectStall(v.now)
	l.raiseFloor(v)
	l.observeReports(v)
	for _, id := range v.members {
		l.review(v, id)
	}
	l.dropStale(v)
	l.observeRing(v)
	for _, next := range []func(*view) agreement.Entry{l.bootEntry, l.endEntry, l.settleEntry, l.leaveEntry, l.ringEntry} {
		if e := next(v); e != nil {
			return e
		}
	}
	return nil
}

// detectStall detects whether the granter's loop has stalled. After a stall, requests may be waiting unread, so it discards all
// evidence against nodes and cancels every pending end.
func (l *ledger) detectStall(now time.Duration) {
	if now-l.lastTick > tickInterval+loopSlack {
		l.silenceFrom = now
		for _, r := range l.records {
			r.unreachableSince, r.relayedSince, r.failingSince, r.blockingSince, r.ending = never, never, never, never, false
		}
	}
	l.lastTick = now
}

// observeReports records since when a majority of the asking nodes can't reach a node or can reach it only through another
// node, and which nodes ask without success. A node's own reports count in the vote about itself.
func (l *ledger) observeReports(v *view) {
	cut, relayed, reporters := map[ring.NodeID]int{}, map[ring.NodeID]int{}, 0
	for _, r := range l.records {
		if r.boot == 0 || l.silence(v.now, r.lastAsked) >= silencePatience || r.lastAsked == never {
			continue
		}
		reporters++
		for _, id := range r.unreachable {
			cut[id]++
		}
		for _, id := range r.relayed {
			relayed[id]++
		}
	}
	mark := func(since *time.Duration, holds bool) {
		switch {
		case !holds:
			*since = never
		case *since == never:
			*since = v.now
		}
	}
	// While this leader can't prove that it leads, a refusal is no evidence against a node.
	proved := l.leadIsConfirmed(v.now)
	l.failing = nil
	for _, id := range l.sortedNodes() {
		r := l.record(v.state, id)
		mark(&r.unreachableSince, 2*cut[id] > reporters)
		mark(&r.relayedSince, 2*(cut[id]+relayed[id]) > reporters)
		mark(&r.blockingSince, proved && !v.state.Settled && v.state.InRing(id) && r.lastAsked != never && r.applied < v.state.Revision)
		mark(&r.healthySince, r.relayedSince == never && l.hasAuthority(v.now, v.state, id))
		if !proved || l.silence(v.now, max(r.lastAsked, r.nextAsked)) >= silencePatience {
			r.failingSince = never
		}
		if r.failingSince != never && v.now-r.failingSince >= silencePatience && len(l.failing) < maxReported {
			l.failing = append(l.failing, id)
		}
	}
}

// review decides, from the evidence against a member of the ring, whether to end it.
func (l *ledger) review(v *view, id ring.NodeID) {
	r := l.record(v.state, id)
	if r == nil {
		return
	}
	node := v.nodes[id]
	failed := node.State == gossip.Failed || node.State == gossip.Left
	cut := r.unreachableSince != never
	asked := max(r.lastAsked, r.nextAsked)
	silent := l.silence(v.now, asked) >= silencePatience
	end := func(why agreement.Reason) { r.ending, r.endingSince, r.endingReason = true, v.now, why }
	isBack := asked > r.endingSince && !failed && !cut && r.endingReason != agreement.Behind
	switch {
	case len(v.members) == 1:
		r.ending = false
	case node.Removed:
		end(agreement.Removed)
	case r.ending && isBack:
		r.ending = false
	case r.ending:
	case silent && (failed || cut):
		end(agreement.Silent)
	case cut && v.now-r.unreachableSince >= unreachablePatience:
		end(agreement.Unreachable)
	case l.endsFailing(v, id, r):
		end(agreement.Behind)
	}
}

// endsFailing reports whether to end a node because it asks without success, because it doesn't ask although it is reachable,
// or because it blocks a ring change by not applying it. It records the time of that decision. It ends at most one node per
// failingPause, and only while at least half of the ring has authority without it. If the node is this leader, endsFailing
// transfers the lead instead.
func (l *ledger) endsFailing(v *view, id ring.NodeID, r *record) bool {
	failing := r.failingSince != never && v.now-r.failingSince >= failingPatience && r.withoutAuthority >= failingPatience
	// A node whose disk hangs may never learn which node leads, because Raft must save its term first.
	asksNothing := l.silence(v.now, max(r.lastAsked, r.nextAsked)) >= failingPatience && l.leadIsConfirmed(v.now)
	blocking := r.blockingSince != never && v.now-r.blockingSince >= failingPatience
	if !failing && !asksNothing && !blocking || v.now-l.lastFailingEnd < failingPause || !l.canSpare(v, id) {
		return false
	}
	l.lastFailingEnd = v.now
	if id == l.self {
		l.transferLead()
		return false
	}
	return true
}

// leadIsConfirmed reports whether a majority has confirmed this node's lead within silencePatience.
func (l *ledger) leadIsConfirmed(now time.Duration) bool {
	return now-l.leadConfirmedAt < silencePatience
}

// canSpare reports whether at least half of the ring has authority without id.
func (l *ledger) canSpare(v *view, id ring.NodeID) bool {
	withAuthority := 0
	for _, other := range v.members {
		if other != id && l.hasAuthority(v.now, v.state, other) {
			withAuthority++
		}
	}
	return 2*withAuthority >= len(v.members)
}

// dropStale drops nodes that are not members and no longer ask. Their authority expired long ago.
func (l *ledger) dropStale(v *view) {
	maps.DeleteFunc(l.records, func(id ring.NodeID, r *record) bool {
		if _, member := slices.BinarySearchFunc(v.members, id, ring.NodeID.Compare); member {
			return false
		}
		r.ending = false
		return l.silence(v.now, max(r.lastAsked, r.nextAsked)) >= recordTTL
	})
}

// bootEntry returns the entry to register a node's new process, once the previous one certainly has no authority left.
func (l *ledger) bootEntry(v *view) agreement.Entry {
	for _, id := range l.sortedNodes() {
		r := l.record(v.state, id)
		if r.nextBoot == 0 || r.nextBoot == r.boot || r.nextUnfit || r.ending || v.now-r.nextAsked >= Term {
			continue
		}
		expired := r.boot == 0 || r.gaveUp ||
			id == l.self && r.nextBoot == l.boot || // this process holds the lock on the data directory
			l.expired(v.now, r) && l.silence(v.now, r.lastAsked) >= silencePatience
		if expired {
			r.bootProposed = true
			e := r.nextBuild
			e.Node, e.Boot, e.Reign = id, r.nextBoot, l.reign
			return e
		}
	}
	return nil
}

// endEntry returns the entry to end a node that is due to be ended and certainly has no authority left. It ends no node
// within EndingWait after the reign's first entry, because an earlier leader may have granted authority.
func (l *ledger) endEntry(v *view) agreement.Entry {
	if v.now-l.reignBegan < EndingWait {
		return nil
	}
	for _, id := range v.members {
		if r := l.records[id]; r != nil && r.ending && l.expired(v.now, r) {
			r.endProposed = true
			return l.endedEntry(v, id, r.endingReason)
		}
	}
	// Also end a removed process that is in no ring, so that no later leader admits it.
	for _, id := range l.sortedNodes() {
		boot := v.state.Boot(id)
		if n := v.nodes[id]; n.Removed && n.Boot == boot && boot != 0 && !v.state.InRing(id) && !v.state.WasRemoved(boot) {
			return l.endedEntry(v, id, agreement.Removed)
		}
	}
	return nil
}

func (l *ledger) endedEntry(v *view, id ring.NodeID, why agreement.Reason) agreement.Ended {
	return agreement.Ended{Node: id, Generation: v.state.Generation(id), Reign: l.reign, Why: why, When: v.wallClock.UnixMilli()}
}

// settleEntry returns the entry to end a move, once every member has settled it. Reports from before the last Ended or Boot
// don't count, because those entries may have caused further hand-offs.
func (l *ledger) settleEntry(v *view) agreement.Entry {
	if v.state.Settled || !l.allHaveAuthority(v) {
		return nil
	}
	for _, id := range v.members {
		if r := l.records[id]; r.settled < v.state.Epoch || r.applied < v.state.Revision {
			return nil
		}
	}
	return agreement.Settled{Epoch: v.state.Epoch, Revision: v.state.Revision}
}

// allHaveAuthority reports whether every member has authority. A member without it can hand nothing over. So no ring change
// begins or settles until it comes back or is ended.
func (l *ledger) allHaveAuthority(v *view) bool {
	for _, id := range v.members {
		if !l.hasAuthority(v.now, v.state, id) {
			return false
		}
	}
	return true
}

// leaveEntry returns the entry to take a member out of the ring that wants to leave, unless it is the only one. It also takes
// out a member that most nodes reach only through other nodes, which would otherwise carry all of its traffic forever.
func (l *ledger) leaveEntry(v *view) agreement.Entry {
	if !v.state.Settled || len(v.members) < 2 || !l.allHaveAuthority(v) {
		return nil
	}
	for _, id := range v.members {
		if l.records[id].leaving {
			return agreement.Leave{Epoch: v.state.Epoch + 1, Node: id}
		}
	}
	for _, id := range v.members {
		if r := l.records[id]; r.relayedSince == never || v.now-r.relayedSince < relayedPatience {
			continue
		}
		if id != l.self {
			return agreement.Leave{Epoch: v.state.Epoch + 1, Node: id, Why: agreement.Unreachable, When: v.wallClock.UnixMilli()}
		}
		if v.now-l.lastFailingEnd >= failingPause {
			l.lastFailingEnd = v.now
			l.transferLead()
		}
	}
	return nil
}

// observeRing records when the wanted nodes and the ring last changed.
func (l *ledger) observeRing(v *view) {
	var wanted []ring.NodeID
	for id, n := range v.nodes {
		r := l.records[id]
		if n.State != gossip.Alive || n.Removed || !n.Supports || !l.hasAuthority(v.now, v.state, id) || r.leaving || r.boot != n.Boot {
			continue
		}
		// A new member must be directly reachable. A node that was suspended must also stay healthy for a while.
		if v.state.InRing(id) || r.healthySince != never && v.now-r.healthySince >= v.state.Boots[id].Suspension.Patience() {
			wanted = append(wanted, id)
		}
	}
	slices.SortFunc(wanted, ring.NodeID.Compare)
	if !slices.Equal(wanted, l.wanted) {
		l.wanted, l.wantedSince = wanted, v.now
	}
	if v.state.To != l.lastRing {
		l.lastRing, l.ringSince = v.state.To, v.now
	}
}

// ringEntry returns the entry to add nodes to the ring, or to rebuild a ring that has had a hole or outdated settings for
// holePatience. It never drops a member: members leave, or are ended.
func (l *ledger) ringEntry(v *view) agreement.Entry {
	s := v.state
	if s.Cluster.IsZero() || !s.Settled || len(l.wanted) == 0 || v.now-l.wantedSince < wantedPatience || !l.allHaveAuthority(v) {
		return nil
	}
	if s.Epoch == 0 && len(l.wanted) < l.expect && v.now-l.reignBegan < firstRingWait {
		return nil
	}
	ids := slices.Clone(v.members)
	for _, id := range l.wanted {
		if s.To.Rank(id) < 0 {
			ids = append(ids, id)
		}
	}
	settings := ring.DefaultSettings()
	outdated := s.Epoch > 0 && (!s.To.Canonical() || s.To.Settings() != settings) && v.now-l.ringSince >= holePatience
	if len(ids) == len(v.members) && !outdated {
		return nil
	}
	slices.SortFunc(ids, ring.NodeID.Compare)
	e := agreement.Ring{Epoch: s.Epoch + 1, Settings: settings}
	for _, id := range ids {
		n, known := v.nodes[id]
		if !known || !n.Supports {
			return nil // this member can't compute the ring
		}
		e.Members = append(e.Members, n.Member)
	}
	return e
}

// outcomeKnown records that an entry's outcome is known: it was applied or rejected.
func (l *ledger) outcomeKnown(e agreement.Entry) {
	switch e := e.(type) {
	case agreement.Boot:
		if r := l.records[e.Node]; r != nil {
			r.bootProposed = false
		}
	case agreement.Ended:
		if r := l.records[e.Node]; r != nil {
			r.endProposed = false
		}
	}
}

// sortedNodes returns the ledger's nodes in order, so that equal ledgers make equal decisions.
func (l *ledger) sortedNodes() []ring.NodeID {
	return slices.SortedFunc(maps.Keys(l.records), ring.NodeID.Compare)
}
