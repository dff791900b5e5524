package partitions

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxDebts bounds the counters for which an owner that can't be reached has debts here. Where there is no room
	// for one more, this node doesn't act.
	maxDebts = 1 << 16
	// maxAlone is how many there may be for those of a fallback still to be added: the rest is for acting. Beyond it the
	// check is decided all the same, and its debt dropped.
	maxAlone = maxDebts / 4 * 3
	// contactPause is from when an owner is back to when it is told what was admitted in fallback, at least; at most it
	// is twice as long. All nodes have something to tell it then, and it has its standbys to bring up to date.
	contactPause = time.Second
	// debtsCheck is from one search for debts that nobody needs to be told any more to the next.
	debtsCheck = 10 * time.Second
	// debtsTimeout is how long an owner may take to acknowledge its debts.
	debtsTimeout = 2 * time.Second
	// debtsBackup is how long an owner waits until its standbys have debts that it was told of. It is below debtsTimeout.
	debtsBackup = time.Second
	// maxBackups bounds the messages about debts that wait for standbys; one more is turned away, and comes again.
	maxBackups = 64
	// debtsPerMessage bounds a message of them.
	debtsPerMessage = 4096
)

// debt is what was admitted from one counter without its owner: while acting for it, and in fallback.
type debt struct {
	limit algorithms.Limit
	taken algorithms.Taken // of the last of it
	cost  int64            // at most as much of it as the capacity is ever debited: see due
	// absent is how much of cost the counter here does not have in it: because there was none, or because the owner has
	// pushed it since, or the copy was dropped. Invariant: 0 <= absent <= cost.
	absent int64
	waits  bool // nothing of it comes from acting: it is told a while after the owner is back
	// sealed is how much of cost is in seals. Invariant: 0 <= sealed <= cost.
	sealed int64
	// former: an earlier process noted it. What the counters here have in them then may be lost when they are joined
	// with a copy, so whoever goes on from them debits all of it.
	former bool
}

// due is what is debited of cost. Nobody is to be locked out for longer than it takes to get the capacity back.
func (d *debt) due(cost int64) int64 { return min(cost, d.limit.Capacity()) }

// missing is how much of the debt whoever goes on from the counters here debits, of which somebody has debited so much in them.
func (d *debt) missing(there int64) int64 {
	if d.former {
		return max(0, d.cost-there)
	}
	return d.absent
}

// over reports whether the debt would drain or leave its window before anyone could be told.
func (d *debt) over(now algorithms.Now) bool {
	return lasts(&d.limit, d.taken, d.due(d.cost), now) <= 0
}

// lasts is how long it takes until nothing is left of a cost that was debited as of from.
func lasts(l *algorithms.Limit, from algorithms.Taken, cost int64, now algorithms.Now) time.Duration {
	if l.Kind == algorithms.SlidingLog {
		return l.Window - time.Duration(now.Steady-from.Steady)
	}
	s := algorithms.State{Count: cost, At: from.Window}
	if l.Kind.Bucket() {
		s.At = from.Steady
	}
	if s = l.Advance(s, now); s.Fresh() {
		return 0
	}
	return max(1, l.Describe(s, now, 0, true).ResetAfter)
}

// replaceOne takes note that the counter here was replaced.
func (d *debts) replaceOne(key counters.Key) {
	if one := d.get(key); one != nil {
		one.absent = one.cost
		d.changes++
	}
}

// add adds a cost of which the counter here has all or nothing.
func (d *debt) add(op *counters.Op, from algorithms.Taken, absent int64) {
	if d.taken.Window != from.Window && op.Limit.Kind == algorithms.FixedWindow {
		d.cost, d.absent, d.sealed = 0, 0, 0 // of a window that is over
	}
	d.limit, d.taken = *op.Limit, from
	d.cost = min(d.cost+op.Cost, maxOwed)
	d.absent = min(d.absent+absent, d.cost)
}

// maxOwed keeps sums from overflowing.
const maxOwed = 1 << 60

// debts holds them by partition and counter. Invariant: n is how many there are, at most maxDebts.
type debts struct {
	of      map[int]map[counters.Key]*debt
	seals   map[int][]*seal // by partition that has debts, in the order of their numbers
	numbers uint64          // given so far
	n       int
	changes uint64 // so that they are written down only when there is something new
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
	d.changes++
	delete(d.of[p], key)
	if len(d.of[p]) == 0 {
		delete(d.of, p)
		delete(d.seals, p)
	}
	d.n--
}

