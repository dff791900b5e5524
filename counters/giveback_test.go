package counters

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/ring"
)

var (
	giveBackHistories = flag.Int("giveback-histories", 2000, "random histories of give-backs; make models has more")
	giveBackSeed      = flag.Uint64("giveback-seed", 1,
		"seed of the first random history of give-backs; 0: from the clock")
	giveBackTrace = flag.Bool("giveback-trace", false, "print what happens in the histories of give-backs")
)

// Whatever comes back, whenever and wherever: a counter admits no more than if
// what came back had never been taken.
//
// With any of these taken out, it fails, within 2,000 histories unless another number is said:
//   - the comparison of lineages, or of resets, in isAlive; the floor of resets that are forgotten (12,000);
//   - the comparison of windows in Limit.Give, of the current one and of the one before (12,000), and of a log's;
//   - of a first-hit window, that the cost was taken since it began;
//   - of a bucket, the highest rate, from its note and in Limit.Give; what else was put back, in its note, when a place is
//     made, and in Limit.Give; that it does not drain by a limit from before;
//   - that a settlement is repeated, or over if its place is gone in the same lineage;
//   - the notes in a copy, in changes for a standby, and in a checkpoint; the clock that a partition follows;
//   - that a grant gives nothing back to a bucket if rates have changed and no note knows them (12,000);
//   - that debts from before a reset are dropped; that a note may be younger than a cost (100,000).
//
// It has not seen the loss of another one: that a note of what was put back is
// kept longer if something taken since depends on it.
func TestGiveBacksFreeNothing(t *testing.T) {
	seed := *giveBackSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e12
	}

	histories := *giveBackHistories
	if testing.Short() {
		histories /= 10
	}
	failed := 0
	for i := range uint64(histories) {
		h := newGiveBackHistory(seed + i)
		h.run()
		h.close()
		if h.why == "" {
			continue
		}
		failed++
		if failed <= 3 {
			t.Errorf("-giveback-seed %d -giveback-histories 1: %s", seed+i, h.why)
		}
	}
	t.Logf("%d of %d histories failed, from -giveback-seed %d on", failed, histories, seed)
}

// Bounds on how long something may be on its way back, and on how long a
// settlement is known after its reservation's end.
const (
	maxGrantTime     = 20 * time.Second
	maxRefundTime    = 10 * time.Second
	settlingMemory   = time.Minute
	maxReservation   = time.Hour
	giveBackSteps    = 90
	floodOfResets    = 60_000 // more than are remembered
	floodedHistories = 50     // one in so many has such a flood
)

// giveBackHistory is one random history of a partition's counters.
type giveBackHistory struct {
	random    *rand.Rand
	steady    int64
	partition int
	subjects  [][]*modelCounter
	// isInline says that callers bring their limits, and none of them knows what others bring.
	isInline  bool
	isFlooded bool

	owner   *historyNode
	standby *historyNode // nil if there is none
	others  []*historyNode
	lineage uint64
	places  uint64

	pending []*pendingCost
	settled map[uint64]int64 // what the owner knows: see historySnapshot
	why     string           // what was found
}

// historyNode is a node, or rather one process after the other.
type historyNode struct {
	table  *Table
	offset int64                  // of its wall clock from the steady one
	course algorithms.SlewedClock // of its wall clock
	copied historySnapshot        // what a standby has
	disk   map[diskKey]Record
	saved  historySnapshot // what the disk has
}

type diskKey struct {
	counter Key
	note    notes.Key
}

// historySnapshot is what a copy of the partition has.
type historySnapshot struct {
	at       algorithms.Instant // by the partition's clock
	counters map[Key]counterCopy
	settled  map[uint64]int64 // by the ID of a place: Unix seconds until which it is known
}

// purpose is why a cost may come back.
type purpose uint8

const (
	rolledBack purpose = iota // another limit refused the check
	granted                   // a lease did not spend all of it
	reserved
	undone // a reservation came to nothing
	numPurposes
	rest = numPurposes + 1 // of a reservation that was settled at its home
)

// pendingCost is what a check took from a subject, as long as it may come back.
type pendingCost struct {
	purpose purpose
	taken   []pendingOp
	life    Life
	steady  int64
	until   int64 // wall time
	place   Place
	// ends says that its end is to be carried out; used then says, by op, how much stays charged.
	ends      bool
	used      []int64
	hasEnded  bool
	settledAt int64 // of the rest of a reservation: when that was settled, in steady time
	late      bool  // that was after its end
	// others are the rest of a reservation, at other homes. They come back once it is settled.
	others  []*pendingCost
	settled bool
}

