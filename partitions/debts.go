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
	// replaced: the owner has pushed the counter since, or the copy was dropped, so what is here does not have the debt
	// in it any more.
	replaced bool
}

// debts holds them by partition and counter. Invariant: n is how many there are, at most maxDebts.
type debts struct {
	of map[int]map[counters.Key]*debt
	n  int
}

func (d *debts) get(key counters.Key) *debt { return d.of[ring.PartitionOf(key.Hi)][key] }

// at returns the debt of a counter, an empty one if there was none.
func (d *debts) at(key counters.Key) *debt {
	if have := d.get(key); have != nil {
		return have
	}
	p := ring.PartitionOf(key.Hi)
	if d.of == nil {
		d.of = map[int]map[counters.Key]*debt{}
	}
	if d.of[p] == nil {
		d.of[p] = map[counters.Key]*debt{}
	}
	d.of[p][key] = &debt{}
	d.n++
	return d.of[p][key]
}

func (d *debts) remove(key counters.Key) {
	p := ring.PartitionOf(key.Hi)
	if d.of[p][key] == nil {
		return
	}
	delete(d.of[p], key)
	if len(d.of[p]) == 0 {
		delete(d.of, p)
	}
	d.n--
}

// replace takes note that the copy of p was dropped.
func (d *debts) replace(p int) {
	for _, one := range d.of[p] {
		one.replaced = true
	}
}

func (k *Keeper) owe(op *counters.Op, from algorithms.Taken) {
	d := k.debts.at(op.Key)
	if d.taken.Window != from.Window && op.Limit.Kind == algorithms.FixedWindow {
		d.cost = 0 // of a window that is over
	}
	d.limit, d.taken, d.replaced = *op.Limit, from, d.replaced && d.cost > 0
	// Nobody is to be locked out for longer than it takes to get the capacity back.
	d.cost = min(d.cost+op.Cost, op.Limit.Capacity())
}

// keepDebts is for a partition whose token has come here: the debts have become this node's own history, but for those
// that the owner's pushes have taken out of it.
func (k *Keeper) keepDebts(p int) {
	now := k.cfg.Now()
	for key, d := range k.debts.of[p] {
		if d.replaced {
			if err := k.cfg.Table.Force(now, key, &d.limit, d.taken, d.cost); err != nil {
				k.cfg.Logger.Warn("a debt is lost", "partition", p, "error", err)
			}
		}
		k.debts.remove(key)
	}
}

// giveDebts is for a partition whose copy is given back to an owner that lost its memory, and the debts with it, but
// for those that are not in it.
func (k *Keeper) giveDebts(p int) {
	for key, d := range k.debts.of[p] {
		if !d.replaced {
			k.debts.remove(key)
		}
	}
}

// payment is a message about debts.
type payment struct {
	body  []byte
	keys  []counters.Key
	costs []int64
	taken []algorithms.Taken
}

// add adds debts, as many as fit in.
func (p *payment) add(list map[counters.Key]*debt, now algorithms.Now) {
	for key, d := range list {
		if len(p.keys) >= debtsPerMessage {
			return
		}
		p.body = appendDebt(p.body, key, d, now)
		p.keys, p.costs, p.taken = append(p.keys, key), append(p.costs, d.cost), append(p.taken, d.taken)
	}
}

// payDebts tells owners that can be reached again what was admitted meanwhile. A debt is told until it is
// acknowledged: telling it twice costs quota, losing it would make some. It runs in the loop.
func (k *Keeper) payDebts() {
	v := k.view.Load()
	now := k.cfg.Now()
	payments := map[ring.NodeID]*payment{}
	k.mu.Lock()
	for p, list := range k.debts.of {
		owner, to := v.Owner(p)
		if owner != to && k.learned[p].Load() == v.Revision {
			owner = to
		}
		if owner == k.cfg.Self || k.paying[owner] || !k.ready(owner) {
			continue
		}
		if payments[owner] == nil {
			payments[owner] = &payment{body: k.appendHeader(nil, 0)}
		}
		payments[owner].add(list, now)
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
		d := k.debts.get(key)
		if d == nil || refused[i] || d.limit.Kind == algorithms.FixedWindow && d.taken.Window != pay.taken[i].Window {
			continue // what was paid was of a window that is over, and is not in it any more
		}
		if d.cost -= pay.costs[i]; d.cost <= 0 {
			k.debts.remove(key)
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
