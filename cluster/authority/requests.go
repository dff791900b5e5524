package authority

import (
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// handleRequest records a request. It returns a refusal, or a reply without a reason if the request may be granted once this
// node's lead is confirmed.
func (l *ledger) handleRequest(now time.Duration, s *agreement.State, q *Request) Reply {
	switch {
	case q.Node.IsZero() || q.Boot == 0:
		return Reply{Why: whyNoBoot}
	case !q.withinBounds():
		return Reply{Why: whyTooLarge}
	case s.WasRemoved(q.Boot):
		return Reply{Why: whyRemoved, Removed: true}
	}
	r := l.record(s, q.Node)
	switch {
	case r == nil:
		return Reply{Why: whyBusy}
	case q.Boot != r.boot:
		return Reply{Why: l.handleOtherProcess(now, s, r, q)}
	}
	r.lastAsked = now
	r.leaving, r.withoutAuthority = q.Leaving, q.Without
	r.unreachable, r.relayed = q.Unreachable, q.Relayed
	if q.Generation == s.Generation(q.Node) {
		r.settled, r.applied = q.Settled, q.Applied
	}
	if q.GivingUp {
		r.gaveUp = true
	}
	reply := l.judge(s, q)
	r.trackFailing(now, reply.Why)
	return reply
}

// trackFailing records whether the node asks without success, given the reason for the refusal, or "" if there is none. Only
// reasons of the node's own count, and grants that have not given it authority.
func (r *record) trackFailing(now time.Duration, why string) {
	switch why {
	case whyEnding:
		return
	case whyStuck, whyLevel, whyBehind, whyBootBehind, whyRules, whyGeneration:
	case "":
		if r.lastGranted == never {
			r.withoutAuthority = 0
		}
	default:
		r.withoutAuthority = 0
	}
	switch {
	case r.withoutAuthority == 0:
		r.failingSince = never
	case r.failingSince == never:
		r.failingSince = now
	}
}

// knownLevel returns the newest feature level that the asking process knows.
func (r *Request) knownLevel() agreement.Level { return max(1, r.Level) }

// handleOtherProcess records a request from a process that is not the registered one. It returns the reason for refusing the
// request.
func (l *ledger) handleOtherProcess(now time.Duration, s *agreement.State, r *record, q *Request) string {
	switch {
	case q.GivingUp:
		return whyGaveUp
	case s.Boots[q.Node].WasFormer(q.Boot):
		return whyReplaced
	case q.Node == l.self && q.Boot != l.boot:
		l.alarmClone(now, r, q.Node)
		return whyClone
	}
	if r.nextBoot != q.Boot {
		r.nextBoot, r.nextSince = q.Boot, now
	}
	r.nextAsked = now
	if r.lastAsked > r.nextSince && now-r.lastAsked < silencePatience {
		l.alarmClone(now, r, q.Node)
		return whyClone
	}
	low := q.knownLevel() < s.Level
	r.nextUnfit = q.Stuck || low
	r.nextBuild = agreement.Boot{Level: q.Level, Release: q.Release, Zones: q.Zones}
	why := whyRegister
	switch {
	case q.Stuck:
		why = whyStuck
	case low:
		why = whyLevel
	}
	if l.silence(now, r.lastAsked) >= silencePatience {
		r.withoutAuthority = q.Without
		r.trackFailing(now, why)
	}
	return why
}

// alarmClone alerts the operator that two processes use one identity, at most once per alarmInterval and node.
func (l *ledger) alarmClone(now time.Duration, r *record, id ring.NodeID) {
	if now-r.lastAlarm >= alarmInterval {
		r.lastAlarm = now
		l.alarm("two processes with the same identity ask for authority; the newer one is refused", id)
	}
}

// judge returns a refusal if the request can't be granted now, or else the zero Reply. It is called twice: when the request
// arrives, and again before it is granted.
func (l *ledger) judge(s *agreement.State, q *Request) Reply {
	r := l.record(s, q.Node)
	switch {
	case r == nil:
		return Reply{Why: whyBusy}
	case q.Boot != r.boot:
		return Reply{Why: whyReplaced}
	case r.gaveUp:
		return Reply{Why: whyGaveUp}
	case r.ending || r.endProposed:
		return Reply{Why: whyEnding}
	case r.bootProposed:
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

// grant judges the request again, after the confirmation, and grants or refuses it. It records the time of a grant before
// the reply is sent.
func (l *ledger) grant(now time.Duration, s *agreement.State, q *Request) Reply {
	reply := l.judge(s, q)
	if reply.Why == "" {
		l.records[q.Node].lastGranted = now
		reply = Reply{Granted: true, Index: s.Index}
	}
	return reply
}

// requireApplied reports whether every node that may have authority has applied index. If so, it raises the floor, so that
// this stays true. It returns false while nodes may have authority from an earlier leader, because they may not have asked
// this one yet.
func (l *ledger) requireApplied(now time.Duration, index uint64) bool {
	if now-l.reignBegan < EndingWait {
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

// appliedByMajority reports whether a majority of the ring has applied index, or there is no ring.
func (l *ledger) appliedByMajority(s *agreement.State, index uint64) bool {
	members, have := s.To.Members(), 0
	for _, id := range members {
		if r := l.records[id]; r != nil && r.applied >= index {
			have++
		}
	}
	return 2*have > len(members) || len(members) == 0
}

// raiseFloor raises the floor to the newest rules, once every node that may have authority has applied them, or rulesGrace
// after a majority of the ring has.
func (l *ledger) raiseFloor(v *view) {
	if v.rulesIndex > l.floor && !l.requireApplied(v.now, v.rulesIndex) && l.appliedByMajority(v.state, v.rulesIndex) &&
		(len(l.pendingFloors) == 0 || l.pendingFloors[len(l.pendingFloors)-1].index < v.rulesIndex) {
		l.pendingFloors = append(l.pendingFloors, pendingFloor{v.rulesIndex, v.now})
	}
	for len(l.pendingFloors) > 0 && (l.pendingFloors[0].index <= l.floor || v.now-l.pendingFloors[0].at >= rulesGrace) {
		l.floor = max(l.floor, l.pendingFloors[0].index)
		l.pendingFloors = l.pendingFloors[1:]
	}
}