// pendingOp is a cost of one counter.
type pendingOp struct {
	counter *modelCounter
	limit   *algorithms.Limit // by which it was taken
	used    *usedCost
	from    algorithms.TakeRecord
	cost    int64
}

func newGiveBackHistory(seed uint64) *giveBackHistory {
	h := &giveBackHistory{random: rand.New(rand.NewPCG(seed, 0)), lineage: 1, settled: make(map[uint64]int64)}
	h.steady = epoch.Steady + h.random.Int64N(int64(time.Hour))
	h.isInline = h.random.IntN(8) == 0
	h.isFlooded = h.random.IntN(floodedHistories) == 0
	h.partition = int(h.random.Int64N(ring.Partitions - 1))
	// Half of the histories have one counter, of which more is known in the same time.
	kinds := allKinds
	if h.random.IntN(2) == 0 {
		kinds = []algorithms.Kind{algorithms.TokenBucket, algorithms.LeakyBucket}
	}
	isFocused := h.random.IntN(2) == 0
	for subject := range 1 + h.random.Uint64N(2) {
		if subject > 0 && isFocused {
			break
		}
		h.addSubject(uint64(h.partition)<<(64-ring.PartitionBits)+1+subject, kinds, isFocused)
	}

	for range 3 {
		n := &historyNode{table: New(1000), disk: make(map[diskKey]Record)}
		if h.random.IntN(2) == 0 {
			n.offset = h.random.Int64N(int64(time.Hour)) - int64(30*time.Minute)
		}
		n.course = algorithms.SlewedClock{Steady: h.steady, Wall: h.steady + n.offset}
		h.others = append(h.others, n)
	}
	h.owner = h.others[0]
	h.others = h.others[1:]
	return h
}

var historyWindows = []time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour}

// addSubject adds a subject with up to three limits of some algorithms, or with one.
func (h *giveBackHistory) addSubject(subject uint64, kinds []algorithms.Kind, isFocused bool) {
	limits := 1 + h.random.Uint64N(3)
	if isFocused {
		limits = 1
	}
	var list []*modelCounter
	for i := range limits {
		amount := 1 + h.random.Int64N(20)
		window := min(h.random.IntN(len(historyWindows)), h.random.IntN(len(historyWindows))) // rather a short one
		c := &modelCounter{
			key:   Key{Subject: subject, Counter: i},
			rates: []rateChange{{0, amount}},
			limit: &algorithms.Limit{
				Kind: kinds[h.random.IntN(len(kinds))], Amount: amount, Burst: 1 + h.random.Int64N(20),
				Window: historyWindows[window],
			},
		}
		if h.isInline {
			c.key.Counter = InlineCounter(c.key.Counter)
		}
		list = append(list, c)
	}
	h.subjects = append(h.subjects, list)
}

func (h *giveBackHistory) close() {
	h.owner.table.Close()
	for _, n := range h.others {
		n.table.Close()
	}
	if h.standby != nil {
		h.standby.table.Close()
	}
}

func (h *giveBackHistory) trace(format string, args ...any) {
	if *giveBackTrace {
		fmt.Printf("%v "+format+"\n", append([]any{time.Duration(h.steady - epoch.Steady)}, args...)...)
	}
}

func (h *giveBackHistory) fail(format string, args ...any) {
	if h.why == "" {
		h.why = fmt.Sprintf(format, args...)
	}
}

// read returns what the clock of n reads.
func (h *giveBackHistory) read(n *historyNode) algorithms.Instant {
	return algorithms.Instant{Steady: h.steady, Wall: n.course.At(h.steady)}
}

// now returns the owner's reading.
func (h *giveBackHistory) now() algorithms.Instant { return h.read(h.owner) }

// at returns the reading by which the owner counts.
func (h *giveBackHistory) at() algorithms.Instant {
	return algorithms.Instant{Steady: h.steady, Wall: h.owner.table.WallIn(h.now(), h.partition)}
}

// counters returns all counters.
func (h *giveBackHistory) counters() []*modelCounter { return slices.Concat(h.subjects...) }

// run does things at random until something is found.
func (h *giveBackHistory) run() {
	h.owner.table.Open(h.partition, h.lineage)
	for range giveBackSteps {
		h.step()
		h.judgeCharges()
		if h.why != "" {
			return
		}
	}
}