// replace takes note that the copy of p was dropped.
func (d *debts) replace(p int) {
	for _, one := range d.of[p] {
		one.absent = one.cost
	}
	for _, s := range d.seals[p] {
		s.present = false
	}
	d.changes++
}

// owe notes what was admitted while acting, and is in the copy here.
func (k *Keeper) owe(op *counters.Op, from algorithms.Taken) {
	d := k.debts.at(op.Key)
	d.waits = false
	d.add(op, from, 0)
	k.debts.changes++
}

// keepDebts is for a partition whose token is here: the debts have become this node's own history, but for what is not
// in the counters here.
func (k *Keeper) keepDebts(p int) {
	now := k.cfg.Now()
	there := k.there(p, now)
	for key, d := range k.debts.of[p] {
		if cost := d.missing(there[key]); cost > 0 {
			if err := k.cfg.Table.Oblige(now, key, &d.limit, d.taken, d.due(cost)); err != nil {
				k.cfg.Logger.Warn("a debt is lost", "partition", p, "error", err)
			}
		}
		k.debts.remove(key)
	}
}

// payment is a message about debts.
type payment struct {
	body    []byte
	seals   []*seal
	entries int
}

// add adds what is to be told of a partition, if there is room for it.
func (p *payment) add(seals []*seal, now algorithms.Now) {
	for _, s := range seals {
		if p.entries > 0 && p.entries+len(s.entries) > debtsPerMessage {
			return // the seals of a partition are told in order
		}
		s.told = true
		p.body = s.append(p.body, now)
		p.seals, p.entries = append(p.seals, s), p.entries+len(s.entries)
	}
}

// payDebts tells owners that can be reached again what was admitted meanwhile, until they acknowledge it. It runs in the
// loop.
func (k *Keeper) payDebts() {
	v := k.view.Load()
	now := k.cfg.Now()
	payments := map[ring.NodeID]*payment{}
	k.mu.Lock()
	k.forgetDebts(now)
	for p := range k.debts.of {
		owner, to := v.Owner(p)
		if owner != to && (k.learned[p].Load() == v.Revision || k.parts[p].phase == handed) {
			owner = to
		}
		if k.parts[p].phase == held {
			// This node was cut off and has its authority back, with all of its counters.
			if k.cfg.Authority() {
				k.keepDebts(p)
			}
			continue
		}
		waiting := k.tooSoon(owner)
		if owner.IsZero() || owner == k.cfg.Self || k.paying[owner] || !v.member || !k.ready(owner) {
			continue
		}
		if k.debts.reopen(p); len(k.debts.seals[p]) == 0 {
			k.seal(v, p, waiting)
		}
		if payments[owner] == nil {
			payments[owner] = &payment{body: k.appendHeader(nil, 0)}
		}
		payments[owner].add(k.debts.seals[p], now)
	}
	for owner, pay := range payments {
		if len(pay.seals) == 0 {
			delete(payments, owner)
			continue
		}
		k.paying[owner] = true
	}
	k.mu.Unlock()
	for owner, pay := range payments {
		k.cfg.Calls.Go(owner, MethodDebts, pay.body, debtsTimeout, func(reply []byte, err error) {
			d := wire.NewDecoder(reply)
			refused, full := decodePlaces(d, len(pay.seals)), decodePlaces(d, pay.entries)
			if err == nil {
				err = d.Done("answer to debts")
			}
			k.paid(owner, pay, refused, full, err)
		})
	}
}

// tooSoon reports whether an owner is away, or not back for long enough to be told about fallbacks. It is called under
// mu.
func (k *Keeper) tooSoon(owner ring.NodeID) bool {
	if !k.cfg.Calls.Reachable(owner) {
		delete(k.contact, owner)
		return true
	}
	at, known := k.contact[owner]
	if !known {
		at = time.Now().Add(contactPause + rand.N(contactPause))
		k.contact[owner] = at
	}
	return time.Now().Before(at)
}

