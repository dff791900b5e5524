package counters

import (
	"math"
	"math/bits"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/ring"
)

const (
	shardTarget = 16384   // approximate counters per shard when the table is at its bound
	minShards   = 64      // fewer only if a shard would hold fewer than shardTarget/128 counters
	maxShards   = 1 << 14 // beyond this, shards grow instead
	// minLogEntries is the lowest bound on the total entries of all logs: a few
	// logs of maximum size.
	minLogEntries = 4 * algorithms.MaxLogEntries
	// minLogShare is the number of entries that a log may always hold before it
	// must become coarser.
	minLogShare = 16
	// refusedFullness is the Record.Fullness of a counter whose last check was refused.
	refusedFullness = math.MaxUint8
)

// Table holds counters. All methods may be called concurrently.
type Table struct {
	shards      []shard
	hints       []groupsHint // of the shards, by index
	shift       uint         // Key.Subject >> shift is the shard
	maxCounters int64
	drawSize    int // room that a shard draws from the budget at a time
	// maxSubtableSlots bounds the slots of a subtable; a larger one is split.
	maxSubtableSlots int

	maxLogEntries int64
	maxInline     int         // per shard, so that inline counters fill at most half of the table
	replicated    atomic.Bool // partitions were copied or replicated, so replicas must receive resets
	gates         gates
	notes         *notes.Store
	// lineages[p] is the lineage that was given to the last Open of p.
	lineages      [ring.Partitions]atomic.Uint64
	outgrewCaches atomic.Bool // shards have drawn more than cachedCounters

	_           [64]byte // separates the fields that every Take reads from those that change constantly
	memory      memory
	logs        [numClasses]atomic.Int64
	logEntries  [numClasses]atomic.Int64
	sweepCursor atomic.Int64 // the shard that Sweep visited last
	drops       atomic.Int64 // see Drops
	aheadCount  atomic.Int64 // in all shards
	// budget is the number of counters that may still be added beyond the room that
	// shards have drawn. Invariant: budget, the room of all shards and the counters
	// in them add up to maxCounters.
	budget       atomic.Int64
	searchCursor atomic.Uint64 // the shard where the last search for room in other shards ended
	// noSearchUntil is when the next search may begin, after one that found no
	// room: steady nanoseconds.
	noSearchUntil [numClasses]atomic.Int64
}

// New returns an empty table for at most bound counters (at least 1), with all
// gates open. Inline counters fill at most half of it. Once the total number of
// log entries reaches bound, or 262,144 if that is more, a growing log that
// exceeds its fair share becomes coarser.
func New(bound int64) *Table {
	bound = max(bound, 1)
	n := int64(1)
	for n < maxShards && (bound/n > shardTarget || n < minShards && bound/n > shardTarget/128) {
		n *= 2
	}

	t := &Table{
		shards:        make([]shard, n),
		hints:         make([]groupsHint, n),
		shift:         uint(64 - bits.TrailingZeros64(uint64(n))),
		maxCounters:   bound,
		maxLogEntries: max(bound, minLogEntries),
		maxInline:     int(max(bound/n/2, 1)),
		notes:         notes.New(notes.DefaultReservations),
	}
	for p := range t.lineages {
		t.lineages[p].Store(soleLineage)
	}

	// This is small enough that at most a 32nd of the bound sits idle in shards that don't need it.
	t.drawSize = int(min(max(bound/n/64, 1), 64))
	t.maxSubtableSlots = 2 * shardTarget
	t.budget.Store(bound)

	// At the bound, there is one subtable for each shard or, if that is more, as
	// many as are needed if each is half full, as after a split. Some more are
	// needed while subtables grow.
	subtables := max(n, 2*bound/int64(t.maxSubtableSlots))
	t.memory.init(int(subtables+subtables/8+8), os.Getpagesize())

	for i := range t.shards {
		s := &t.shards[i]
		s.table = t
		s.hint = &t.hints[i]
		s.single.shard = s
	}

	return t
}