// step does one thing. Most of it is there to use up what something else has freed.
func (h *giveBackHistory) step() {
	switch n := h.random.IntN(100); {
	case n < 30:
		h.check(numPurposes)
	case n < 42:
		h.check([]purpose{rolledBack, granted, reserved, reserved, undone}[h.random.IntN(5)])
	case n < 55:
		h.comeBack()
	case n < 57:
		h.carryOut()
	case n < 76:
		h.pass()
	case n < 79:
		h.reset()
	case n < 82:
		h.adjust()
	case n < 84:
		h.debt()
	case n < 89:
		h.changeLimit()
	case n < 90:
		h.stepClock()
	case n < 92:
		h.saveChanges()
	case n < 94:
		h.replicate()
	case n < 96:
		h.handOver()
	case n < 97:
		h.promote()
	case n < 98:
		h.restart()
	default:
		h.sweep()
	}
}

// pass lets time pass.
func (h *giveBackHistory) pass() {
	c := h.anyCounter()
	window := int64(c.limit.Window)
	passed := int64(0)
	switch h.random.IntN(6) {
	case 0:
		passed = h.random.Int64N(4)
	case 1, 2, 3:
		passed = h.random.Int64N(window / 4)
	case 4:
		passed = h.random.Int64N(window)
	case 5:
		passed = h.random.Int64N(3 * window)
	}
	h.steady += passed
	h.trace("passed %v", time.Duration(passed))
}

func (h *giveBackHistory) anySubject() []*modelCounter {
	return h.subjects[h.random.IntN(len(h.subjects))]
}

func (h *giveBackHistory) anyCounter() *modelCounter {
	list := h.anySubject()
	return list[h.random.IntN(len(list))]
}

// check takes a cost from some limits of some subjects. Unless its purpose is
// numPurposes, it may come back.
func (h *giveBackHistory) check(why purpose) {
	subjects := h.subjects
	if h.random.IntN(3) > 0 {
		subjects = [][]*modelCounter{h.anySubject()}
	}

	var all []*modelCounter
	for _, list := range subjects {
		// One rule may have several limits; others are of an algorithm that was in force before.
		some := slices.Clone(list)
		h.random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		some = some[:1+h.random.IntN(len(some))]
		all = append(all, some...)
	}

	ops := make([]Op, len(all))
	for i, c := range all {
		if h.isInline && h.random.IntN(3) == 0 {
			h.setLimit(c)
		}
		ops[i] = Op{Key: c.key, Limit: c.limit}
	}
	h.chooseCosts(ops)

	life := h.owner.table.Life(h.partition)
	place := h.placeFor(why, ops)
	if why == reserved || why == undone {
		h.makePlaces(place, ops)
	}
	if h.owner.table.Take(h.now(), ops) != Admitted {
		h.owner.table.ForgetReservation(h.now(), place.Key, true, nil)
		for i := range ops {
			if ops[i].Limit.Kind == algorithms.CellBucket && !ops[i].Decision.Allowed {
				all[i].ask(h.at())
			}
		}
		return
	}
	h.record(why, all, ops, life, place)
}

// chooseCosts sets what a check asks for: often all that is left.
func (h *giveBackHistory) chooseCosts(ops []Op) {
	asksForAll := h.random.IntN(2) == 0
	for i := range ops {
		op := &ops[i]
		most := op.Limit.Capacity()
		if asksForAll {
			_, d := h.owner.table.Usage(h.now(), op.Key, op.Limit)
			op.Cost = max(1, d.Remaining)
			continue
		}
		op.Cost = 1 + h.random.Int64N(max(1, most/(1+h.random.Int64N(4))))
	}
}

func (h *giveBackHistory) placeFor(why purpose, ops []Op) Place {
	h.places++
	ttl := time.Second + time.Duration(h.random.Int64N(int64(10*time.Second)<<h.random.IntN(9)))
	ttl = min(ttl, maxReservation)
	return Place{
		Key:     notes.Key{Subject: ops[0].Key.Subject, ID: h.places, Kind: notes.Reservation},
		OpenFor: ttl, Until: (h.steady+int64(ttl+settlingMemory))/1e9 + 1 + notes.LateSettling,
	}
}

// makePlaces makes the place of a reservation at its home, and begins to record
// the rates of all its buckets.
func (h *giveBackHistory) makePlaces(place Place, ops []Op) {
	for _, own := range bySubject(ops) {
		p := place
		p.Key.Subject = own[0].Key.Subject
		err := h.owner.table.NoteReservation(h.now(), &p, p.Key == place.Key, own)
		if err != nil {
			h.fail("a place was refused: %v", err)
		}
	}
}

