package algorithms

import (
	"cmp"
	"flag"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var (
	histories = flag.Int("histories", 10_000, "random histories an algorithm; make models has more")
	seedFlag  = flag.Uint64("seed", 0, "seed of the random histories; 0: from the clock")
)

// model is an algorithm implemented naively: it remembers everything, and
// performs the same operations as the real one.
type model interface {
	advance(l *Limit, now Instant)
	allows(cost int64) bool
	add(cost int64, from TakeRecord)
	sub(cost int64, from TakeRecord)
	reward(n int64)
	used() int64 // rounded up
	taken() TakeRecord
}

// Each algorithm agrees with its model over random histories of Take, Peek,
// Give, Force, Reward, time jumps, late clock readings and changes of the
// limit.
func TestModels(t *testing.T) {
	models := map[Kind]func() model{
		TokenBucket:   func() model { return &bucketModel{} },
		LeakyBucket:   func() model { return &bucketModel{} },
		FixedWindow:   func() model { return &windowModel{used_: map[int64]int64{}} },
		SlidingWindow: func() model { return &slidingModel{windowModel{used_: map[int64]int64{}}} },
		SlidingLog:    func() model { return &logModel{} },
		FirstWindow:   func() model { return &firstModel{} },
	}
	n := *histories
	if testing.Short() {
		n /= 20
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for kind, fresh := range models {
		t.Run(nameOf(kind), func(t *testing.T) {
			t.Parallel()
			for i := range n {
				h := history{rng: rand.New(rand.NewPCG(seed, uint64(i))), model: fresh()}
				if why := h.run(kind); why != "" {
					t.Fatalf("-seed=%d, history %d: %s", seed, i, why)
				}
			}
			t.Logf("%d histories, -seed=%d", n, seed)
		})
	}
}

type history struct {
	rng   *rand.Rand
	limit Limit
	real  counter
	model model
	now   Instant
	takes []taken
}

type taken struct {
	from TakeRecord
	cost int64
}

func (h *history) run(kind Kind) string {
	h.limit = Limit{Kind: kind, Window: h.drawWindow()}
	h.drawAmounts()
	h.now = At(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(h.rng.Int64N(int64(h.limit.Window)))))
	h.real.l = &h.limit
	for range 8 + h.rng.IntN(24) {
		h.passTime()
		if why := h.step(); why != "" {
			return why
		}
	}
	return ""
}

func (h *history) drawWindow() time.Duration {
	switch h.rng.IntN(8) {
	case 0:
		return MinWindow + time.Duration(h.rng.Int64N(1000))
	case 1:
		return MaxWindow - time.Duration(h.rng.Int64N(1000))
	default:
		return time.Duration(10+h.rng.Int64N(100_000))*time.Millisecond + time.Duration(h.rng.Int64N(3))
	}
}

func (h *history) drawAmounts() {
	amount := func() int64 {
		switch h.rng.IntN(8) {
		case 0:
			return MaxAmount - h.rng.Int64N(3)
		case 1:
			return 1 + h.rng.Int64N(MaxAmount)
		default:
			return 1 + h.rng.Int64N(20)
		}
	}
	h.limit.Amount, h.limit.Burst = amount(), amount()
}

// passTime advances time: a little, around a window, or far. Sometimes a
// reading arrives a little late. Sometimes it sets the wall clock, if that must
// not matter.
func (h *history) passTime() {
	w := int64(h.limit.Window)
	var by int64
	switch h.rng.IntN(10) {
	case 0, 1, 2:
	case 3, 4, 5:
		by = h.rng.Int64N(w/4 + 1)
	case 6, 7:
		by = h.rng.Int64N(w + 2)
	case 8:
		by = w*h.rng.Int64N(4) + h.rng.Int64N(3) - 1
	case 9:
		by = -h.rng.Int64N(1000)
	}
	h.now.Steady += by
	h.now.Wall += by
	if !h.limit.Kind.Windowed() && h.rng.IntN(8) == 0 {
		h.now.Wall += h.rng.Int64N(8*w) - 4*w
	}
}

func (h *history) drawCost() int64 {
	top := max(1, min(h.limit.Capacity(), 1<<52))
	switch h.rng.IntN(8) {
	case 0:
		return 0
	case 1:
		return h.limit.Capacity()
	case 2:
		return min(MaxAmount, h.limit.Capacity()+1)
	default:
		return 1 + h.rng.Int64N(top/2+1)
	}
}

func (h *history) step() string {
	cost := h.drawCost()
	op := h.rng.IntN(16)
	h.model.advance(&h.limit, h.now)
	switch {
	case op < 8:
		return h.take(cost)
	case op < 11 && len(h.takes) > 0:
		i := h.rng.IntN(len(h.takes))
		x := h.takes[i]
		h.takes = slices.Delete(h.takes, i, i+1)
		back := x.cost - h.rng.Int64N(x.cost)
		if m, ok := h.model.(*bucketModel); ok {
			x.from.MaxRate = m.fastest
		}
		h.give(x.from, back)
		h.model.sub(back, x.from)
	case op == 11:
		h.force(h.model.taken(), cost)
		h.model.add(cost, h.model.taken())
	case op == 12 && len(h.takes) > 0:
		x := h.takes[h.rng.IntN(len(h.takes))]
		h.force(x.from, cost)
		h.model.add(cost, x.from)
	case op == 13:
		h.rewardReal(cost)
		h.model.reward(cost)
	case op == 14:
		h.real.take(h.now, 0) // the time until now drains at the old rate
		h.drawAmounts()
	}
	return h.compare("after a change")
}

func (h *history) take(cost int64) string {
	want := cost == 0 || h.model.allows(cost)
	have := h.real.take(h.now, cost)
	if have.Allowed != want {
		return "allowed differs from the model"
	}
	if want && cost > 0 {
		h.model.add(cost, h.model.taken())
		h.takes = append(h.takes, taken{h.model.taken(), cost})
	}
	if !want {
		if why := h.checkRetry(have, cost); why != "" {
			return why
		}
	}
	return h.compare("after a take")
}

// checkRetry checks that a refused check is allowed after RetryAfter and, for
// the exact algorithms, not before.
func (h *history) checkRetry(d Decision, cost int64) string {
	if d.RetryAfter == Never {
		if cost <= h.limit.Capacity() {
			return "never, though the cost is within the capacity"
		}
		return ""
	}
	ask := func(after time.Duration) bool {
		c := counter{l: h.real.l, state: h.real.state, log: *h.real.log.Clone()}
		return c.take(Instant{h.now.Steady + int64(after), h.now.Wall + int64(after)}, cost).Allowed
	}
	if h.now.Steady > 1<<62-int64(d.RetryAfter) {
		return "" // debts of centuries
	}
	switch {
	case d.RetryAfter <= 0:
		return "refused, but to be retried at once"
	case !ask(d.RetryAfter):
		return "refused again after RetryAfter"
	case ask(d.RetryAfter - 1):
		return "allowed before RetryAfter"
	}
	return ""
}

func (h *history) compare(when string) string {
	have := h.real.take(h.now, 0)
	want := h.model.used()
	used := h.limit.Used(h.real.state, h.now)
	if h.limit.Kind == SlidingLog {
		used = h.real.log.Used()
	}
	switch {
	case used != want:
		return when + ": used differs from the model"
	case have.Remaining != max(0, h.limit.Capacity()-want):
		return when + ": remaining differs from the model"
	case (have.ResetAfter == 0) != (want == 0) && h.limit.Kind != SlidingWindow:
		return when + ": reset differs from the model"
	}
	return ""
}

func (h *history) give(from TakeRecord, cost int64) {
	if h.limit.Kind == SlidingLog {
		h.real.log.Give(&h.limit, from, h.now, cost)
	} else {
		h.real.state = h.limit.Give(h.real.state, from, h.now, cost)
	}
}

func (h *history) force(from TakeRecord, cost int64) {
	if h.limit.Kind == SlidingLog {
		h.real.log.Force(&h.limit, from, h.now, cost)
	} else {
		h.real.state = h.limit.Force(h.real.state, from, h.now, cost)
	}
}

func (h *history) rewardReal(n int64) {
	if h.limit.Kind == SlidingLog {
		h.real.log.Reward(&h.limit, h.now, n)
	} else {
		h.real.state = h.limit.Reward(h.real.state, h.now, n)
	}
}

// bucketModel keeps what is owed as a big integer of 1/Window units.
type bucketModel struct {
	l       *Limit
	owed    big.Int
	at, now int64
	fastest int64 // the highest rate so far
}

func (m *bucketModel) units(n int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(n), big.NewInt(int64(m.l.Window)))
}

