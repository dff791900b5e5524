package partitions

import (
	"encoding/binary"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxDebts bounds the counters for which an owner that can't be reached has debts here. Where there is no room
	// for one more, this node doesn't act.
	maxDebts = 1 << 16
	// debtsTimeout is how long an owner may take to acknowledge its debts.
	debtsTimeout = 2 * time.Second
	// debtsPerMessage bounds a message of them.
	debtsPerMessage = 4096
)

// debt is what was admitted from one counter while acting for its owner.
type debt struct {
	limit algorithms.Limit
	taken algorithms.Taken // of the last of it
	cost  int64
	// replaced: the owner has pushed the counter since, so what is here does not have the debt in it any more.
	replaced bool
}

// debts holds them by counter. Invariant: at most maxDebts.
type debts map[counters.Key]*debt

// drop forgets the debts of partition p: they have become its own history.
func (d debts) drop(p int) {
	for key := range d {
		if ring.PartitionOf(key.Hi) == p {
			delete(d, key)
		}
	}
}

// Absence is why an owner does not decide.
type Absence uint8

// The ways of an owner to be absent.
const (
	Unreachable Absence = iota // it can't be reached from here
	Powerless                  // it was asked, and said that it has no authority
)

// keepDebts is for a partition whose token has come here: the debts have become this node's own history, but for those
// that the owner's pushes have taken out of it.
func (k *Keeper) keepDebts(p int) {
	now := k.cfg.Now()
	for key, d := range k.debts {
		if ring.PartitionOf(key.Hi) != p {
			continue
		}
		if d.replaced {
			if err := k.cfg.Table.Force(now, key, &d.limit, d.taken, d.cost); err != nil {
				k.cfg.Logger.Warn("a debt is lost", "partition", p, "error", err)
			}
		}
		delete(k.debts, key)
	}
}

// Act decides ops as a standby whose owner does not: from the copy here, and within shares, which are the
// limits cut down to what one node may spend (an Amount of 0 is no share at all). The answer is Shut where this node
// has no business to act. All ops are of partitions whose owner is the same.
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
			_ = k.shares.Give(now, op.Key, within[i].Limit, takenNow(within[i].Limit, now), op.Cost)
			continue
		}
		if op.Decision.Allowed && op.Cost > 0 {
			k.owe(op, from)
		}
		op.Decision.Remaining = min(op.Decision.Remaining, within[i].Decision.Remaining)
	}
	if verdict == counters.Admitted {
		k.stats.Acted++
	}
	return verdict
}

// mayAct reports whether this node may act for the owner of ops.
func (k *Keeper) mayAct(ops []counters.Op, why Absence) bool {
	if len(ops) == 0 || len(k.debts)+len(ops) > maxDebts || !k.cfg.Authority() {
		return false
	}
	v := k.view.Load()
	if !v.member {
		return false
	}
	for i := range ops {
		p := ring.PartitionOf(ops[i].Key.Hi)
		pt := &k.parts[p]
		from, to := v.Owner(p)
		if pt.phase != away || !pt.whole || pt.source.IsZero() || pt.source == k.cfg.Self {
			return false
		}
		for _, owner := range [...]ring.NodeID{from, to} {
			if owner == k.cfg.Self || why == Unreachable && k.cfg.Calls.Reachable(owner) {
				return false
			}
		}
	}
	return true
}

func (k *Keeper) owe(op *counters.Op, from algorithms.Taken) {
	d := k.debts[op.Key]
	if d == nil {
		d = &debt{}
		k.debts[op.Key] = d
	}
	if d.taken.Window != from.Window && op.Limit.Kind == algorithms.FixedWindow {
		d.cost = 0 // of a window that is over
	}
	d.limit, d.taken = *op.Limit, from
	// Nobody is to be locked out for longer than it takes to get the capacity back.
	d.cost = min(d.cost+op.Cost, op.Limit.Capacity())
}