// bySubject splits ops by subject.
func bySubject(ops []Op) (list [][]Op) {
	for len(ops) > 0 {
		n := 1
		for n < len(ops) && ops[n].Key.Subject == ops[0].Key.Subject {
			n++
		}
		list = append(list, ops[:n])
		ops = ops[n:]
	}
	return list
}

// record records what a check took, and judges it.
func (h *giveBackHistory) record(why purpose, all []*modelCounter, ops []Op, life Life, place Place) {
	var list []*pendingCost
	for i := range ops {
		op := &ops[i]
		c := all[i]
		taken := op.TakeRecord()
		used, wrong := c.admit(op.At, op.state.At, op.Cost)
		h.trace("%v/%x.%d: admitted %d for %d, %d used", c.limit.Kind, c.key.Subject,
			op.Key.Counter, op.Cost, why, op.Decision.Used)
		if wrong != "" {
			h.fail("%s", wrong)
		}
		if i == 0 || ops[i-1].Key.Subject != op.Key.Subject {
			place.Key.Subject = op.Key.Subject
			until := h.now().Wall + int64(place.OpenFor)
			list = append(list, &pendingCost{purpose: why, life: life, steady: h.steady, until: until, place: place})
		}
		p := list[len(list)-1]
		p.taken = append(p.taken, pendingOp{c, op.Limit, used, taken, op.Cost})
	}

	switch why {
	case numPurposes:
	case reserved, undone:
		list[0].others = list[1:]
		h.pending = append(h.pending, list[0])
		if why == reserved && h.random.IntN(2) == 0 {
			h.arrangeEnd(list)
		}
	default:
		h.pending = append(h.pending, list...)
	}
}

// arrangeEnd decides what becomes of a reservation that nobody settles. list is
// what it took from each subject.
func (h *giveBackHistory) arrangeEnd(list []*pendingCost) {
	for _, p := range list {
		for i := range p.taken {
			p.used = append(p.used, h.random.Int64N(p.taken[i].cost+1)*int64(h.random.IntN(2)))
		}
	}
	list[0].ends = true
	if err := h.owner.table.SetExpiry(h.now(), &list[0].place, "end", false); err != nil {
		h.fail("an end was not arranged: %v", err)
	}
}

// carryOut carries out the ends that are due.
func (h *giveBackHistory) carryOut() {
	for _, n := range h.owner.table.Notes().TakeDue(h.now().Steady, 100) {
		i := slices.IndexFunc(h.pending,
			func(p *pendingCost) bool { return p.purpose == reserved && p.place.Key == n.Key })
		if i < 0 || !h.pending[i].ends {
			h.fail("an end of %v is due that nobody has asked for", n.Key)
			continue
		}
		h.end(h.pending[i])
	}
}

// end carries out the end of a reservation, perhaps again.
func (h *giveBackHistory) end(p *pendingCost) {
	s := h.settlementOf(p, p.used)
	s.CarriesOutEnd = true
	before := h.usage(p)
	outcome, err := h.owner.table.Settle(h.now(), s)
	h.trace("carried out %x.%v with %v: outcome %d, %v", p.place.Key.Subject,
		p.place.Key.ID, p.used, outcome, err)
	switch {
	case err != nil:
		h.fail("an end failed: %v", err)
	case outcome != Made:
		if after := h.usage(p); !slices.Equal(before, after) {
			h.fail("an end that was over changed %v to %v", before, after)
		}
	case h.settled[p.place.Key.ID] > h.steady/1e9, (p.settled || p.hasEnded) && s.SameLineage:
		h.fail("an end was carried out twice")
	default:
		p.hasEnded = true
		for i := range p.taken {
			h.noteReturn(&p.taken[i], &s.Changes[i].From, p.used[i], p.used[i] < p.taken[i].cost && s.Dropped == 0)
		}
		h.sendRest(p, s)
	}
}

// sendRest has the subjects of a reservation that have other homes get back
// what they should, once it was settled.
func (h *giveBackHistory) sendRest(p *pendingCost, s *SettlePlan) {
	if !s.SameLineage {
		return
	}
	for _, other := range p.others {
		sent := *other
		sent.purpose = rest
		sent.settledAt = h.steady
		sent.late = s.Late
		sent.taken = slices.Clone(other.taken)
		for i := range sent.taken {
			if s.HadEnded && p.ends {
				sent.taken[i].cost = other.used[i] // that is what is left
			}
		}
		sent.used = nil
		if s.CarriesOutEnd {
			sent.used = other.used
		}
		h.pending = append(h.pending, &sent)
	}
	if !s.CarriesOutEnd {
		p.others = nil
	}
}