func (m *bucketModel) advance(l *Limit, now Instant) {
	m.l, m.now = l, now.Steady
	m.fastest = max(m.fastest, l.Amount)
	if now.Steady > m.at {
		back := new(big.Int).Mul(big.NewInt(l.Amount), new(big.Int).SetUint64(uint64(now.Steady-m.at)))
		if m.owed.Sub(&m.owed, back); m.owed.Sign() < 0 {
			m.owed.SetInt64(0)
		}
		m.at = now.Steady
	}
}

func (m *bucketModel) allows(cost int64) bool {
	return new(big.Int).Add(&m.owed, m.units(cost)).Cmp(m.units(m.l.Burst)) <= 0
}
func (m *bucketModel) add(cost int64, _ TakeRecord) {
	m.owed.Add(&m.owed, m.units(cost))
	if top := m.units(maxOwed); m.owed.Cmp(top) > 0 {
		m.owed.Set(top)
	}
}
func (m *bucketModel) sub(cost int64, from TakeRecord) {
	left := new(big.Int).Mul(big.NewInt(int64(from.ResetAfter)-1), big.NewInt(from.Amount))
	left.Add(left, big.NewInt(1))
	left.Sub(left, new(big.Int).Mul(big.NewInt(max(0, m.now-from.Steady)), big.NewInt(from.MaxRate)))
	if from.ResetAfter <= 0 || left.Sign() <= 0 {
		return
	}
	back := m.units(cost)
	partly := left.Cmp(back) < 0
	if partly {
		back = left
	}
	m.owed.Sub(&m.owed, back)
	if m.owed.Sign() < 0 || partly && m.owed.Cmp(big.NewInt(min(m.l.Amount, int64(m.l.Window)))) < 0 {
		m.owed.SetInt64(0)
	}
}
func (m *bucketModel) reward(n int64) {
	if m.owed.Sub(&m.owed, m.units(n)); m.owed.Sign() < 0 {
		m.owed.SetInt64(0)
	}
}
func (m *bucketModel) used() int64 {
	up := new(big.Int).Add(&m.owed, big.NewInt(int64(m.l.Window)-1))
	return up.Div(up, big.NewInt(int64(m.l.Window))).Int64()
}
func (m *bucketModel) taken() TakeRecord {
	reset := new(big.Int).Add(&m.owed, big.NewInt(m.l.Amount-1))
	reset.Div(reset, big.NewInt(m.l.Amount))
	if !reset.IsInt64() {
		reset.SetInt64(math.MaxInt64)
	}
	return TakeRecord{Steady: m.at, Amount: m.l.Amount, ResetAfter: time.Duration(reset.Int64())}
}