// soleLineage is the lineage of the counters of a table whose gates were never shut.
const soleLineage = 1

// Notes returns the notes that are kept with the table's counters.
func (t *Table) Notes() *notes.Store { return t.notes }

// Close frees the table's memory and leaves it empty.
func (t *Table) Close() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()

		s.forEachLocked(func(sub *subtable) {
			for k := range sub.logs {
				t.dropLog(s, k)
			}

			// dropLog has already returned the room of the logs.
			s.room += sub.live
			sub.releaseAll()
		})

		s.subtables = nil
		s.unsaved = 0
		s.unsent = 0
		s.aheadClocks = nil

		t.budget.Add(int64(s.room))
		s.room = 0
		s.inline = 0
		s.mu.Unlock()
	}
}

func (t *Table) shardOf(k Key) *shard { return &t.shards[t.shardIndex(k)] }

// shardIndex also works for a single shard: shifting by 64 gives 0.
func (t *Table) shardIndex(k Key) int { return int(k.Subject >> t.shift) }

// lock locks the shard of k. It also returns now, moved up to the latest time
// that the shard has seen, on the clock of the partition: use it from then on.
func (t *Table) lock(now algorithms.Instant, k Key) (*shard, algorithms.Instant) {
	s := t.shardOf(k)
	s.mu.Lock()
	return s, s.timeIn(k.Partition(), s.advance(now))
}

// Take debits all of ops, or none if any op that is not Shadow refuses. It sets
// each op's Decision and returns the verdict. In a refused check, the
// limits that would have allowed their cost report what remains without it. If a
// gate is shut, Take decides nothing. No two ops may have the same Key. A
// refusal begins the blocks of its subject.
func (t *Table) Take(now algorithms.Instant, ops []Op) Verdict {
	if len(ops) == 1 {
		s := t.shardOf(ops[0].Key)
		s.mu.Lock()
		now = s.advance(now)
		v := Admitted
		if !t.takeOne(s, now, &ops[0]) {
			v = t.take(now, ops, nil, true)
		}
		s.mu.Unlock()
		return v
	}

	// All limits of a rule and subject lie in one shard, so most checks end
	// here and need no list of shards.
	if s := t.soleShard(ops); s != nil {
		s.mu.Lock()
		v := t.take(s.advance(now), ops, nil, true)
		s.mu.Unlock()
		return v
	}

	return t.lockAndTake(now, ops, nil, true)
}

// TakeUngated is Take without the gate check, for a standby or for a node that
// decides alone.
func (t *Table) TakeUngated(now algorithms.Instant, ops []Op) Verdict {
	return t.lockAndTake(now, ops, nil, false)
}

// lockAndTake is take for a caller that holds no shard.
func (t *Table) lockAndTake(now algorithms.Instant, ops []Op, holder *Holder, gated bool) Verdict {
	var buf [16]int
	held, now := t.lockShards(now, ops, buf[:0])
	v := t.take(now, ops, holder, gated)
	t.unlockShards(held)
	return v
}