// forgetDebts forgets those that are over, now and then: of a cut that lasts, only the end matters. It is called under
// mu.
func (k *Keeper) forgetDebts(now algorithms.Now) {
	if k.debts.n == 0 {
		clear(k.contact) // of the next cut nothing is known yet
		return
	}
	if time.Since(k.checked) < debtsCheck {
		return
	}
	k.checked = time.Now()
	k.debts.prune(now)
	for _, list := range k.debts.of {
		for key, d := range list {
			if d.over(now) {
				k.debts.remove(key)
			}
		}
	}
}

// paid takes note of what an owner has taken; refused are the places of the seals that it has not, full those of single
// debts for which it has no room.
func (k *Keeper) paid(owner ring.NodeID, pay *payment, refused, full map[int]bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.paying, owner)
	if err != nil || len(refused)+len(full) > 0 {
		k.failed(owner)
	}
	if err != nil {
		return
	}
	place := 0
	for i, s := range pay.seals {
		if !refused[i] {
			k.debts.settled(s, func(j int) bool { return !full[place+j] })
		}
		place += len(s.entries)
	}
}

func appendDebt(b []byte, key counters.Key, l *algorithms.Limit, from algorithms.Taken, cost int64, now algorithms.Now) []byte {
	b = l.Append(counters.AppendKey(b, key), 0)
	b = binary.AppendUvarint(b, uint64(max(0, now.Steady-from.Steady)))
	b = binary.AppendVarint(b, from.Window)
	return binary.AppendUvarint(b, uint64(cost))
}

// decodeDebt reads what appendDebt wrote so many nanoseconds ago.
func decodeDebt(d *wire.Decoder, now algorithms.Now, passed int64) sealed {
	e := sealed{key: counters.DecodeKey(d)}
	e.limit.Decode(d, 0)
	age, window := int64(min(d.Uvarint(), 1<<61)), d.Varint()
	e.cost = int64(min(d.Uvarint(), maxOwed))
	e.taken = algorithms.Taken{
		Steady: now.Steady - (age + passed), Window: window, Amount: e.limit.Amount, Burst: e.limit.Burst,
	}
	return e
}

// takeDebts debits what others admitted while this node could not be reached, and answers with the places of what it
// can't: counters that are not its own. Without authority it takes none: if it is ended, they would be forgotten. Who is
// answered forgets them, so the standbys have to have them first; those that can't be reached are not waited for. A node
// whose copies are asked for tells what is in them, and is not answered: another copy may take the place of what is here.
func (k *Keeper) takeDebts(c *peer.Call, d *wire.Decoder) {
	joins := k.gets(c.From.Node)
	if !k.cfg.Authority() && !joins {
		c.Fail(codeRefused, "this node has no authority")
		return
	}
	if k.backups.Add(1) > maxBackups {
		k.backups.Add(-1)
		c.Fail(codeRefused, "too many debts at once")
		return
	}
	generation := k.view.Load().Generation(k.cfg.Self)
	now := k.cfg.Now()
	var refused, full []int
	touched, left := map[int]bool{}, map[int]bool{}
	entries := 0
	for i := 0; d.More(); i++ {
		s := decodeSeal(d, now, 0)
		if d.Failed() {
			break
		}
		p, none := s.partition, []int(nil)
		if !left[p] {
			none, touched[p] = k.debit(c.From.Node, s, now, joins)
		}
		if !touched[p] || left[p] {
			left[p], refused = true, append(refused, i) // what is told after it must not be noted before it
		}
		for _, j := range none {
			full = append(full, entries+j)
		}
		entries += len(s.entries)
	}
	if d.Failed() {
		k.backups.Add(-1)
		c.Fail(codeMalformed, d.Err().Error())
		return
	}
	if joins {
		k.backups.Add(-1)
		c.Fail(codeBusy, "copies are being joined")
		return
	}
	k.done.Go(func() {
		defer k.backups.Add(-1)
		k.backUp(touched)
		// A node that was ended meanwhile has forgotten them, and others go on without.
		if k.ctx.Err() != nil || !k.cfg.Authority() || k.view.Load().Generation(k.cfg.Self) != generation {
			c.Fail(codeRefused, "this node has no authority any more")
			return
		}
		c.Reply(appendPartitions(appendPartitions(nil, refused), full))
	})
}