// windowModel remembers the usage of every window ever.
type windowModel struct {
	l     *Limit
	used_ map[int64]int64
	n     int64 // the current window
	wall  int64
}

func (m *windowModel) advance(l *Limit, now Instant) {
	m.l, m.wall = l, now.Wall
	m.n = max(m.n, floorDiv(now.Wall, int64(l.Window)))
}
func (m *windowModel) allows(cost int64) bool { return m.used_[m.n]+cost <= m.l.Amount }
func (m *windowModel) add(cost int64, from TakeRecord) {
	m.used_[from.Window] = addClamped(m.used_[from.Window], cost)
}
func (m *windowModel) sub(cost int64, from TakeRecord) {
	m.used_[from.Window] = max(0, m.used_[from.Window]-cost)
}
func (m *windowModel) reward(n int64)    { m.used_[m.n] = max(0, m.used_[m.n]-n) }
func (m *windowModel) used() int64       { return m.used_[m.n] }
func (m *windowModel) taken() TakeRecord { return TakeRecord{Window: m.n} }

type slidingModel struct{ windowModel }

// weighted returns the weight of the previous window's count, times Window.
func (m *slidingModel) weighted() *big.Int {
	view := min(int64(m.l.Window), (m.n+1)*int64(m.l.Window)-m.wall)
	return new(big.Int).Mul(big.NewInt(m.used_[m.n-1]), big.NewInt(view))
}
func (m *slidingModel) allows(cost int64) bool {
	sum := new(big.Int).Mul(big.NewInt(m.used_[m.n]+cost), big.NewInt(int64(m.l.Window)))
	limit := new(big.Int).Mul(big.NewInt(m.l.Amount), big.NewInt(int64(m.l.Window)))
	return sum.Add(sum, m.weighted()).Cmp(limit) <= 0
}
func (m *slidingModel) reward(n int64) {
	rest := n - min(n, m.used_[m.n])
	m.used_[m.n] = max(0, m.used_[m.n]-n)
	m.used_[m.n-1] = max(0, m.used_[m.n-1]-rest)
}
func (m *slidingModel) used() int64 {
	up := new(big.Int).Add(m.weighted(), big.NewInt(int64(m.l.Window)-1))
	return m.used_[m.n] + up.Div(up, big.NewInt(int64(m.l.Window))).Int64()
}

