package localcache

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/counters"
)

// endAll ends all grants of le.
func (ls *Leases) endAll(sh *leaseShard, le *lease, now time.Duration) {
	for len(le.grants) > 0 {
		ls.endFirst(sh, le, now)
	}
}

// returnPause is how long after a grant ends DrainEnded hands out what is left.
// Until then, checks that spent from the grant may still be in progress. If
// another limit refuses them, they put their cost back.
const returnPause = 10 * time.Millisecond

// endFirst ends the first grant of le and keeps what is left of it for DrainEnded.
func (ls *Leases) endFirst(sh *leaseShard, le *lease, now time.Duration) {
	gr := le.grants[0]
	out := EndedGrant{Source: le.source, Grant: gr.id, Life: gr.life, DebitedAt: gr.debitedAt,
		Until: gr.until, due: now + returnPause}
	for i := range le.limits {
		ll := &le.limits[i]
		key := counters.Key{Subject: le.subject, Counter: ll.counter}
		out.Ops = append(out.Ops, counters.Op{Key: key, Limit: ll.limit, Cost: gr.parts[i].left})
		out.Marks = append(out.Marks, gr.parts[i].mark)
	}

	ls.grantCount.Add(-1)
	le.grants = slices.Delete(le.grants, 0, 1)
	le.nextRenewal = 0
	sh.ended = append(sh.ended, out)
	ls.wakeBy(out.due)
}

// takeDue moves the ended grants that are due to buf, and returns when the next one is due.
func (sh *leaseShard) takeDue(now time.Duration, buf []EndedGrant) ([]EndedGrant, time.Duration) {
	next := never
	kept := sh.ended[:0]
	for _, eg := range sh.ended {
		switch {
		case eg.due > now:
			kept = append(kept, eg)
			next = min(next, eg.due)
		case slices.ContainsFunc(eg.Ops, func(op counters.Op) bool { return op.Cost > 0 }):
			buf = append(buf, eg)
		}
	}

	// Otherwise the rest of the array would keep memory of grants alive.
	clear(sh.ended[len(kept):])
	sh.ended = kept
	return buf, next
}

// Wake signals that DrainEnded must be called earlier than NextDrain said.
func (ls *Leases) Wake() <-chan struct{} { return ls.wake }

// NextDrain returns when to call DrainEnded unless Wake signals before that.
func (ls *Leases) NextDrain() time.Duration { return time.Duration(ls.alarm.Load()) }

// DrainEnded appends to buf the grants that have ended with something left. The
// caller must give each back, once. DrainEnded also forgets subjects that were
// not used for a while.
func (ls *Leases) DrainEnded(now time.Duration, buf []EndedGrant) []EndedGrant {
	// The alarm is reset before the shards are read. So if a grant becomes due in a
	// shard that was already read, it sets the alarm and signals. setAlarm below
	// can only move the alarm to an earlier time.
	ls.alarm.Store(int64(never))

	next := never
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()

		for len(sh.queue) > 0 && sh.queue[0].due <= now {
			ls.expire(sh, sh.queue[0], now)
		}
		if len(sh.queue) > 0 {
			next = min(next, sh.queue[0].due)
		}

		var due time.Duration
		buf, due = sh.takeDue(now, buf)
		next = min(next, due)

		sh.mu.Unlock()
	}

	ls.setAlarm(next)
	return buf
}

// expire ends the grants of le whose time is over. It removes le if it has no
// grants and was not used for keepFor.
func (ls *Leases) expire(sh *leaseShard, le *lease, now time.Duration) {
	for len(le.grants) > 0 && now >= le.grants[0].until {
		ls.endFirst(sh, le, now)
	}
	if len(le.grants) == 0 && now >= le.lastUsed+le.keepFor {
		sh.removeLease(le)
		return
	}
	ls.schedule(sh, le)

	// The second grant ended before the first. Both end, because grants end in
	// order. What is left of the first goes back, too, and costs only a question.
	if le.due <= now {
		ls.endAll(sh, le, now)
		ls.schedule(sh, le)
	}
}

// SetEnabled sets whether leases may begin. If enabled is false, it also ends all
// leases, and DrainEnded then hands out what is left of them.
func (ls *Leases) SetEnabled(now time.Duration, enabled bool) {
	ls.disabled.Store(!enabled)
	if enabled {
		return
	}
	for i := range ls.shards {
		sh := &ls.shards[i]
		sh.mu.Lock()
		for _, le := range sh.queue {
			ls.endAll(sh, le, now-returnPause) // without the pause: a check that puts its cost back later loses it
			le.lastRefusal = refusal{}
		}
		sh.mu.Unlock()
	}
}
