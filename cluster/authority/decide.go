package authority

import (
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

// view is what a decision is made from, besides the ledger.
type view struct {
	now   time.Duration
	wall  time.Time
	state *agreement.State
	ruled uint64 // as of which the newest rules are in force
	nodes map[ring.NodeID]Node
	// members are those of From and To, sorted.
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

// decide brings the ledger up to date and returns the entry to propose now, nil if there is none. The caller tells the
// outcome with proposed before it asks again, and looks at least every tickEvery.
func (l *ledger) decide(v *view) agreement.Entry {
	l.look(v.now)
	l.raiseFloor(v)
	l.observeReports(v)
	for _, id := range v.members {
		l.review(v, id)
	}
	l.tidy(v)
	l.observeRing(v)
	for _, next := range []func(*view) agreement.Entry{l.boots, l.ends, l.settles, l.leaves, l.rings} {
		if e := next(v); e != nil {
			return e
		}
	}
	return nil
}

// look finds out whether this loop has run meanwhile. If not, requests may lie unread: nobody's silence counts, and
// a node that was to be ended for its silence is not.
func (l *ledger) look(now time.Duration) {
	if now-l.looked > tickEvery+late {
		l.trusted = now
		for _, r := range l.records {
			r.cutSince, r.relayedSince, r.vainSince, r.staleSince, r.ending = never, never, never, never, false
		}
	}
	l.looked = now
}

// observeReports notes since when a majority of the nodes that ask can't reach a node, or only by way of another, and who asks
// in vain. A node that asks has a voice in what is said of itself.
func (l *ledger) observeReports(v *view) {
	cut, relayed, voices := map[ring.NodeID]int{}, map[ring.NodeID]int{}, 0
	for _, r := range l.records {
		if r.boot == 0 || l.silence(v.now, r.asked) >= patience || r.asked == never {
			continue
		}
		voices++
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
	// What a leader refuses says nothing while it can't have anything agreed on.
	proved := l.proves(v.now)
	l.behind = nil
	for _, id := range l.sorted() {
		r := l.record(v.state, id)
		mark(&r.cutSince, 2*cut[id] > voices)
		mark(&r.relayedSince, 2*(cut[id]+relayed[id]) > voices)
		mark(&r.staleSince, proved && !v.state.Settled && v.state.InRing(id) && r.asked != never && r.applied < v.state.Revision)
		mark(&r.wellSince, r.relayedSince == never && l.holds(v.now, v.state, id))
		if !proved || l.silence(v.now, max(r.asked, r.newerAsked)) >= patience {
			r.vainSince = never
		}
		if r.vainSince != never && v.now-r.vainSince >= patience && len(l.behind) < maxReported {
			l.behind = append(l.behind, id)
		}
	}
}

// review looks at the evidence against a member of the ring.
func (l *ledger) review(v *view, id ring.NodeID) {
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
	case l.endsInVain(v, id, r):
		end(agreement.Behind)
	}
}

// endsInVain reports whether a node is to be ended because it asks in vain, or asks nothing though it can be reached, or holds up a
// change of the ring that it does not apply, and notes that it is. At most one is in each vainPause, and only while at least
// half of the ring has authority without it. A leader hands the lead on first.
func (l *ledger) endsInVain(v *view, id ring.NodeID, r *record) bool {
	vain := r.vainSince != never && v.now-r.vainSince >= vainPatience && r.without >= vainPatience
	// A node whose disk hangs may not even learn who leads: Raft waits until its term is saved.
	mute := l.silence(v.now, max(r.asked, r.newerAsked)) >= vainPatience && l.proves(v.now)
	stale := r.staleSince != never && v.now-r.staleSince >= vainPatience
	if !vain && !mute && !stale || v.now-l.vainEnded < vainPause || !l.spares(v, id) {
		return false
	}
	l.vainEnded = v.now
	if id == l.self {
		l.handOn()
		return false
	}
	return true
}

// proves reports whether this leader had something agreed on just now.
func (l *ledger) proves(now time.Duration) bool { return now-l.proved < patience }

// spares reports whether at least half of the ring has authority without id.
func (l *ledger) spares(v *view, id ring.NodeID) bool {
	hold := 0
	for _, other := range v.members {
		if other != id && l.holds(v.now, v.state, other) {
			hold++
		}
	}
	return 2*hold >= len(v.members)
}

// tidy forgets who is no member and asks no more. Nobody that is forgotten has authority: that ran out long ago.
func (l *ledger) tidy(v *view) {
	maps.DeleteFunc(l.records, func(id ring.NodeID, r *record) bool {
		if _, member := slices.BinarySearchFunc(v.members, id, ring.NodeID.Compare); member {
			return false
		}
		r.ending = false
		return l.silence(v.now, max(r.asked, r.newerAsked)) >= recordLife
	})
}

// boots registers a node's new process, once the last one certainly has no authority any more.
func (l *ledger) boots(v *view) agreement.Entry {
	for _, id := range l.sorted() {
		r := l.record(v.state, id)
		if r.newer == 0 || r.newer == r.boot || r.newerStuck || r.ending || v.now-r.newerAsked >= Term {
			continue
		}
		gone := r.boot == 0 || r.gaveUp ||
			id == l.self && r.newer == l.boot || // this process has the lock on the data directory
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

// ends ends who is to be ended and certainly has no authority any more. Before a term has passed since the reign's
// first entry that is nobody: an earlier leader may have granted some.
func (l *ledger) ends(v *view) agreement.Entry {
	if v.now-l.since < Wait {
		return nil
	}
	for _, id := range v.members {
		if r := l.records[id]; r != nil && r.ending && l.expired(v.now, r) {
			r.ended = true
			return l.end(v, id, r.why)
		}
	}
	// A removed process that is in no ring is noted, so that no leader takes it in.
	for _, id := range l.sorted() {
		boot := v.state.Boot(id)
		if n := v.nodes[id]; n.Removed && n.Boot == boot && boot != 0 && !v.state.InRing(id) && !v.state.WasRemoved(boot) {
			return l.end(v, id, agreement.Removed)
		}
	}
	return nil
}

func (l *ledger) end(v *view, id ring.NodeID, why agreement.Reason) agreement.Ended {
	return agreement.Ended{Node: id, Generation: v.state.Generation(id), Reign: l.reign, Why: why, When: v.wall.UnixMilli()}
}

// settles ends a move when every member has settled it. What one reported before the last end or boot says nothing of
// the moves that these made.
func (l *ledger) settles(v *view) agreement.Entry {
	if v.state.Settled || !l.allHold(v) {
		return nil
	}
	for _, id := range v.members {
		if r := l.records[id]; r.settled < v.state.Epoch || r.applied < v.state.Revision {
			return nil
		}
	}
	return agreement.Settled{Epoch: v.state.Epoch, Revision: v.state.Revision}
}

// allHold reports whether every member has authority. If one has not, it comes back or is ended; until then it could
// hand nothing over, so no ring is begun or settled.
func (l *ledger) allHold(v *view) bool {
	for _, id := range v.members {
		if !l.holds(v.now, v.state, id) {
			return false
		}
	}
	return true
}

// leaves lets one member that wants to go leave the ring, if it isn't the only one; and one that most nodes reach only by way
// of others, which would carry all of its traffic for ever.
func (l *ledger) leaves(v *view) agreement.Entry {
	if !v.state.Settled || len(v.members) < 2 || !l.allHold(v) {
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
		if v.now-l.vainEnded >= vainPause {
			l.vainEnded = v.now
			l.handOn()
		}
	}
	return nil
}

// observeRing notes when the wanted nodes and the ring changed.
func (l *ledger) observeRing(v *view) {
	var wanted []ring.NodeID
	for id, n := range v.nodes {
		r := l.records[id]
		if n.State != gossip.Alive || n.Removed || !n.Supports || !l.holds(v.now, v.state, id) || r.leaving || r.boot != n.Boot {
			continue
		}
		// Who was taken out has to do well for a while first, and nobody who can't be reached directly comes in.
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

// rings takes nodes into the ring, and makes one anew that has had a hole, or other settings, for a while. It never
// leaves a member out: who goes has left or was ended.
func (l *ledger) rings(v *view) agreement.Entry {
	s := v.state
	if s.Cluster.IsZero() || !s.Settled || len(l.wanted) == 0 || v.now-l.wantedSince < settleDown || !l.allHold(v) {
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
	stale := s.Epoch > 0 && (!s.To.Canonical() || s.To.Settings() != settings) && v.now-l.toSince >= holeLife
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

// proposed reports that the outcome of an entry is known: it has been applied or rejected.
func (l *ledger) proposed(e agreement.Entry) {
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

// sorted returns the nodes in the ledger in order, so that equal ledgers decide alike.
func (l *ledger) sorted() []ring.NodeID {
	return slices.SortedFunc(maps.Keys(l.records), ring.NodeID.Compare)
}