// logModel remembers every single hit.
type logModel struct {
	l    *Limit
	hits []Entry
	now  int64
}

func (m *logModel) advance(l *Limit, now Instant) {
	m.l, m.now = l, max(m.now, now.Steady)
	m.hits = slices.DeleteFunc(m.hits, func(e Entry) bool { return e.At+int64(l.Window) <= m.now })
}
func (m *logModel) allows(cost int64) bool { return m.used()+cost <= m.l.Amount }
func (m *logModel) add(cost int64, from TakeRecord) {
	if from.Steady+int64(m.l.Window) > m.now {
		m.hits = append(m.hits, Entry{from.Steady, min(cost, maxOwed-m.used())})
	}
}
func (m *logModel) sub(cost int64, from TakeRecord) {
	if from.Steady+int64(m.l.Window) <= m.now {
		return
	}
	there := false
	for i := range m.hits {
		if m.hits[i].At == from.Steady && m.hits[i].N > 0 {
			there = true
			n := min(cost, m.hits[i].N)
			m.hits[i].N -= n
			cost -= n
		}
	}
	if there {
		return
	}
	slices.SortStableFunc(m.hits, func(a, b Entry) int { return cmp.Compare(a.At, b.At) })
	for i := range m.hits {
		n := min(cost, m.hits[i].N)
		m.hits[i].N -= n
		cost -= n
	}
}
func (m *logModel) reward(n int64) {
	for n > 0 && len(m.hits) > 0 {
		last := 0
		for i := range m.hits {
			if m.hits[i].At >= m.hits[last].At {
				last = i
			}
		}
		k := min(n, m.hits[last].N)
		n -= k
		m.hits[last].N -= k
		if m.hits[last].N == 0 {
			m.hits = slices.Delete(m.hits, last, last+1)
		}
	}
}
func (m *logModel) used() int64 {
	var sum int64
	for _, e := range m.hits {
		sum += e.N
	}
	return sum
}
func (m *logModel) taken() TakeRecord { return TakeRecord{Steady: m.now} }

// firstModel remembers the hits of the current window, which began with the first of them.
type firstModel struct {
	l    *Limit
	hits []Entry
	now  int64
}

func (m *firstModel) advance(l *Limit, now Instant) {
	m.l, m.now = l, now.Steady
	if len(m.hits) > 0 && m.hits[0].At+int64(l.Window) <= m.now {
		m.hits = nil
	}
}
func (m *firstModel) allows(cost int64) bool { return m.used()+cost <= m.l.Amount }
func (m *firstModel) add(cost int64, from TakeRecord) {
	if cost > 0 && from.Steady+int64(m.l.Window) > m.now {
		m.hits = append(m.hits, Entry{m.now, min(cost, maxOwed-m.used())}) // only the time of the first matters
	}
}
func (m *firstModel) sub(cost int64, from TakeRecord) {
	if len(m.hits) > 0 && from.Steady >= m.hits[0].At {
		m.reward(cost)
	}
}
func (m *firstModel) reward(n int64) {
	for i := range m.hits {
		k := min(n, m.hits[i].N)
		m.hits[i].N -= k
		n -= k
	}
	if m.used() == 0 {
		m.hits = nil
	}
}
func (m *firstModel) used() int64 {
	var sum int64
	for _, e := range m.hits {
		sum += e.N
	}
	return sum
}
func (m *firstModel) taken() TakeRecord { return TakeRecord{Steady: m.now} }
