package simulation

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
)

// maxDebts bounds the debts that a process keeps.
const maxDebts = 1 << 16

// debt is the cost that a node admitted of a counter in the owner's absence.
type debt struct {
	limit      algorithms.Limit
	taken      algorithms.TakeRecord
	cost       int64
	absent     bool // this node's own counters don't include the cost
	paymentDue bool
}

// DecideAsStandby implements limiter.Ownership; see [partitions.Keeper.DecideAsStandby].
func (p *process) DecideAsStandby(now algorithms.Instant, ops []counters.Op, shares []algorithms.Limit, problem partitions.OwnerProblem) counters.Verdict {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()

	if !p.mayActAsStandby(ops, problem) {
		return counters.Shut
	}

	within := append([]counters.Op(nil), ops...)
	for i := range within {
		if shares[i].Amount < 1 && ops[i].Cost > 0 {
			return counters.Shut
		}
		if shares[i].Amount >= 1 {
			within[i].Limit = &shares[i]
		}
	}

	if v := p.shares.Take(now, within); v != counters.Admitted {
		for i := range ops {
			ops[i].Decision, ops[i].Full = within[i].Decision, within[i].Full
		}
		return v
	}

	verdict := p.table.TakeUngated(now, ops)
	for i := range ops {
		op := &ops[i]
		if verdict != counters.Admitted && op.Cost > 0 {
			taken := within[i].TakeRecord()
			taken.Fastest = within[i].Limit.Amount
			_ = p.shares.GiveBack(now, op.Key, within[i].Limit, taken, op.Cost, p.shares.Life(op.Key.Partition()))
			continue
		}

		if op.Decision.Allowed && op.Cost > 0 {
			p.addDebt(op, now, false)
			if i, known := w.subjectByKey[op.Key]; known {
				w.ledger.StandbyActs = append(w.ledger.StandbyActs, StandbyAct{At: w.since(now), Node: p.index, Subject: i, Cost: op.Cost, Share: p.ownShare(&w.ledger.Subjects[i])})
			}
		}

		op.Decision.Remaining = min(op.Decision.Remaining, within[i].Decision.Remaining)
	}

	return verdict
}

func (p *process) mayActAsStandby(ops []counters.Op, problem partitions.OwnerProblem) bool {
	w := p.w
	if len(p.debts)+len(ops) > maxDebts || !p.hasAuthority() {
		return false
	}

	for i := range ops {
		q := ops[i].Key.Partition()
		from, to := indexOf(p.view.from.Owner(q)), indexOf(p.view.to.Owner(q))

		if p.phases[q] != away || !p.copies[q].whole {
			return false
		}

		for _, owner := range [...]int{from, to} {
			if owner == p.index || w.net.reachable(w.now(), p.index, owner) && !(problem == partitions.WithoutAuthority && owner == from) {
				return false
			}
		}
	}

	return true
}

// DecideAlone implements limiter.Ownership. If this node has the counters or a complete copy, they must admit the cost, too.
func (p *process) DecideAlone(now algorithms.Instant, ops []counters.Op) counters.Verdict {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()

	var counted []counters.Op
	for i := range ops {
		if op := &ops[i]; p.hasCounters(op.Key.Partition()) {
			counted = append(counted, *op)
		} else {
			op.Decision = op.Limit.Peek(algorithms.State{}, now, op.Cost)
		}
	}

	verdict := counters.Admitted
	if len(counted) > 0 {
		verdict = p.table.TakeUngated(now, counted)
	}

	for i := range ops {
		op := &ops[i]
		here := p.hasCounters(op.Key.Partition())
		if here {
			op.Decision, op.Full = counted[0].Decision, counted[0].Full
			counted = counted[1:]
		}
		if verdict == counters.Admitted && op.Decision.Allowed && op.Cost > 0 && len(p.debts) < maxDebts {
			p.addDebt(op, now, !here)
		}
	}

	return verdict
}

func (p *process) hasCounters(q int) bool {
	return p.phases[q] == held || p.phases[q] == away && p.copies[q].whole
}

// ForgiveDebt implements limiter.Ownership.
func (p *process) ForgiveDebt(_ algorithms.Instant, op *counters.Op) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if d := p.debts[op.Key]; d != nil {
		d.cost = max(0, d.cost-op.Cost)
	}
}

// addDebt records a debt and schedules its payment in one to two seconds.
func (p *process) addDebt(op *counters.Op, now algorithms.Instant, absent bool) {
	from := takeRecordNow(op.Limit, now)
	d := p.debts[op.Key]
	if d == nil {
		d = &debt{absent: absent}
		p.debts[op.Key] = d
	}

	if d.taken.Window != from.Window && op.Limit.Kind == algorithms.FixedWindow {
		d.cost = 0 // that of an earlier window
	}

	d.limit = *op.Limit
	d.taken = from
	d.absent = d.absent || absent
	d.cost = min(d.cost+op.Cost, op.Limit.Capacity())
	p.schedulePayment(op.Key, d)
}

// schedulePayment pays a debt later, and tries again until the owner can be reached.
func (p *process) schedulePayment(key counters.Key, d *debt) {
	if d.paymentDue {
		return
	}
	d.paymentDue = true
	p.w.after(p.w.randomDelay(time.Second, 2*time.Second), func() {
		d.paymentDue = false
		if p.alive && p.debts[key] == d && d.cost > 0 && !p.payDebt(key, d) {
			p.schedulePayment(key, d)
		}
	})
}

// payDebt debits a debt at its owner and reports whether it succeeded.
func (p *process) payDebt(key counters.Key, d *debt) bool {
	w := p.w
	q := key.Partition()
	h := w.holders[q]
	owner := w.nodes[h.node].process
	now := w.now()
	if !owner.alive || owner.phases[q] != held || owner != p && (w.net.blocked(now, p.index, h.node) || w.net.blocked(now, h.node, p.index)) {
		return false
	}

	if owner != p || d.absent {
		if !owner.table.IsOpen(q) || owner.table.ForceCapped(w.clock.Now(), key, &d.limit, d.taken, d.cost) != nil {
			return false
		}
		owner.schedulePushLocked()
	}

	delete(p.debts, key)
	w.ledger.Counts.Debts++
	return true
}

// markDebtsAbsent records that the copy of q was replaced by one that does not include the debts.
func (p *process) markDebtsAbsent(q int) {
	for key, d := range p.debts {
		if key.Partition() == q {
			d.absent = true
		}
	}
}

// absorbDebts makes the debts of q, whose token has come here, part of this node's own counters.
func (p *process) absorbDebts(q int) {
	for key, d := range p.debts {
		if key.Partition() != q {
			continue
		}
		if d.absent && d.cost > 0 {
			_ = p.table.ForceCapped(p.w.clock.Now(), key, &d.limit, d.taken, d.cost)
		}
		delete(p.debts, key)
	}
}

// dropCopiedDebts drops the debts of q that were in the copy this node gave back.
func (p *process) dropCopiedDebts(q int) {
	for key, d := range p.debts {
		if key.Partition() == q && !d.absent {
			delete(p.debts, key)
		}
	}
}

// takeRecordNow returns the TakeRecord of a Take at now.
func takeRecordNow(l *algorithms.Limit, now algorithms.Instant) algorithms.TakeRecord {
	return l.TakeRecord(l.Advance(algorithms.State{}, now), now)
}