// comeBack gives back a cost, or a part of it.
func (h *giveBackHistory) comeBack() {
	if len(h.pending) == 0 {
		return
	}
	i := h.random.IntN(len(h.pending))
	p := h.pending[i]
	if p.purpose == reserved && p.ends && h.random.IntN(4) == 0 {
		h.end(p) // asked for by another node, too early or again
		return
	}
	if p.purpose == reserved {
		h.settle(p)
		return
	}

	h.pending = slices.Delete(h.pending, i, i+1)
	if p.purpose == undone {
		h.owner.table.ForgetReservation(h.now(), p.place.Key, true, nil)
		h.pending = append(h.pending, p.others...)
	}
	for i := range p.taken {
		used := int64(0)
		switch {
		case p.used != nil:
			used = p.used[i]
		case p.purpose == granted || p.purpose == rest:
			used = h.random.Int64N(p.taken[i].cost + 1)
		}
		h.giveBack(p, &p.taken[i], used)
	}
}

// giveBack gives back what of a cost was not used.
func (h *giveBackHistory) giveBack(p *pendingCost, op *pendingOp, used int64) {
	longest := map[purpose]time.Duration{
		rolledBack: maxRefundTime, undone: maxRefundTime, granted: maxGrantTime,
	}
	isLate := h.steady-p.steady > int64(longest[p.purpose])
	if p.purpose == rest { // it was sent at once
		isLate = h.steady > p.settledAt+int64(maxRefundTime)
	}
	isAllowedFor := h.isInline && op.limit.Kind.IsBucket() && p.purpose != rest // in the bound of a bucket
	if isLate || isAllowedFor || used == op.cost {
		return
	}

	taken := h.fromOf(op)
	taken.Reserved = p.purpose == rest
	taken.Late = p.late
	err := h.owner.table.GiveBack(h.now(), op.counter.key, op.limit, taken, op.cost-used, p.life)
	h.trace("%v/%x.%d: gave back %d for %d: %v", op.limit.Kind, op.counter.key.Subject,
		op.counter.key.Counter, op.cost-used, p.purpose, err)
	if err != nil {
		taken.MaxRate = 0 // untouched
	}
	h.noteReturn(op, &taken, used, true)
}

// noteReturn tells the model that of a cost only so much was used, and by what
// the counter was touched. If rates have changed, a bucket does not drain by
// the one from before.
func (h *giveBackHistory) noteReturn(op *pendingOp, from *algorithms.TakeRecord, used int64, isCertain bool) {
	op.counter.giveBack(op.used, used)
	switch {
	case from.MaxRate == 0:
	case isCertain:
		op.counter.touch(h.at(), op.limit)
	default:
		op.counter.mayBeSwept = true // touched or not: any rate since then may drain it
	}
}

// fromOf returns what a limiter knows of a cost that comes back.
func (h *giveBackHistory) fromOf(op *pendingOp) algorithms.TakeRecord {
	taken := op.from
	if h.random.IntN(4) == 0 {
		taken.Steady -= h.random.Int64N(int64(time.Second)) // another process's clock, at the earliest
	}
	if op.limit.Kind == algorithms.SlidingLog {
		taken.Steady = op.from.Steady
	}
	if op.limit.Kind.IsBucket() && (h.isInline || op.counter.ratesChangedAt() < op.from.Steady) {
		taken.MaxRate = op.limit.Amount
	}
	return taken
}

// settlementOf returns the settlement of a reservation that used that much of each counter.
func (h *giveBackHistory) settlementOf(p *pendingCost, used []int64) *SettlePlan {
	now := h.now()
	s := &SettlePlan{
		Place: p.place, HadPlace: true, Life: p.life,
		Answer: func(*SettlePlan) []byte { return []byte("settled") },
	}
	left := max(0, p.until-now.Wall)
	s.Place.OpenFor = time.Duration(left)
	s.Place.SettledUntil = (h.steady+left+int64(settlingMemory))/1e9 + 1
	s.Place.Until = s.Place.SettledUntil + notes.LateSettling
	for i := range p.taken {
		op := &p.taken[i]
		taken := h.fromOf(op)
		taken.Reserved = true
		c := SettledCost{
			Key: op.counter.key, Limit: op.limit, Reserved: op.cost, Used: used[i],
			AtExpiry: op.cost, From: taken, InTightest: true,
		}
		if p.ends {
			c.AtExpiry = p.used[i]
		}
		s.Changes = append(s.Changes, c)
	}
	return s
}

