package partitions

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// Absence is why an owner does not decide.
type Absence uint8

// Reasons for an owner's absence.
const (
	Unreachable Absence = iota // this node can't reach it
	Powerless                  // it answered that it has no authority
)

// Act decides ops in place of an owner that can't: as its standby or, during a move, as the node that handed the
// partition over. It decides from the copy here and within shares, which are the limits cut down to what one node may
// spend (a share with Amount 0 allows nothing). It returns Shut if this node must not act. All ops must be of partitions
// with the same owner.
func (k *Keeper) Act(now algorithms.Now, ops []counters.Op, shares []algorithms.Limit, why Absence) counters.Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.mayAct(ops, why) {
		return counters.Shut
	}
	within := make([]counters.Op, len(ops))
	for i := range ops {
		within[i] = ops[i]
		within[i].Limit = &shares[i]
		if shares[i].Amount < 1 && !ops[i].Shadow && ops[i].Cost > 0 {
			return counters.Shut
		}
		if shares[i].Amount < 1 {
			within[i].Limit = ops[i].Limit
		}
	}
	if v := k.shares.Take(now, within); v != counters.Admitted {
		for i := range ops {
			ops[i].Decision, ops[i].Full = within[i].Decision, within[i].Full
		}
		return v
	}
	verdict := k.cfg.Table.Act(now, ops)
	for i := range ops {
		op := &ops[i]
		from := takenNow(op.Limit, now)
		if verdict != counters.Admitted && op.Cost > 0 {
			_ = k.shares.Give(now, op.Key, within[i].Limit, within[i].Taken(now), op.Cost)
			continue
		}
		if op.Decision.Allowed && op.Cost > 0 {
			k.debts.owe(op, from, 0, false)
		}
		op.Decision.Remaining = min(op.Decision.Remaining, within[i].Decision.Remaining)
		op.Decision.Delay = max(op.Decision.Delay, within[i].Decision.Delay)
	}
	return verdict
}

// mayAct reports whether this node may act for the owner of ops. The caller holds mu.
func (k *Keeper) mayAct(ops []counters.Op, why Absence) bool {
	if len(ops) == 0 || k.debts.n+len(ops) > maxDebts || !k.cfg.Authority() {
		return false
	}
	v := k.view.Load()
	if !v.member {
		return false
	}
	for i := range ops {
		p := ring.PartitionOf(ops[i].Key.Hi)
		pt := &k.parts[p]
		if pt.phase != away && pt.phase != handed || !pt.whole || pt.source.IsZero() || pt.source == k.cfg.Self {
			return false
		}
		owner, other := v.Owner(p)
		if pt.phase == handed {
			owner, other = other, owner
		}
		// An owner that handed the token over is powerless too; then the other end decides.
		if owner == k.cfg.Self || k.cfg.Calls.Reachable(owner) && why != Powerless {
			return false
		}
		if pt.phase == away && other != owner && other != k.cfg.Self && k.cfg.Calls.Reachable(other) {
			return false
		}
	}
	return true
}

// takenNow describes a Take at now.
func takenNow(l *algorithms.Limit, now algorithms.Now) algorithms.Taken {
	return l.Taken(l.Advance(algorithms.State{}, now), now)
}