// takeOne does what take does for the usual check: a single op that an existing
// counter admits. Otherwise it returns false, and the op is still to be
// decided. The caller must hold s, the shard of op.
//
// Most checks end here, so this path is short: a plain token bucket in the first
// group of its search needs hardly any calls. While a counter comes from memory,
// the processor executes a few hundred instructions ahead. If the caller's next
// check is among them, the two counters come at the same time.
func (t *Table) takeOne(s *shard, now algorithms.Instant, op *Op) bool {
	l := op.Limit
	d := &op.Decision

	// Blocks are left out here, because their ops have a cost of 0. Slots are left
	// out below, because the search finds no counter.
	if op.Mode != CheckMode || op.Cost == 0 || op.Lends || l.Kind == algorithms.SlidingLog ||
		t.gates.isShut(op.Key.Partition()) {
		return false
	}

	sub := s.subtableOf(op.Key)
	if len(sub.groups) == 0 {
		return false
	}

	i := s.firstGroup(sub, op.Key)
	slot := sub.groups[i].slotOf(op.Key)
	if slot < 0 {
		at := sub.indexOf(op.Key)
		if at < 0 {
			return false
		}
		i, slot = at/groupSlots, at%groupSlots
	}

	g := &sub.groups[i]

	// Only windows need their partition's clock: a lead moves Wall alone, and a
	// plain bucket drains by Steady.
	op.At = now
	if !l.IsPlain() || !g.takePlain(slot, now, op) {
		if s.aheadClocks != nil {
			op.At = s.timeIn(op.Key.Partition(), now)
		}

		state, allowed := l.Take(g.records[slot].state, op.At, op.Cost)
		if !allowed {
			return false
		}

		op.state, op.Full = state, false
		l.DescribeInto(d, state, op.At, op.Cost, true)
		g.set(slot, l.Kind, state, fullnessAfterCheck(l, d), freshAt(op.At, l, d.ResetAfter))
	}

	if !g.isDirty(slot, allReaders) {
		s.markDirty(sub.locationAt(i*groupSlots+slot), allReaders)
	}

	op.returnedOrLeft = 0
	if l.Kind.IsBucket() && t.notes.HasRates(op.Key.Partition()) {
		op.returnedOrLeft = t.recordTake(now, op.Key, l)
	}

	return true
}

// takePlain takes op's cost from its plain token bucket. If the bucket refuses
// it, or needs more computation, takePlain returns false and changes nothing.
func (g *group) takePlain(slot int, now algorithms.Instant, op *Op) bool {
	l := op.Limit
	d := &op.Decision
	state, ok := l.DrainQuickly(g.records[slot].state, now.Steady)
	if !ok {
		state = l.Advance(g.records[slot].state, now)
		if state.At != now.Steady { // the state is ahead of the clock
			return false
		}
	}

	state.Count += op.Cost
	used := state.Owed()
	reset, ok := l.ResetQuickly(state)
	if !ok || used > l.Burst {
		return false
	}

	op.state, op.Full = state, false
	d.Allowed = true
	d.Remaining = l.Burst - used
	d.Used = used
	d.RetryAfter = 0
	d.ResetAfter = reset
	d.Delay = 0
	d.MoreAfter = l.MoreQuickly(state)
	fullness := min(algorithms.Fullness(d.Remaining, l.Burst), refusedFullness-1) // as fullnessAfterCheck
	g.set(slot, algorithms.TokenBucket, state, fullness, freshAtSteady(now.Steady, reset))

	return true
}

// take decides ops and, if they are admitted, debits them. If gated, it decides
// nothing while a gate is shut. The caller must hold the shards of ops. holder
// holds the slots that ops acquire; it is nil if they acquire none.
func (t *Table) take(now algorithms.Instant, ops []Op, holder *Holder, gated bool) Verdict {
	// The gates are read under the locks: Shut waits for their holders, so it
	// returns only once this check is decided.
	if gated && t.gates.anyShut(ops) {
		return Shut
	}

	blocks := false
	for i := range ops {
		op := &ops[i]
		s := t.shardOf(op.Key)
		t.decideOp(s, now, op)
		if op.isSlot() {
			t.adjustForHolder(op, holder)
			continue
		}

		// Room is made before anything is stored, so that the whole check can still
		// be refused for want of it. Room for the counters that earlier ops are about
		// to add is reserved.
		if op.addsCounter() && !t.makeRoom(s, op.Key, now.Steady, t.countAdded(s, ops[:i]), ops) {
			s.refuseForRoom(op, now.Steady)
		}
		// A count that is refused is stored by commit.
		if !op.Decision.Allowed && op.location.found() && (op.Mode != CountMode || op.Block) {
			s.protectRefused(op)
		}

		blocks = blocks || op.Block
	}

	// A refusal begins blocks. They begin before admitOrWithdraw, which withdraws
	// what the refused check would have taken.
	if blocks {
		t.beginBlocks(ops, true)
	}

	if !t.admitOrWithdraw(ops) {
		return Refused
	}

	for i := range ops {
		if ops[i].isSlot() {
			t.commitSlot(&ops[i], holder)
		} else {
			t.commit(&ops[i])
		}
	}

	return Admitted
}

