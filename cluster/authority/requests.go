package authority

import (
	"math"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// handleRequest records a request. It returns a refusal, or a reply without a
// reason if the request may be granted once this node's lead is confirmed.
func (rs *reignState) handleRequest(now time.Duration, s *agreement.State, req *Request) Reply {
	switch {
	case req.Node.IsZero() || req.Boot == 0:
		return Reply{Reason: reasonNoBoot}
	case !req.withinBounds():
		return Reply{Reason: reasonTooLarge}
	case s.WasRemoved(req.Boot) || isRemoved(s, req.Node):
		return Reply{Reason: reasonRemoved, Removed: true}
	}

	rec := rs.ensureRecord(s, req.Node)
	switch {
	case rec == nil:
		return Reply{Reason: reasonFull}
	case req.Boot != rec.boot:
		return Reply{Reason: rs.handleOtherProcess(now, s, rec, req)}
	}

	rec.lastAsked = now
	rec.leaving = req.Leaving
	rec.noAuthorityFor = req.NoAuthorityFor
	rec.unreachable = req.Unreachable
	rec.relayed = req.Relayed
	rec.clock = req.Clocks.Earliest
	rs.latestClock = max(rs.latestClock, req.Clocks.Latest)

	// A node that has not applied its own end reports facts from before that end.
	if req.Generation == s.Generation(req.Node) {
		rec.settledEpoch = req.SettledEpoch
		rec.applied = req.Applied
	}

	// From now on, judge also refuses this process's earlier requests, and those
	// that arrive late.
	if req.GivingUp {
		rec.gaveUp = true
	}

	reply := rs.judge(s, req)
	rec.trackUngranted(now, reply.Reason)
	return reply
}

// isRemoved reports whether an operator has removed a node.
func isRemoved(s *agreement.State, id ring.NodeID) bool {
	d := s.Departure(id)
	return d != nil && !d.Left
}

// trackUngranted records whether the node asks without success, given the reason
// for the refusal, or "" if there is none. A refusal counts if the node is to
// blame. A request that would be granted counts as well, if this leader granted
// one before and the node still reports that it has no authority.
func (rec *record) trackUngranted(now time.Duration, reason string) {
	counts := false
	switch reason {
	case reasonEnding:
		return // this refusal is due to the end itself, and changes no evidence
	case reasonStuck, reasonLevel, reasonMissedEnd, reasonBootBehind, reasonRules, reasonGeneration:
		counts = true
	case "":
		counts = rec.lastGranted != never
	}

	if !counts {
		rec.noAuthorityFor = 0 // void, so that isUnserving does not count it either
	}

	switch {
	case rec.noAuthorityFor == 0:
		rec.ungrantedSince = never
	case rec.ungrantedSince == never:
		rec.ungrantedSince = now
	}
}

// handleOtherProcess records a request from a process that is not the
// registered one. It returns the reason for refusing the request.
func (rs *reignState) handleOtherProcess(now time.Duration, s *agreement.State, rec *record, req *Request) string {
	switch {
	case req.GivingUp:
		return reasonGaveUp
	case s.Processes[req.Node].WasFormer(req.Boot):
		return reasonReplaced
	case req.Node == rs.self && req.Boot != rs.boot:
		rs.alarmClone(now, rec, req.Node)
		return reasonClone
	}

	isTooLow := max(1, req.Level) < s.Level
	rec.successor.recordRequest(req.Boot, now)
	rec.successor.unfit = req.Stuck || isTooLow
	rec.successor.registration = agreement.RegisterProcess{Level: req.Level, Release: req.Release, Zones: req.Zones}

	// The registered process still asks, so two processes are alive.
	if rec.lastAsked > rec.successor.since && now-rec.lastAsked < silencePatience {
		rs.alarmClone(now, rec, req.Node)
		return reasonClone
	}

	reason := reasonRegister
	switch {
	case req.Stuck:
		reason = reasonStuck
	case isTooLow:
		reason = reasonLevel
	case rec.successor.rejected:
		reason = reasonRejected
	}

	// While the registered process still asks, its requests say whether the
	// node fails.
	if rs.silence(now, rec.lastAsked) >= silencePatience {
		rec.noAuthorityFor = req.NoAuthorityFor
		rec.trackUngranted(now, reason)
	}

	return reason
}

// alarmClone alerts the operator that two processes use one identity, at most
// once per alarmInterval and node.
func (rs *reignState) alarmClone(now time.Duration, rec *record, id ring.NodeID) {
	if now-rec.lastAlarm >= alarmInterval {
		rec.lastAlarm = now
		rs.alarm("two processes with the same identity ask for authority; the newer one is refused", "node", id)
	}
}

// judge returns a refusal if the request can't be granted now, or else the zero
// Reply. It is called twice: when the request arrives, and again before it is
// granted.
func (rs *reignState) judge(s *agreement.State, req *Request) Reply {
	rec := rs.ensureRecord(s, req.Node)
	switch {
	case rec == nil:
		return Reply{Reason: reasonFull}
	case req.Boot != rec.boot:
		return Reply{Reason: reasonReplaced}
	case rec.gaveUp:
		return Reply{Reason: reasonGaveUp}
	case rec.ending || rec.endProposed:
		return Reply{Reason: reasonEnding}
	case rec.bootProposed:
		return Reply{Reason: reasonReplacing}
	case req.Stuck:
		return Reply{Reason: reasonStuck}
	case req.Applied < s.LastEnded:
		return Reply{Reason: reasonMissedEnd, Index: s.LastEnded}
	case req.Applied < s.Processes[req.Node].Index:
		return Reply{Reason: reasonBootBehind, Index: s.Processes[req.Node].Index}
	case req.Applied < rs.floor:
		return Reply{Reason: reasonRules, Index: rs.floor}
	case req.Generation != s.Generation(req.Node):
		return Reply{Reason: reasonGeneration}
	}

	return Reply{}
}

// grant judges the request again, after the confirmation, and grants or refuses
// it. It records the time of a grant before the reply is sent.
func (rs *reignState) grant(now time.Duration, s *agreement.State, req *Request) Reply {
	reply := rs.judge(s, req)
	if reply.Reason == "" {
		rs.records[req.Node].lastGranted = now
		reply = Reply{Granted: true, Index: s.Index}
	}
	return reply
}

// tryRaiseFloor reports whether every node that may have authority has applied
// index. If so, it raises the floor, so that this stays true. It returns false
// while nodes may have authority from an earlier leader: this leader may not
// know of these nodes yet.
func (rs *reignState) tryRaiseFloor(now time.Duration, index uint64) bool {
	if now-rs.reignBegan < EndingWait {
		return false
	}
	for _, rec := range rs.records {
		if rec.applied < index && !rs.hasExpired(now, rec) {
			return false
		}
	}
	rs.floor = max(rs.floor, index)
	return true
}

// clocks returns the clocks by which the region decides windows. Earliest is the
// minimum of what the nodes that may have authority reported last. Latest is the
// maximum that any node has reported to this leader. They are unknown while nodes
// may have authority from an earlier leader, or if a node has reported none.
func (rs *reignState) clocks(now time.Duration) Clocks {
	if now-rs.reignBegan < EndingWait {
		return Clocks{}
	}

	earliest := int64(math.MaxInt64)
	for _, rec := range rs.records {
		if !rs.hasExpired(now, rec) {
			earliest = min(earliest, rec.clock)
		}
	}

	if earliest == 0 || earliest > rs.latestClock {
		return Clocks{} // a node has reported none, or no node has authority
	}
	return Clocks{Earliest: earliest, Latest: rs.latestClock}
}

// appliedByMajority reports whether a majority of the ring has applied index, or there is no ring.
func (rs *reignState) appliedByMajority(s *agreement.State, index uint64) bool {
	members := s.To.Members()
	applied := 0
	for _, id := range members {
		rec := rs.records[id]
		if rec != nil && rec.applied >= index {
			applied++
		}
	}
	return 2*applied > len(members) || len(members) == 0
}

// raiseFloor raises the floor to the newest rules, once every node that may
// have authority has applied them, or rulesGrace after a majority of the ring
// has.
func (rs *reignState) raiseFloor(in *decisionInput) {
	if in.rulesIndex > rs.floor {
		applied := rs.tryRaiseFloor(in.now, in.rulesIndex) // if true, it has raised the floor
		n := len(rs.pendingFloors)
		isListed := n > 0 && rs.pendingFloors[n-1].index >= in.rulesIndex
		if !applied && !isListed && rs.appliedByMajority(in.state, in.rulesIndex) {
			rs.pendingFloors = append(rs.pendingFloors, pendingFloor{in.rulesIndex, in.now})
		}
	}

	for len(rs.pendingFloors) > 0 &&
		(rs.pendingFloors[0].index <= rs.floor || in.now-rs.pendingFloors[0].at >= rulesGrace) {
		rs.floor = max(rs.floor, rs.pendingFloors[0].index)
		rs.pendingFloors = rs.pendingFloors[1:]
	}
}
