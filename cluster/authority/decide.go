package authority

import (
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// nextEntry updates the reignState and returns the entry to propose now, or
// nil. The caller must report the entry's outcome with recordOutcome before it
// calls nextEntry again, and must call nextEntry or detectStall at least every
// tickInterval.
func (rs *reignState) nextEntry(in *decisionInput) agreement.Entry {
	rs.detectStall(in.now)
	rs.raiseFloor(in)
	rs.observeReports(in)

	for _, id := range in.members {
		rs.review(in, id)
	}

	rs.dropStale(in)
	rs.observeRing(in)

	// Entries are proposed one at a time, the most urgent first: those that free
	// partitions come before those that move partitions.
	for _, next := range []func(*decisionInput) agreement.Entry{rs.registerEntry, rs.endEntry,
		rs.settleEntry, rs.leaveEntry, rs.ringEntry} {
		e := next(in)
		if e != nil {
			return e
		}
	}
	return nil
}

// detectStall detects whether the granter's loop has stalled. After a stall,
// nodes' requests may be waiting unread. So detectStall discards all evidence
// against nodes, and cancels each end that is not proposed yet.
func (rs *reignState) detectStall(now time.Duration) {
	if now-rs.lastTick > tickInterval+loopSlack {
		rs.silenceFrom = now
		for _, rec := range rs.records {
			rec.unreachableSince = never
			rec.notDirectSince = never
			rec.ungrantedSince = never
			rec.laggingSince = never
			rec.ending = false
		}
	}
	rs.lastTick = now
}

// observeReports records since when each node has been unreachable, relayed,
// lagging or healthy, and which nodes ask without success. The nodes that still
// ask vote on which nodes are unreachable or relayed. About itself, each votes
// that it is neither.
func (rs *reignState) observeReports(in *decisionInput) {
	votes := rs.countVotes(in.now)

	track := func(since *time.Duration, holds bool) {
		switch {
		case !holds:
			*since = never
		case *since == never:
			*since = in.now
		}
	}

	// While this leader can't prove that it leads, a refusal is no evidence against a node.
	proved := rs.leadIsConfirmed(in.now)
	rs.ungranted = nil

	for _, id := range rs.sortedNodes() {
		rec := rs.ensureRecord(in.state, id) // not nil: the node has a record
		track(&rec.unreachableSince, 2*votes.unreachable[id] > votes.reporters)
		track(&rec.notDirectSince, 2*(votes.unreachable[id]+votes.relayed[id]) > votes.reporters)
		track(&rec.laggingSince, proved && in.state.InRing(id) &&
			rec.lastAsked != never && rec.applied < in.state.Revision)
		track(&rec.healthySince, rec.notDirectSince == never && rs.hasAuthority(in.now, in.state, id))

		if !proved || rs.silence(in.now, max(rec.lastAsked, rec.successor.asked)) >= silencePatience {
			rec.ungrantedSince = never
		}

		if rec.ungrantedSince != never && in.now-rec.ungrantedSince >= silencePatience && len(rs.ungranted) < maxReported {
			rs.ungranted = append(rs.ungranted, id)
		}
	}
}

// reachVotes are the votes of the nodes that still ask. A reporter votes that it
// reaches directly each node that is in neither of its lists.
type reachVotes struct {
	reporters   int
	unreachable map[ring.NodeID]int // by node, how many reporters can't reach it
	relayed     map[ring.NodeID]int // by node, how many reach it only through another node
}

// countVotes counts what the nodes that still ask have last reported.
func (rs *reignState) countVotes(now time.Duration) reachVotes {
	votes := reachVotes{unreachable: map[ring.NodeID]int{}, relayed: map[ring.NodeID]int{}}
	for _, rec := range rs.records {
		if rec.boot == 0 || rs.silence(now, rec.lastAsked) >= silencePatience || rec.lastAsked == never {
			continue
		}

		votes.reporters++
		for _, id := range rec.unreachable {
			votes.unreachable[id]++
		}
		for _, id := range rec.relayed {
			votes.relayed[id]++
		}
	}
	return votes
}

// review decides, from the evidence against a member of the ring, whether to end it.
func (rs *reignState) review(in *decisionInput, id ring.NodeID) {
	rec := rs.ensureRecord(in.state, id)
	if rec == nil {
		return // the records are full, and the node was refused
	}

	switch {
	case len(in.members) == 1:
		rec.ending = false // nobody could take over from the only member
	case in.nodes[id].Removed:
		rec.startEnding(in.now, agreement.Removed)
	case rec.ending:
		// endEntry waits until the node's authority has expired. Until then, a node
		// that is well again is spared.
		rec.ending = !rec.hasRecovered(in, id)
	default:
		rs.endIfUnwell(in, rec, id)
	}
}

// endIfUnwell decides to end id, the node of rec, if there is a reason.
func (rs *reignState) endIfUnwell(in *decisionInput, rec *record, id ring.NodeID) {
	why := rs.whyEnd(in, rec, id)
	if why == "" {
		return
	}

	if why == agreement.Behind {
		rs.behindActedAt = in.now
		if id == rs.self {
			// This leader can't end itself. The next one will, if it has to.
			rs.transferLead()
			return
		}
	}

	rec.startEnding(in.now, why)
}

// startEnding records the decision to end rec's node.
func (rec *record) startEnding(now time.Duration, why agreement.Reason) {
	rec.ending = true
	rec.endingSince = now
	rec.endingReason = why
}

// hasRecovered reports whether id, the node of rec, is well again although the
// leader had decided to end it.
func (rec *record) hasRecovered(in *decisionInput, id ring.NodeID) bool {
	// A node that is Behind asks all the time, without success. So its requests are
	// no sign that it is well.
	hasAsked := max(rec.lastAsked, rec.successor.asked) > rec.endingSince && rec.endingReason != agreement.Behind
	return hasAsked && !in.isGone(id) && rec.unreachableSince == never
}

// whyEnd returns why id, the node of rec, should be ended, or "" if it should not.
func (rs *reignState) whyEnd(in *decisionInput, rec *record, id ring.NodeID) agreement.Reason {
	isSilent := rs.silence(in.now, max(rec.lastAsked, rec.successor.asked)) >= silencePatience
	isUnreachable := rec.unreachableSince != never

	switch {
	case isSilent && (isUnreachable || in.isGone(id)):
		return agreement.Silent
	case isUnreachable && in.now-rec.unreachableSince >= unreachablePatience:
		return agreement.Unreachable
	case rs.isUnserving(in, rec) && in.now-rs.behindActedAt >= behindPause && rs.canSpare(in, id):
		return agreement.Behind
	}
	return ""
}

// isUnserving reports whether the node asks without success, asks nothing
// although it can be reached, or lags.
func (rs *reignState) isUnserving(in *decisionInput, rec *record) bool {
	// It asks without success.
	ungranted := rec.ungrantedSince != never && in.now-rec.ungrantedSince >= behindPatience &&
		rec.noAuthorityFor >= behindPatience

	// It asks nothing. Unreachable and failed nodes are already Silent: see whyEnd.
	//
	// A node whose disk hangs may never learn which node leads, because Raft must
	// save its term first. Such a node may be the former leader, which can go on
	// leading for some seconds after its disk hangs. So this leader waits only
	// unreachablePatience, not behindPatience.
	silence := rs.silence(in.now, max(rec.lastAsked, rec.successor.asked))
	asksNothing := silence >= unreachablePatience && rs.leadIsConfirmed(in.now)

	// It lags. Until it has applied the newest revision it begins no copies, so no
	// change of the ring can finish.
	lagging := rec.laggingSince != never && in.now-rec.laggingSince >= behindPatience
	return ungranted || asksNothing || lagging
}

// leadIsConfirmed reports whether a majority has confirmed this node's lead within silencePatience.
func (rs *reignState) leadIsConfirmed(now time.Duration) bool {
	return now-rs.leadConfirmedAt < silencePatience
}

// canSpare reports whether nodes with authority, id not counted, are at least
// half of the ring.
func (rs *reignState) canSpare(in *decisionInput, id ring.NodeID) bool {
	withAuthority := 0
	for _, other := range in.members {
		if other != id && rs.hasAuthority(in.now, in.state, other) {
			withAuthority++
		}
	}
	return 2*withAuthority >= len(in.members)
}

// dropStale drops the records of nodes that are not members and no longer ask.
// Their authority expired long ago.
func (rs *reignState) dropStale(in *decisionInput) {
	for id, rec := range rs.records {
		_, isMember := slices.BinarySearchFunc(in.members, id, ring.NodeID.Compare)
		if isMember {
			continue
		}

		// The evidence against a former member must not end the node once it is back.
		rec.ending = false
		if rs.silence(in.now, max(rec.lastAsked, rec.successor.asked)) >= recordTTL {
			delete(rs.records, id)
		}
	}
}

// registerEntry returns the entry to register a node's new process, once the
// previous one certainly has no authority left.
func (rs *reignState) registerEntry(in *decisionInput) agreement.Entry {
	for _, id := range rs.sortedNodes() {
		rec := rs.ensureRecord(in.state, id) // not nil: the node has a record
		if !rec.wantsRegistration(in.now) || !rs.oldProcessIsDone(in, id, rec) {
			continue
		}

		e := rec.successor.registration
		e.Node = id
		e.Boot = rec.successor.boot
		e.Reign = rs.number

		// A rejected entry would be proposed again and again, before all others.
		err := in.state.Rejection(e)
		if err != nil {
			rs.alarmRejected(rec, id, err)
			continue
		}

		// Until the outcome is known, judge grants the old process nothing:
		// it may be replaced by then.
		rec.bootProposed = true
		return e
	}
	return nil
}

// alarmRejected alerts the operator, once, that the new process of id, the node
// of rec, can't be registered.
func (rs *reignState) alarmRejected(rec *record, id ring.NodeID, err error) {
	if !rec.successor.rejected {
		rec.successor.rejected = true
		rs.alarm("a node's process can't be registered: the node gets no authority", "node", id, "error", err)
	}
}

// wantsRegistration reports whether rec's node has a new process that still
// asks and may be registered.
func (rec *record) wantsRegistration(now time.Duration) bool {
	isNew := rec.successor.boot != 0 && rec.successor.boot != rec.boot
	return isNew && !rec.successor.unfit && !rec.ending && now-rec.successor.asked < Validity
}

// oldProcessIsDone reports whether the registered process of id, the node of
// rec, certainly has no authority left, or there is none.
func (rs *reignState) oldProcessIsDone(in *decisionInput, id ring.NodeID, rec *record) bool {
	if rec.boot == 0 || rec.gaveUp {
		return true
	}
	if id == rs.self && rec.successor.boot == rs.boot {
		return true // this process holds the lock on the data directory
	}
	return rs.hasExpired(in.now, rec) && rs.silence(in.now, rec.lastAsked) >= silencePatience
}

// endEntry returns the entry to end a node that is due to be ended. A member of
// the ring certainly has no authority left then. endEntry ends no node within
// EndingWait after the reign's first entry, because an earlier leader may have
// granted authority.
func (rs *reignState) endEntry(in *decisionInput) agreement.Entry {
	if in.now-rs.reignBegan < EndingWait {
		return nil
	}

	for _, id := range in.members {
		rec := rs.records[id]
		if rec != nil && rec.ending && rs.hasExpired(in.now, rec) {
			// detectStall may still clear ending, but the entry can't be withdrawn. So
			// judge refuses the node for either.
			rec.endProposed = true
			return rs.newEnded(in, id, rec.endingReason)
		}
	}

	// A removed process that is in no ring is ended, too, so that no later leader
	// admits it. It may still have authority, but it owns nothing to use it on.
	for _, id := range rs.sortedNodes() {
		boot := in.state.Boot(id)

		n := in.nodes[id]
		if n.Removed && n.Boot == boot && boot != 0 && !in.state.InRing(id) &&
			!in.state.WasRemoved(boot) {
			return rs.newEnded(in, id, agreement.Removed)
		}
	}
	return nil
}

func (rs *reignState) newEnded(in *decisionInput, id ring.NodeID, reason agreement.Reason) agreement.EndNode {
	return agreement.EndNode{Node: id, Generation: in.state.Generation(id), Reign: rs.number,
		Reason: reason, When: in.wallClock.UnixMilli()}
}

// settleEntry returns the entry to end a move, once every member has settled
// it. Reports from before the last EndNode or RegisterProcess don't count,
// because those entries may have caused further hand-offs.
func (rs *reignState) settleEntry(in *decisionInput) agreement.Entry {
	if in.state.Settled || !rs.allHaveAuthority(in) {
		return nil
	}
	for _, id := range in.members {
		rec := rs.records[id] // not nil: the node has authority
		if rec.settledEpoch < in.state.Epoch || rec.applied < in.state.Revision {
			return nil
		}
	}
	return agreement.SettleMove{Epoch: in.state.Epoch, Revision: in.state.Revision}
}

// allHaveAuthority reports whether every member has authority. A member without
// it can hand nothing over. So no ring change begins or settles until it comes
// back or is ended.
func (rs *reignState) allHaveAuthority(in *decisionInput) bool {
	return !slices.ContainsFunc(in.members, func(id ring.NodeID) bool { return !rs.hasAuthority(in.now, in.state, id) })
}

// leaveEntry returns the entry to take out of the ring a member that wants to
// leave, unless it is the only one. It also takes out a member that most nodes
// reach only through other nodes. Otherwise these would carry all of the
// member's traffic forever.
func (rs *reignState) leaveEntry(in *decisionInput) agreement.Entry {
	if !in.state.Settled || len(in.members) < 2 || !rs.allHaveAuthority(in) {
		return nil
	}

	// Each member has a record, because it has authority.
	for _, id := range in.members {
		if rs.records[id].leaving {
			return agreement.Leave{Epoch: in.state.Epoch + 1, Node: id}
		}
	}

	for _, id := range in.members {
		rec := rs.records[id]
		if rec.notDirectSince == never || in.now-rec.notDirectSince < relayedPatience {
			continue
		}

		if id != rs.self {
			return agreement.Leave{Epoch: in.state.Epoch + 1, Node: id,
				Reason: agreement.Unreachable, When: in.wallClock.UnixMilli()}
		}

		// This leader can't take itself out. The next one will.
		if in.now-rs.behindActedAt >= behindPause {
			rs.behindActedAt = in.now
			rs.transferLead()
		}
	}
	return nil
}

// observeRing records when the wanted nodes and the ring last changed.
func (rs *reignState) observeRing(in *decisionInput) {
	var wanted []ring.NodeID
	for id, n := range in.nodes {
		rec := rs.records[id]
		if !n.Alive || n.Removed || !n.SupportsRing ||
			!rs.hasAuthority(in.now, in.state, id) || rec.leaving || rec.boot != n.Boot {
			continue
		}

		// A new member must be directly reachable. A node that was suspended must also
		// stay healthy for a while.
		if in.state.InRing(id) || rec.healthySince != never &&
			in.now-rec.healthySince >= in.state.Processes[id].Suspension.RejoinDelay() {
			wanted = append(wanted, id)
		}
	}

	slices.SortFunc(wanted, ring.NodeID.Compare)
	if !slices.Equal(wanted, rs.wanted) {
		rs.wanted = wanted
		rs.wantedSince = in.now
	}

	if in.state.To != rs.lastRing {
		rs.lastRing = in.state.To
		rs.ringSince = in.now
	}
}

// ringEntry returns the entry to add nodes to the ring, or to rebuild a ring
// that has had a hole or outdated settings for holePatience. It never drops a
// member: members leave, or are ended.
func (rs *reignState) ringEntry(in *decisionInput) agreement.Entry {
	s := in.state
	if s.Cluster.IsZero() || !s.Settled || len(rs.wanted) == 0 ||
		in.now-rs.wantedSince < wantedPatience || !rs.allHaveAuthority(in) {
		return nil
	}

	if s.Epoch == 0 && len(rs.wanted) < rs.bootstrapExpect && in.now-rs.reignBegan < firstRingWait {
		return nil
	}

	ids := slices.Clone(in.members)
	for _, id := range rs.wanted {
		if s.To.Rank(id) < 0 {
			ids = append(ids, id)
		}
	}

	settings := ring.DefaultSettings()
	outdated := s.Epoch > 0 && (!s.To.Canonical() || s.To.Settings() != settings) && in.now-rs.ringSince >= holePatience
	if len(ids) == len(in.members) && !outdated {
		return nil
	}

	slices.SortFunc(ids, ring.NodeID.Compare)
	e := agreement.Ring{Epoch: s.Epoch + 1, Settings: settings}
	for _, id := range ids {
		n, known := in.nodes[id]
		if !known || !n.SupportsRing {
			return nil // this member can't compute the ring
		}
		e.Members = append(e.Members, n.Member)
	}
	return e
}

// recordOutcome records that an entry's outcome is known: it was applied or
// rejected.
func (rs *reignState) recordOutcome(e agreement.Entry) {
	switch e := e.(type) {
	case agreement.RegisterProcess:
		if rec := rs.records[e.Node]; rec != nil {
			rec.bootProposed = false
		}
	case agreement.EndNode:
		if rec := rs.records[e.Node]; rec != nil {
			rec.endProposed = false
		}
	}
}

// sortedNodes returns the nodes that have a record, in order, so that equal
// states make equal decisions.
func (rs *reignState) sortedNodes() []ring.NodeID {
	return slices.SortedFunc(maps.Keys(rs.records), ring.NodeID.Compare)
}