// Peek decides as Take would, with Remaining as if the cost were taken, but takes nothing.
func (t *Table) Peek(now algorithms.Instant, ops []Op) Verdict {
	return t.peek(now, ops, true)
}

// PeekUngated is Peek without the gate check, for a node that decides alone.
func (t *Table) PeekUngated(now algorithms.Instant, ops []Op) Verdict {
	return t.peek(now, ops, false)
}

// peek decides ops without taking anything. If gated, it decides nothing while a gate is shut.
func (t *Table) peek(now algorithms.Instant, ops []Op, gated bool) Verdict {
	var buf [16]int
	held, now := t.lockShards(now, ops, buf[:0])
	defer t.unlockShards(held)

	if gated && t.gates.anyShut(ops) {
		return Shut
	}
	for i := range ops {
		t.decideOp(t.shardOf(ops[i].Key), now, &ops[i])
	}
	t.beginBlocks(ops, false)
	if !t.admitOrWithdraw(ops) {
		return Refused
	}
	return Admitted
}

// soleShard returns the shard that all of ops share, as in a check of one
// subject. It returns nil if ops is empty or spans several shards.
func (t *Table) soleShard(ops []Op) *shard {
	if len(ops) == 0 {
		return nil
	}
	n := t.shardIndex(ops[0].Key)
	for i := 1; i < len(ops); i++ {
		if t.shardIndex(ops[i].Key) != n {
			return nil
		}
	}
	return &t.shards[n]
}

// lockShards locks the shards of ops, in ascending order so that concurrent
// checks never deadlock. It also returns the time at which the check takes
// place: the latest that any of them has seen.
func (t *Table) lockShards(now algorithms.Instant, ops []Op, held []int) ([]int, algorithms.Instant) {
	for i := range ops {
		n := t.shardIndex(ops[i].Key)
		if at, dup := slices.BinarySearch(held, n); !dup {
			held = slices.Insert(held, at, n)
		}
	}
	for _, n := range held {
		t.shards[n].mu.Lock()
		now = t.shards[n].advance(now)
	}

	// The clock moves in all shards that are held. Each is about to store counters
	// as of this time, and no later check may be decided by an earlier time.
	for _, n := range held {
		t.shards[n].latest = now
	}
	return held, now
}

func (t *Table) unlockShards(held []int) {
	for _, n := range held {
		t.shards[n].mu.Unlock()
	}
}

// decideOp finds op's counter and decides op. The caller must hold the shard s.
func (t *Table) decideOp(s *shard, now algorithms.Instant, op *Op) {
	op.Full = false
	op.At = s.timeIn(op.Key.Partition(), now)
	switch op.Limit.Kind {
	case algorithms.SlidingLog:
		t.decideLog(s, op)
		return
	case algorithms.Concurrency:
		t.decideSlot(op)
		return
	}

	var allowed bool
	op.location = s.subtableOf(op.Key).find(op.Key)
	if op.Block {
		op.state, allowed = op.Limit.Take(op.location.state(), op.At, 1)
		op.decideBlock(allowed)
		return
	}

	op.state, allowed = op.Limit.Take(op.location.state(), op.At, op.Cost)
	if !allowed && op.Mode == CountMode {
		op.state = op.Limit.Force(op.state, op.Limit.TakeRecord(op.state, op.At), op.At, op.Cost)
	}
	op.Limit.DescribeInto(&op.Decision, op.state, op.At, op.Cost, allowed)
	if op.Lends {
		s.leaveOutLoans(op.At, op, op.state)
	}
}