// settle settles a reservation, perhaps again, and perhaps late.
func (h *giveBackHistory) settle(p *pendingCost) {
	used := make([]int64, len(p.taken))
	for i := range p.taken {
		used[i] = h.usedOf(&p.taken[i])
	}
	s := h.settlementOf(p, used)
	now := h.now()
	s.Late = now.Wall > p.until
	s.TooLate = now.Wall > p.until+notes.LateSettling*1e9

	before := h.usage(p)
	outcome, err := h.owner.table.Settle(now, s)
	h.trace("settled %x.%v with %v: outcome %d, late %t, %v", p.place.Key.Subject,
		p.place.Key.ID, used, outcome, s.Late, err)
	if err != nil {
		h.fail("settling failed: %v", err)
		return
	}
	if outcome != Made {
		if after := h.usage(p); !slices.Equal(before, after) {
			h.fail("a settling that was over changed %v to %v", before, after)
		}
		return
	}

	isKnown := h.settled[p.place.Key.ID] > h.steady/1e9
	if isKnown || p.settled && s.SameLineage {
		h.fail("a reservation was settled twice")
	}
	p.settled = true
	h.settled[p.place.Key.ID] = s.Place.SettledUntil
	after := h.usage(p)
	for i := range p.taken {
		h.noteSettled(&p.taken[i], &s.Changes[i], s, after[i] > before[i])
	}
	h.sendRest(p, s)
}

// noteSettled tells the model what was settled of a cost, and whether the
// counter's usage rose by it.
func (h *giveBackHistory) noteSettled(op *pendingOp, c *SettledCost, s *SettlePlan, rose bool) {
	change := c.delta(s.HadEnded)
	switch {
	case change > 0 && s.Late && !rose: // it was dropped
	case change > 0:
		op.counter.charge(h.at(), op.limit, change)
	default:
		h.noteReturn(op, &c.From, c.Used, change < 0 && s.Dropped == 0)
	}
}

// usedOf returns what a reservation turned out to cost: less, the same, or more.
func (h *giveBackHistory) usedOf(op *pendingOp) int64 {
	switch h.random.IntN(6) {
	case 0:
		return op.cost
	case 1:
		return op.cost + 1 + h.random.Int64N(5)
	case 2:
		return h.random.Int64N(op.cost + 1)
	}
	return 0
}

// usage returns the usage of what p was taken from.
func (h *giveBackHistory) usage(p *pendingCost) (list []int64) {
	for i := range p.taken {
		c := p.taken[i].counter
		used, _ := h.owner.table.Usage(h.now(), c.key, c.limit)
		list = append(list, used)
	}
	return list
}

// judgeCharges finds counters that charge more than was ever charged. A bucket
// owes again what had drained, if its rate is lowered before it is swept.
func (h *giveBackHistory) judgeCharges() {
	for _, c := range h.counters() {
		if c.limit.Kind.IsBucket() && len(c.rates) > 1 {
			continue
		}
		used, _ := h.owner.table.Usage(h.now(), c.key, c.limit)
		if used > c.charged {
			h.fail("%v: %d are used, and only %d were ever charged", c.limit.Kind, used, c.charged)
		}
	}
}

// opsOf returns an op for each counter of a subject.
func opsOf(list []*modelCounter) (ops []Op) {
	for _, c := range list {
		ops = append(ops, Op{Key: c.key, Limit: c.limit})
	}
	return ops
}

// reset resets a subject. In some histories so many others are reset afterwards
// that the table forgets it.
func (h *giveBackHistory) reset() {
	list := h.anySubject()
	scope := ResetSubject
	isPartial := h.random.IntN(3) == 0
	if isPartial {
		scope = ResetLimits
		i := h.random.IntN(len(list))
		list = list[i : i+1]
	}
	if err := h.owner.table.Amend(h.now(), &Amendment{Ops: opsOf(list), Reset: scope}); err != nil {
		h.fail("a reset failed: %v", err)
	}
	h.trace("reset %x, some %t", list[0].key, isPartial)
	for _, c := range list {
		c.reset(h.at())
	}
	if h.isFlooded && len(h.pending) > 0 {
		h.isFlooded = false
		h.flood()
	}
}

// flood resets many subjects of another partition.
func (h *giveBackHistory) flood() {
	h.trace("flooded")
	n := &notes.Note{Key: notes.Key{Kind: notes.Reset}}
	all := h.owner.table.Notes()
	for i := range uint64(floodOfResets) {
		n.Subject = uint64(ring.Partitions-1)<<(64-ring.PartitionBits) + i
		_ = all.MakeRoom(n, h.steady)
		held := all.Lock(n.Partition(), h.steady)
		held.RecordReset(notes.ResetKey(n.Subject, 0), false, h.steady, (h.steady+int64(resetRetention))/1e9)
		held.Unlock()
	}
	for _, c := range h.counters() {
		c.resetAt = 0 // a debt from before it may come
	}
}