// takenNow describes a Take at now.
func takenNow(l *algorithms.Limit, now algorithms.Now) algorithms.Taken {
	return l.Taken(l.Advance(algorithms.State{}, now), now)
}

// payment is a message about debts.
type payment struct {
	body  []byte
	keys  []counters.Key
	costs []int64
}

// payDebts tells owners that can be reached again what was admitted meanwhile. A debt is told until it is
// acknowledged: telling it twice costs quota, losing it would make some. It runs in the loop.
func (k *Keeper) payDebts() {
	v := k.view.Load()
	now := k.cfg.Now()
	payments := map[ring.NodeID]*payment{}
	k.mu.Lock()
	for key, d := range k.debts {
		p := ring.PartitionOf(key.Hi)
		owner, to := v.Owner(p)
		if owner != to && k.learned[p].Load() == v.Revision {
			owner = to
		}
		if owner == k.cfg.Self || k.paying[owner] || !k.ready(owner) {
			continue
		}
		pay := payments[owner]
		if pay == nil {
			pay = &payment{body: k.appendHeader(nil, 0)}
			payments[owner] = pay
		}
		if len(pay.keys) < debtsPerMessage {
			pay.body = appendDebt(pay.body, key, d, now)
			pay.keys, pay.costs = append(pay.keys, key), append(pay.costs, d.cost)
		}
	}
	for owner := range payments {
		k.paying[owner] = true
	}
	k.mu.Unlock()
	for owner, pay := range payments {
		k.cfg.Calls.Go(owner, MethodDebts, pay.body, debtsTimeout, func(reply []byte, err error) {
			r := reader{b: reply}
			refused := r.indexes(len(pay.keys))
			if err == nil {
				err = r.err
			}
			k.paid(owner, pay, refused, err)
		})
	}
}

// paid takes note of the debts that an owner has taken; refused are the places of those that it has not.
func (k *Keeper) paid(owner ring.NodeID, pay *payment, refused map[int]bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.paying, owner)
	if err != nil || len(refused) > 0 {
		k.failed(owner)
	}
	if err != nil {
		return
	}
	for i, key := range pay.keys {
		if d := k.debts[key]; d != nil && !refused[i] {
			if d.cost -= pay.costs[i]; d.cost <= 0 {
				delete(k.debts, key)
			}
		}
	}
}

func appendDebt(b []byte, key counters.Key, d *debt, now algorithms.Now) []byte {
	b = binary.LittleEndian.AppendUint64(b, key.Hi)
	b = binary.LittleEndian.AppendUint64(b, key.Lo)
	b = appendLimit(b, &d.limit)
	b = binary.AppendUvarint(b, uint64(max(0, now.Steady-d.taken.Steady)))
	b = binary.AppendVarint(b, d.taken.Window)
	return binary.AppendUvarint(b, uint64(d.cost))
}

// takeDebts debits what a standby admitted while this node could not be reached, and answers with the places of what
// it can't: counters that are not its own.
func (k *Keeper) takeDebts(c *peer.Call, r *reader) {
	now := k.cfg.Now()
	var refused []byte
	n := 0
	for i := uint64(0); r.err == nil && len(r.b) > 0; i++ {
		key := counters.Key{Hi: r.uint64(), Lo: r.uint64()}
		limit, age, window, cost := r.limit(), r.uvarint(), r.varint(), r.uvarint()
		if r.err != nil {
			break
		}
		taken := algorithms.Taken{
			Steady: now.Steady - int64(min(age, 1<<62)), Window: window, Amount: limit.Amount, Burst: limit.Burst,
		}
		if err := k.cfg.Table.Force(now, key, &limit, taken, int64(min(cost, algorithms.MaxAmount))); err != nil {
			refused = binary.AppendUvarint(refused, i)
			n++
		}
	}
	if r.err != nil {
		c.Fail(codeMalformed, r.err.Error())
		return
	}
	c.Reply(append(binary.AppendUvarint(nil, uint64(n)), refused...))
}