// refuseForRoom refuses an op of a new subject because there is no room.
func (s *shard) refuseForRoom(op *Op, steady int64) {
	s.refused[op.Key.class()]++
	wait := time.Second // retry once another search may have found room
	freeAt := s.subtableOf(op.Key).full[op.Key.class()].freeAt
	if freeAt < math.MaxInt64 {
		wait = time.Duration(min(max(1, freeAt-steady/1e9), int64(algorithms.MaxWindow/time.Second))) * time.Second
	}
	op.Full = true
	op.Decision = algorithms.Decision{RetryAfter: wait, ResetAfter: wait}
}

// addsCounter reports whether op, already decided, adds a new counter to the
// table if its check is admitted.
func (op *Op) addsCounter() bool { return !op.isSlot() && op.Took() && !op.location.found() }

// countAdded returns how many counters ops add to s.
func (t *Table) countAdded(s *shard, ops []Op) (n int) {
	for i := range ops {
		if ops[i].addsCounter() && t.shardOf(ops[i].Key) == s {
			n++
		}
	}
	return n
}

// admitOrWithdraw reports whether ops as a whole are allowed. If not, it
// withdraws the ops that would have been allowed.
func (t *Table) admitOrWithdraw(ops []Op) bool {
	for i := range ops {
		if ops[i].Refuses() {
			t.describeUntaken(ops)
			return false
		}
	}
	return true
}

// decideLog is decideOp for a log. Only commit changes the log.
func (t *Table) decideLog(s *shard, op *Op) {
	op.location = location{index: -1, log: s.log(op.Key)}
	var fresh algorithms.Log
	log := &fresh
	if op.location.log != nil {
		log = &op.location.log.log
	}
	before := log.Len()
	op.Decision = log.Peek(op.Limit, op.At, op.Cost)

	// Looking drops the entries that have left the window.
	if log.Len() != before {
		t.logEntries[op.Key.class()].Add(int64(log.Len() - before))
	}
}

// commit stores the outcome of decideOp. A Shadow limit that refuses takes
// nothing, and neither does a cost of 0.
func (t *Table) commit(op *Op) {
	if !op.Took() {
		return
	}

	s := t.shardOf(op.Key)
	if op.Limit.Kind == algorithms.SlidingLog {
		t.changeLog(s, op.Key, op.At, op.Limit, func(g *algorithms.Log, now algorithms.Instant) {
			if op.Decision.Allowed {
				g.Take(op.Limit, now, op.Cost)
				return
			}
			g.Force(op.Limit, algorithms.TakeRecord{Steady: now.Steady}, now, op.Cost)
			op.Decision = g.Describe(op.Limit, now, op.Cost, false)
		})
		return
	}

	// The counter is looked up again if the subtable has moved: other ops of this
	// check may have grown it, or freed memory that it was moved to.
	loc := op.location
	if !loc.found() || loc.moves != loc.subtable.moves {
		loc = s.find(op.Key)
		if !loc.found() {
			loc = s.insert(op.Key)
		}
	}

	fullness := uint8(refusedFullness)
	if op.Decision.Allowed {
		fullness = fullnessAfterCheck(op.Limit, &op.Decision)
	}

	s.store(loc, op.Limit, op.state, fullness, freshAt(op.At, op.Limit, op.Decision.ResetAfter))
	op.returnedOrLeft = 0
	if op.Limit.Kind.IsBucket() && t.notes.HasRates(op.Key.Partition()) {
		op.returnedOrLeft = t.recordTake(op.At, op.Key, op.Limit)
	}
}

// describeUntaken corrects the decisions of a refused check: an op that would have
// taken its cost now reports what is left without it.
func (t *Table) describeUntaken(ops []Op) {
	for i := range ops {
		op := &ops[i]
		if op.Cost == 0 || !op.Decision.Allowed && op.Mode != CountMode {
			continue
		}

		s := t.shardOf(op.Key)
		cost := int64(0)
		if !op.Decision.Allowed {
			cost = op.Cost // CountMode would have taken it: describe the refusal instead
		}

		if op.isSlot() {
			op.Decision = op.Limit.Peek(op.state, op.At, cost)
			continue
		}

		// op.state includes the cost, which was not taken. The table still has the
		// state without it.
		if op.Limit.Kind != algorithms.SlidingLog {
			state := s.find(op.Key).state()
			op.Decision = op.Limit.Peek(state, op.At, cost)
			if op.Lends {
				s.leaveOutLoans(op.At, op, state)
			}
			continue
		}

		var fresh algorithms.Log
		log := &fresh
		if op.location.log != nil {
			log = &op.location.log.log
		}

		op.Decision = log.Peek(op.Limit, op.At, cost)
	}
}