// adjust raises or lowers the usage of a subject.
func (h *giveBackHistory) adjust() {
	c := h.anyCounter()
	op := Op{Key: c.key, Limit: c.limit, Cost: h.random.Int64N(2*c.limit.Capacity()+1) - c.limit.Capacity()}
	h.trace("%v/%x.%d: adjusted by %d", c.limit.Kind, c.key.Subject, c.key.Counter, op.Cost)
	var err error
	switch {
	case op.Cost < 0:
		err = h.owner.table.Amend(h.now(), &Amendment{Ops: []Op{op}})
		c.forgive(h.at(), -op.Cost)
	case op.Cost > 0:
		err = h.owner.table.penalize(h.now(), c.key, c.limit, op.Cost)
		c.charge(h.at(), c.limit, op.Cost)
	}
	if err != nil {
		h.fail("an adjustment failed: %v", err)
	}
}

// debt charges what a node admitted a while ago that could not reach the owner.
func (h *giveBackHistory) debt() {
	c := h.anyCounter()
	at := h.at()
	age := h.random.Int64N(int64(min(c.limit.Window, 30*time.Second)))
	then := algorithms.Instant{Steady: at.Steady - age, Wall: at.Wall - age}
	taken := c.limit.TakeRecord(c.limit.Advance(algorithms.State{}, then), then)
	cost := 1 + h.random.Int64N(c.limit.Capacity())
	if err := h.owner.table.ForceCapped(h.now(), c.key, c.limit, taken, cost); err != nil {
		h.fail("a debt failed: %v", err)
	}
	h.trace("%v/%x.%d: owed %d for %v", c.limit.Kind, c.key.Subject, c.key.Counter, cost, time.Duration(age))
	if then.Steady >= c.resetAt {
		c.charge(at, c.limit, cost)
	}
}

// changeLimit changes a limit, or lets an adaptive step begin or end.
func (h *giveBackHistory) changeLimit() { h.setLimit(h.anyCounter()) }

func (h *giveBackHistory) setLimit(c *modelCounter) {
	amount := c.limit.Amount
	burst := c.limit.Burst
	switch h.random.IntN(4) {
	case 0:
		burst = 1 + h.random.Int64N(20)
	case 1:
		amount = 1 + h.random.Int64N(20)
	default:
		first := c.rates[0].amount
		amount = []int64{first, 6 * first, max(1, first/4)}[h.random.IntN(3)]
	}
	c.setLimit(h.steady, amount, burst)
	h.trace("%v/%x.%d: %d per %v, burst %d", c.limit.Kind, c.key.Subject, c.key.Counter, amount, c.limit.Window, burst)
}

// stepClock sets a node's wall clock forward or back. It never goes back for
// its process, but runs slower.
func (h *giveBackHistory) stepClock() {
	n := h.owner
	if h.standby != nil && h.random.IntN(3) == 0 {
		n = h.standby
	}
	n.offset += h.random.Int64N(int64(4*time.Hour)>>h.random.IntN(12)) - int64(2*time.Hour)>>h.random.IntN(12)
	wall := n.course.At(h.steady)
	real := h.steady + n.offset
	n.course = algorithms.SlewedClock{Steady: h.steady, Wall: max(wall, real), Lead: max(0, wall-real)}
	h.trace("a clock is %v off", time.Duration(n.offset))
}

// snapshot returns what the owner has.
func (h *giveBackHistory) snapshot() historySnapshot {
	s := historySnapshot{at: h.at(), counters: make(map[Key]counterCopy), settled: maps.Clone(h.settled)}
	for _, c := range h.counters() {
		s.counters[c.key] = c.snapshot()
	}
	return s
}

// goBackTo makes a copy what the owner has, and all that was taken since is lost.
func (h *giveBackHistory) goBackTo(s historySnapshot) {
	h.settled = make(map[uint64]int64)
	maps.Copy(h.settled, s.settled)
	for _, c := range h.counters() {
		c.counterCopy = counterCopy{}
		if had, found := s.counters[c.key]; found {
			c.counterCopy = had.snapshot()
		}
	}
}

