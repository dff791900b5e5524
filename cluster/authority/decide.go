package authority

import (
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

// view is the input to a decision, besides the ledger.
type view struct {
	now   time.Duration
	wall  time.Time
	state *agreement.State
	ruled uint64 // index as of which the newest rules are in force
	nodes map[ring.NodeID]Node
	// members are the members of From and To, sorted.
	members []ring.NodeID
}

func newView(now time.Duration, wall time.Time, s *agreement.State, ruled uint64, nodes []Node) *view {
	v := &view{now: now, wall: wall, state: s, ruled: ruled, nodes: make(map[ring.NodeID]Node, len(nodes))}
	for _, n := range nodes {
		v.nodes[n.ID] = n
	}
	v.members = append(slices.Clone(s.From.Members()), s.To.Members()...)
	slices.SortFunc(v.members, ring.NodeID.Compare)
	v.members = slices.Compact(v.members)
	return v
}

// nextEntry brings the ledger up to date and returns the entry to propose now, nil if there is none. The caller reports the
// outcome through outcomeKnown before it calls nextEntry again, and calls detectStall at least every tickEvery.
func (l *authorityLedger) nextEntry(v *view) agreement.Entry {
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

// detectStall detects whether this loop has stalled. After a stall requests may lie unread, so it discards all evidence
// against nodes and cancels every pending end.
func (l *authorityLedger) detectStall(now time.Duration) {
	if now-l.lastTick > tickEvery+loopSlack {
		l.trusted = now
		for _, r := range l.records {
			r.cutSince, r.relayedSince, r.failingSince, r.staleSince, r.ending = never, never, never, never, false
		}
	}
	l.lastTick = now
}

// observeReports records since when a majority of the asking nodes can't reach a node, or reach it only through another,
// and which nodes ask without success. A node's own reports count in the vote about itself.
func (l *authorityLedger) observeReports(v *view) {
	cut, relayed, reporters := map[ring.NodeID]int{}, map[ring.NodeID]int{}, 0
	for _, r := range l.records {
		if r.boot == 0 || l.silence(v.now, r.asked) >= patience || r.asked == never {
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
	mark := func(since *time.Duration, is bool) {
		switch {
		case !is:
			*since = never
		case *since == never:
			*since = v.now
		}
	}
	// A refusal proves nothing about a node while this leader can't commit anything.
	proved := l.provesLead(v.now)
	l.failing = nil
	for _, id := range l.sorted() {
		r := l.record(v.state, id)
		mark(&r.cutSince, 2*cut[id] > reporters)
		mark(&r.relayedSince, 2*(cut[id]+relayed[id]) > reporters)
		mark(&r.staleSince, proved && !v.state.Settled && v.state.InRing(id) && r.asked != never && r.applied < v.state.Revision)
		mark(&r.wellSince, r.relayedSince == never && l.hasAuthority(v.now, v.state, id))
		if !proved || l.silence(v.now, max(r.asked, r.newerAsked)) >= patience {
			r.failingSince = never
		}
		if r.failingSince != never && v.now-r.failingSince >= patience && len(l.failing) < maxReported {
			l.failing = append(l.failing, id)
		}
	}
}

// review weighs the evidence against a member of the ring.
func (l *authorityLedger) review(v *view, id ring.NodeID) {
	r := l.record(v.state, id)
	if r == nil {
		return
	}
	node := v.nodes[id]
	failed := node.State == gossip.Failed || node.State == gossip.Left
	cut := r.cutSince != never
	asked := max(r.asked, r.newerAsked)
	silent := l.silence(v.now, asked) >= patience
	end := func(why agreement.Reason) { r.ending, r.endingSince, r.why = true, v.now, why }
	back := asked > r.endingSince && !failed && !cut && r.why != agreement.Behind
	switch {
	case len(v.members) == 1:
		r.ending = false
	case node.Removed:
		end(agreement.Removed)
	case r.ending && back:
		r.ending = false
	case r.ending:
	case silent && (failed || cut):
		end(agreement.Silent)
	case cut && v.now-r.cutSince >= cutPatience:
		end(agreement.Unreachable)
	case l.endsFailing(v, id, r):
		end(agreement.Behind)
	}
}

// endsFailing reports whether to end a node because it asks without success, because it doesn't ask although it can be
// reached, or because it holds up a ring change by not applying it. It records that decision. At most one node is ended per
// failingPause, and only while at least half of the ring has authority without it. A leader hands over the lead first.
func (l *authorityLedger) endsFailing(v *view, id ring.NodeID, r *record) bool {
	failing := r.failingSince != never && v.now-r.failingSince >= failingPatience && r.without >= failingPatience
	// A node whose disk hangs may not even learn which node leads: Raft waits until its term is saved.
	asksNothing := l.silence(v.now, max(r.asked, r.newerAsked)) >= failingPatience && l.provesLead(v.now)
	stale := r.staleSince != never && v.now-r.staleSince >= failingPatience
	if !failing && !asksNothing && !stale || v.now-l.failingEnded < failingPause || !l.canSpare(v, id) {
		return false
	}
	l.failingEnded = v.now
	if id == l.self {
		l.transferLead()
		return false
	}
	return true
}

// provesLead reports whether it was confirmed less than patience ago that this node leads.
func (l *authorityLedger) provesLead(now time.Duration) bool { return now-l.proved < patience }

// canSpare reports whether at least half of the ring has authority without id.
func (l *authorityLedger) canSpare(v *view, id ring.NodeID) bool {
	hold := 0
	for _, other := range v.members {
		if other != id && l.hasAuthority(v.now, v.state, other) {
			hold++
		}
	}
	return 2*hold >= len(v.members)
}

// dropStale drops nodes that are not members and no longer ask. A dropped node has no authority: it expired long ago.
func (l *authorityLedger) dropStale(v *view) {
	maps.DeleteFunc(l.records, func(id ring.NodeID, r *record) bool {
		if _, member := slices.BinarySearchFunc(v.members, id, ring.NodeID.Compare); member {
			return false
		}
		r.ending = false
		return l.silence(v.now, max(r.asked, r.newerAsked)) >= recordTTL
	})
}

// bootEntry registers a node's new process once the previous one certainly has no authority left.
func (l *authorityLedger) bootEntry(v *view) agreement.Entry {
	for _, id := range l.sorted() {
		r := l.record(v.state, id)
		if r.newer == 0 || r.newer == r.boot || r.newerStuck || r.ending || v.now-r.newerAsked >= Term {
			continue
		}
		gone := r.boot == 0 || r.gaveUp ||
			id == l.self && r.newer == l.boot || // this process holds the lock on the data directory
			l.expired(v.now, r) && l.silence(v.now, r.asked) >= patience
		if gone {
			r.replacing = true
			e := r.newerBuild
			e.Node, e.Boot, e.Reign = id, r.newer, l.reign
			return e
		}
	}
	return nil
}

// endEntry ends a node that is due to be ended and certainly has no authority left. It ends none until Wait after the
// reign's first entry: an earlier leader may have granted authority.
func (l *authorityLedger) endEntry(v *view) agreement.Entry {
	if v.now-l.since < EndingWait {
		return nil
	}
	for _, id := range v.members {
		if r := l.records[id]; r != nil && r.ending && l.expired(v.now, r) {
			r.ended = true
			return l.endedEntry(v, id, r.why)
		}
	}
	// Record a removed process that is in no ring, so that no leader admits it.
	for _, id := range l.sorted() {
		boot := v.state.Boot(id)
		if n := v.nodes[id]; n.Removed && n.Boot == boot && boot != 0 && !v.state.InRing(id) && !v.state.WasRemoved(boot) {
			return l.endedEntry(v, id, agreement.Removed)
		}
	}
	return nil
}

func (l *authorityLedger) endedEntry(v *view, id ring.NodeID, why agreement.Reason) agreement.Ended {
	return agreement.Ended{Node: id, Generation: v.state.Generation(id), Reign: l.reign, Why: why, When: v.wall.UnixMilli()}
}

// settleEntry ends a move once every member has settled it. Reports from before the last Ended or Boot say nothing about
// the moves that those entries caused.
func (l *authorityLedger) settleEntry(v *view) agreement.Entry {
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

// allHaveAuthority reports whether every member has authority. A member without it comes back or is ended; until then it
// could hand nothing over, so no ring change begins or settles.
func (l *authorityLedger) allHaveAuthority(v *view) bool {
	for _, id := range v.members {
		if !l.hasAuthority(v.now, v.state, id) {
			return false
		}
	}
	return true
}

// leaveEntry lets one member that wants to leave go, unless it is the only one. It also removes a member that most nodes
// reach only through others, which would otherwise carry all of its traffic forever.
func (l *authorityLedger) leaveEntry(v *view) agreement.Entry {
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
			return agreement.Leave{Epoch: v.state.Epoch + 1, Node: id, Why: agreement.Unreachable, When: v.wall.UnixMilli()}
		}
		if v.now-l.failingEnded >= failingPause {
			l.failingEnded = v.now
			l.transferLead()
		}
	}
	return nil
}

// observeRing records when the wanted nodes and the ring last changed.
func (l *authorityLedger) observeRing(v *view) {
	var wanted []ring.NodeID
	for id, n := range v.nodes {
		r := l.records[id]
		if n.State != gossip.Alive || n.Removed || !n.Supports || !l.hasAuthority(v.now, v.state, id) || r.leaving || r.boot != n.Boot {
			continue
		}
		// A new member must be directly reachable. One that was taken out must also do well for a while first.
		if v.state.InRing(id) || r.wellSince != never && v.now-r.wellSince >= v.state.Boots[id].Suspension.Patience() {
			wanted = append(wanted, id)
		}
	}
	slices.SortFunc(wanted, ring.NodeID.Compare)
	if !slices.Equal(wanted, l.wanted) {
		l.wanted, l.wantedSince = wanted, v.now
	}
	if v.state.To != l.to {
		l.to, l.toSince = v.state.To, v.now
	}
}

// ringEntry adds nodes to the ring, and rebuilds a ring that has had a hole or outdated settings for holePatience. It never
// drops a member: members go by leaving or by being ended.
func (l *authorityLedger) ringEntry(v *view) agreement.Entry {
	s := v.state
	if s.Cluster.IsZero() || !s.Settled || len(l.wanted) == 0 || v.now-l.wantedSince < wantedPatience || !l.allHaveAuthority(v) {
		return nil
	}
	if s.Epoch == 0 && len(l.wanted) < l.expect && v.now-l.since < firstRing {
		return nil
	}
	ids := slices.Clone(v.members)
	for _, id := range l.wanted {
		if s.To.Rank(id) < 0 {
			ids = append(ids, id)
		}
	}
	settings := ring.DefaultSettings()
	stale := s.Epoch > 0 && (!s.To.Canonical() || s.To.Settings() != settings) && v.now-l.toSince >= holePatience
	if len(ids) == len(v.members) && !stale {
		return nil
	}
	slices.SortFunc(ids, ring.NodeID.Compare)
	e := agreement.Ring{Epoch: s.Epoch + 1, Settings: settings}
	for _, id := range ids {
		n, known := v.nodes[id]
		if !known || !n.Supports {
			return nil // a member that can't compute this ring
		}
		e.Members = append(e.Members, n.Member)
	}
	return e
}

// outcomeKnown records that an entry's outcome is known: it was applied or rejected.
func (l *authorityLedger) outcomeKnown(e agreement.Entry) {
	switch e := e.(type) {
	case agreement.Boot:
		if r := l.records[e.Node]; r != nil {
			r.replacing = false
		}
	case agreement.Ended:
		if r := l.records[e.Node]; r != nil {
			r.ended = false
		}
	}
}

// sorted returns the ledger's nodes in order, so that equal ledgers decide alike.
func (l *authorityLedger) sorted() []ring.NodeID {
	return slices.SortedFunc(maps.Keys(l.records), ring.NodeID.Compare)
}