// store puts a counter's new state into its slot, and marks it as changed.
func (s *shard) store(loc location, l *algorithms.Limit, state algorithms.State, fullness uint8, freshAt uint32) {
	loc.group().set(loc.slot(), l.Kind, state, fullness, freshAt)
	s.markDirty(loc, allReaders)
}

// protectRefused keeps a counter from being evicted while it refuses, unless it
// could never allow that cost. It also raises the expiry: the limit may have
// changed since the counter was stored.
func (s *shard) protectRefused(op *Op) {
	// If there is no capacity now, as in a region without a share, there may be some later.
	refusing := op.Decision.RetryAfter != algorithms.Never || op.Limit.Capacity() == 0
	fresh := freshAt(op.At, op.Limit, op.Decision.ResetAfter)
	if e := op.location.log; e != nil {
		if refusing {
			e.kindFullness = packKindFullness(algorithms.SlidingLog, refusedFullness)
		}
		e.freshAt = max(e.freshAt, fresh)
		return
	}

	g, slot := op.location.group(), op.location.slot()
	if refusing {
		g.kindFullnesses[slot] = packKindFullness(op.Limit.Kind, refusedFullness)
	}
	// The bucket drains at the rate of op's limit from now on. If the new state
	// were not kept, the old rate would apply until a check is admitted.
	otherRate := op.Mode == CheckMode && op.Limit.ChangesRate(g.records[slot].state, op.state)
	if otherRate {
		g.records[slot].state = op.state
		s.table.recordTake(op.At, op.Key, op.Limit)
	}

	// The counter is marked as changed only if it is protected for longer, or its
	// rate has changed. Otherwise each of a flood of refusals would be sent to
	// standbys and written to disk.
	if fresh > g.freshAt[slot] {
		g.freshAt[slot] = fresh
	} else if !otherRate {
		return
	}
	s.markDirty(op.location, allReaders)
}

// fullnessAfterCheck returns a counter's fullness after an allowed check. A
// counter that delays checks counts as refusing. A window widened by loans
// counts as almost full, because evicting its counter would lose what other
// regions lent to it.
func fullnessAfterCheck(l *algorithms.Limit, d *algorithms.Decision) uint8 {
	if d.Delay > 0 && l.MaxDelay > 0 {
		return refusedFullness
	}
	if l.Kind == algorithms.FixedWindow && d.Remaining > l.Capacity() {
		return refusedFullness - 1
	}
	return min(algorithms.Fullness(d.Remaining, l.Capacity()), refusedFullness-1)
}

// freshAt returns when a counter that resets after resetAfter equals a fresh
// one, in whole steady-clock seconds, rounded up. One extra second keeps the
// counter for clock readings that arrive late. Wall-clock windows are kept a
// 63rd longer: while the wall clock is being slewed, it loses up to a 64th of
// its pace, and the windows end that much later.
func freshAt(now algorithms.Instant, l *algorithms.Limit, resetAfter time.Duration) uint32 {
	if !l.Kind.OnSteadyClock() {
		resetAfter = min(resetAfter, math.MaxInt64/2) // the addition can't overflow
		resetAfter += resetAfter / 63
	}
	return freshAtSteady(now.Steady, resetAfter)
}

// freshAtSteady is freshAt for a time that passes on the steady clock, of which
// steady is the reading.
func freshAtSteady(steady int64, resetAfter time.Duration) uint32 {
	return uint32(min((uint64(max(steady, 0))+uint64(resetAfter)+1e9-1)/1e9+1, math.MaxUint32))
}
