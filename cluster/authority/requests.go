package authority

import (
	"math"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// handleRequest records a request. It returns a refusal, or a reply without a
// reason if the request may be granted once this node's lead is confirmed.
func (rs *reignState) handleRequest(now time.Duration, s *agreement.State, q *Request) Reply {
	switch {
	case q.Node.IsZero() || q.Boot == 0:
		return Reply{Reason: reasonNoBoot}
	case !q.withinBounds():
		return Reply{Reason: reasonTooLarge}
	case s.WasRemoved(q.Boot) || isRemoved(s, q.Node):
		return Reply{Reason: reasonRemoved, Removed: true}
	}

	r := rs.recordOf(s, q.Node)
	switch {
	case r == nil:
		return Reply{Reason: reasonBusy}
	case q.Boot != r.boot:
		return Reply{Reason: rs.handleOtherProcess(now, s, r, q)}
	}

	r.lastAsked = now
	r.leaving = q.Leaving
	r.withoutAuthority = q.WithoutAuthority
	r.unreachable = q.Unreachable
	r.relayed = q.Relayed
	r.clock = q.Clocks.Earliest
	rs.latestClock = max(rs.latestClock, q.Clocks.Latest)

	// A node that has not applied its own end reports facts from before that end.
	if q.Generation == s.Generation(q.Node) {
		r.settledEpoch = q.SettledEpoch
		r.applied = q.Applied
	}

	// From now on, judge also refuses this process's earlier requests, and those
	// that arrive late.
	if q.GivingUp {
		r.gaveUp = true
	}

	reply := rs.judge(s, q)
	r.trackFailing(now, reply.Reason)
	return reply
}

// isRemoved reports whether an operator has removed a node.
func isRemoved(s *agreement.State, id ring.NodeID) bool {
	d := s.Departure(id)
	return d != nil && !d.Left
}

// trackFailing records whether the node asks without success, given the reason
// for the refusal, or "" if there is none. A refusal counts if the node is to
// blame. A request that would be granted counts as well, if this leader granted
// one before and the node still reports that it has no authority.
func (r *record) trackFailing(now time.Duration, reason string) {
	counts := false
	switch reason {
	case reasonEnding:
		return // this refusal is due to the end itself, and changes no evidence
	case reasonStuck, reasonLevel, reasonMissedEnd, reasonBootBehind, reasonRules, reasonGeneration:
		counts = true
	case "":
		counts = r.lastGranted != never
	}

	if !counts {
		r.withoutAuthority = 0 // isFailing reads it, too
	}

	switch {
	case r.withoutAuthority == 0:
		r.failingSince = never
	case r.failingSince == never:
		r.failingSince = now
	}
}

// handleOtherProcess records a request from a process that is not the
// registered one. It returns the reason for refusing the request.
func (rs *reignState) handleOtherProcess(now time.Duration, s *agreement.State, r *record, q *Request) string {
	switch {
	case q.GivingUp:
		return reasonGaveUp
	case s.Processes[q.Node].WasFormer(q.Boot):
		return reasonReplaced
	case q.Node == rs.self && q.Boot != rs.boot:
		rs.alarmClone(now, r, q.Node)
		return reasonClone
	}

	if r.nextBoot != q.Boot {
		r.nextBoot = q.Boot
		r.nextSince = now
	}
	r.nextAsked = now

	// The registered process still asks, so two processes are alive.
	if r.lastAsked > r.nextSince && now-r.lastAsked < silencePatience {
		rs.alarmClone(now, r, q.Node)
		return reasonClone
	}

	isTooLow := max(1, q.Level) < s.Level
	r.nextUnfit = q.Stuck || isTooLow
	r.nextBuild = agreement.RegisterProcess{Level: q.Level, Release: q.Release, Zones: q.Zones}

	reason := reasonRegister
	switch {
	case q.Stuck:
		reason = reasonStuck
	case isTooLow:
		reason = reasonLevel
	}

	// While the registered process still asks, its requests say whether the
	// node fails.
	if rs.silence(now, r.lastAsked) >= silencePatience {
		r.withoutAuthority = q.WithoutAuthority
		r.trackFailing(now, reason)
	}

	return reason
}

// alarmClone alerts the operator that two processes use one identity, at most
// once per alarmInterval and node.
func (rs *reignState) alarmClone(now time.Duration, r *record, id ring.NodeID) {
	if now-r.lastAlarm >= alarmInterval {
		r.lastAlarm = now
		rs.alarm("two processes with the same identity ask for authority; the newer one is refused", id)
	}
}

// judge returns a refusal if the request can't be granted now, or else the zero
// Reply. It is called twice: when the request arrives, and again before it is
// granted.
func (rs *reignState) judge(s *agreement.State, q *Request) Reply {
	r := rs.recordOf(s, q.Node)
	switch {
	case r == nil:
		return Reply{Reason: reasonBusy}
	case q.Boot != r.boot:
		return Reply{Reason: reasonReplaced}
	case r.gaveUp:
		return Reply{Reason: reasonGaveUp}
	case r.ending || r.endProposed:
		return Reply{Reason: reasonEnding}
	case r.bootProposed:
		return Reply{Reason: reasonReplacing}
	case q.Stuck:
		return Reply{Reason: reasonStuck}
	case q.Applied < s.LastEnded:
		return Reply{Reason: reasonMissedEnd, Index: s.LastEnded}
	case q.Applied < s.Processes[q.Node].Index:
		return Reply{Reason: reasonBootBehind, Index: s.Processes[q.Node].Index}
	case q.Applied < rs.floor:
		return Reply{Reason: reasonRules, Index: rs.floor}
	case q.Generation != s.Generation(q.Node):
		return Reply{Reason: reasonGeneration}
	}

	return Reply{}
}

// grant judges the request again, after the confirmation, and grants or refuses
// it. It records the time of a grant before the reply is sent.
func (rs *reignState) grant(now time.Duration, s *agreement.State, q *Request) Reply {
	reply := rs.judge(s, q)
	if reply.Reason == "" {
		rs.records[q.Node].lastGranted = now
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
	for _, r := range rs.records {
		if r.applied < index && !rs.hasExpired(now, r) {
			return false
		}
	}
	rs.floor = max(rs.floor, index)
	return true
}

// clocks returns the clocks by which the region decides windows: the earliest
// that a node that may have authority has last reported, and the latest that any
// node has reported to this leader. They are unknown while nodes may have
// authority from an earlier leader, or if a node has reported none.
func (rs *reignState) clocks(now time.Duration) Clocks {
	if now-rs.reignBegan < EndingWait {
		return Clocks{}
	}

	earliest := int64(math.MaxInt64)
	for _, r := range rs.records {
		if !rs.hasExpired(now, r) {
			earliest = min(earliest, r.clock)
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
		r := rs.records[id]
		if r != nil && r.applied >= index {
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