// saveChanges writes a checkpoint.
func (h *giveBackHistory) saveChanges() {
	n := h.owner
	err := n.table.DrainChanges(func(list []Record) error {
		for _, r := range list {
			if r.Note != nil && r.Note.Partition() != h.partition {
				continue
			}
			k := diskKey{counter: r.Key}
			if r.Note != nil {
				k.note = r.Note.Key
			}
			n.disk[k] = r
		}
		return nil
	})
	if err != nil {
		h.fail("a checkpoint failed: %v", err)
	}
	n.saved = h.snapshot()
	h.trace("saved")
}

// restart kills the owner. Its next process has what was saved.
func (h *giveBackHistory) restart() {
	n := h.owner
	n.table.Close()
	n.table = New(1000)
	n.course = algorithms.SlewedClock{Steady: h.steady, Wall: h.steady + n.offset}
	if len(n.disk) > 0 {
		n.table.FollowClock(h.now(), h.partition, n.saved.at.Wall+h.steady-n.saved.at.Steady)
		n.table.Restore(h.now(), slices.Collect(maps.Values(n.disk)))
	} else {
		// No counter was left that could tell what the partition's clock read. It may
		// have been ahead, and windows that were over come again, after as much real
		// time.
		n.saved.counters = nil
	}
	h.goBackTo(n.saved)
	h.beginLineage()
	h.trace("restarted")
	if h.standby != nil { // its copy is of another lineage
		h.others = append(h.others, h.standby)
		h.standby.drop(h.partition)
		h.standby = nil
	}
}

// beginLineage opens the owner's gate for counters that may lack what came last.
func (h *giveBackHistory) beginLineage() {
	h.lineage++
	h.owner.table.Open(h.partition, h.lineage)
}

// drop makes n forget the partition.
func (n *historyNode) drop(p int) {
	n.table.Shut(p)
	n.table.Drop(p)
	n.copied = historySnapshot{}
	n.forgetDisk()
}

func (n *historyNode) forgetDisk() {
	n.disk = make(map[diskKey]Record)
	n.saved = historySnapshot{}
}

// put puts records into a copy.
func (h *giveBackHistory) put(n *historyNode, list []Record) error {
	for _, r := range list {
		n.table.Put(h.read(n), r)
	}
	return nil
}

// replicate brings the standby's copy up to date. If there is none, one begins.
func (h *giveBackHistory) replicate() {
	if h.standby == nil {
		i := h.random.IntN(len(h.others))
		h.standby = h.others[i]
		h.others = slices.Delete(h.others, i, i+1)
		h.standby.drop(h.partition)
		_ = h.owner.table.ReplicatePartition(h.partition, nil) // the copy has these
		err := h.owner.table.Copy(h.partition, func(list []Record) error { return h.put(h.standby, list) })
		if err != nil {
			h.fail("a copy failed: %v", err)
		}
	} else {
		_ = h.put(h.standby, h.owner.table.ReplicatePartition(h.partition, nil))
	}
	h.standby.copied = h.snapshot()
	h.standby.table.FollowClock(h.read(h.standby), h.partition, h.standby.copied.at.Wall)
	h.trace("replicated")
}

// handOver makes another node the owner, with all there is.
func (h *giveBackHistory) handOver() {
	if h.standby == nil {
		h.replicate()
	}
	from := h.owner
	from.table.Shut(h.partition)
	h.replicate()

	h.owner = h.standby
	h.standby = nil
	h.owner.forgetDisk()
	h.goBackTo(h.owner.copied)
	h.owner.table.Open(h.partition, h.lineage)
	from.drop(h.partition)
	h.others = append(h.others, from)
	h.trace("handed over")
}

// promote makes the standby the owner, with what it has. The owner is lost.
func (h *giveBackHistory) promote() {
	if h.standby == nil {
		return
	}
	lost := h.owner
	lost.table.Close()
	lost.table = New(1000)
	lost.course = algorithms.SlewedClock{Steady: h.steady, Wall: h.steady + lost.offset}
	lost.forgetDisk()

	h.owner = h.standby
	h.standby = nil
	h.owner.forgetDisk()
	h.goBackTo(h.owner.copied)
	h.others = append(h.others, lost)
	h.beginLineage()
	h.trace("promoted")
}

// sweep drops what is over.
func (h *giveBackHistory) sweep() {
	// The room of late settlements is needed, or only that of their rates, of which
	// there are often more.
	all := h.owner.table.Notes()
	all.BoundReservations([]int64{DefaultReservationBytes, 2 * all.Stats().Reservations, notes.Overhead}[h.random.IntN(3)])
	h.owner.table.Sweep(h.now(), 1)
	all.BoundReservations(DefaultReservationBytes)
	for _, c := range h.counters() {
		c.mayBeSwept = true
	}
	h.trace("swept")
}
