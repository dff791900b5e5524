package algorithms

import (
	"cmp"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// queueModel is a queue in front of one counter, and every check that it admitted.
type queueModel struct {
	rng          *rand.Rand
	limit        Limit
	real         counter
	now          Instant
	on           []admission
	longestDelay time.Duration // the longest MaxDelay so far
}

// admission is an allowed check, with the time at which it proceeds.
type admission struct {
	at, cost int64
	from     TakeRecord
}

// allKinds are the kinds that may have a queue.
var allKinds = []Kind{SlidingWindow, FixedWindow, TokenBucket, LeakyBucket, SlidingLog}

func newQueueModel(rng *rand.Rand, kind Kind) *queueModel {
	h := history{rng: rng}
	q := &queueModel{rng: rng, limit: Limit{Kind: kind, Window: h.drawWindow()}}
	q.limit.Amount, q.limit.Burst = 1+rng.Int64N(20), 1+rng.Int64N(20)
	if rng.IntN(8) == 0 {
		q.limit.Amount, q.limit.Burst = MaxAmount-rng.Int64N(3), 1+rng.Int64N(MaxAmount)
	}
	q.now = At(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rng.Int64N(int64(q.limit.Window)))))
	q.real.l = &q.limit
	q.drawDelay()
	return q
}

// drawDelay draws a MaxDelay.
func (l *queueModel) drawDelay() {
	w := int64(l.limit.Window)
	d := 1 + l.rng.Int64N(3*w)
	switch l.rng.IntN(6) {
	case 0:
		d = 1 + l.rng.Int64N(w/10)
	case 1:
		d = int64(LongestDelay)
	}
	l.limit.MaxDelay = min(time.Duration(d), LongestDelay)
	l.longestDelay = max(l.longestDelay, l.limit.MaxDelay)
}

func (l *queueModel) passTime() {
	w := int64(l.limit.Window)
	by := int64(0)
	switch l.rng.IntN(8) {
	case 0, 1:
		by = l.rng.Int64N(w/8 + 1)
	case 2:
		by = l.rng.Int64N(w + 2)
	case 3:
		by = w*l.rng.Int64N(4) + l.rng.Int64N(3) - 1
	}
	l.now = l.at(max(0, by))
}

func (l *queueModel) at(d int64) Instant {
	return Instant{Steady: l.now.Steady + d, Wall: l.now.Wall + d}
}

func (l *queueModel) drawCost() int64 {
	c := l.limit.Capacity()
	switch l.rng.IntN(10) {
	case 0:
		return 0
	case 1:
		return c
	case 2:
		return min(MaxAmount, c+1)
	}
	return 1 + l.rng.Int64N(max(1, c/2))
}

// ask takes cost and checks that the answer is legal.
func (l *queueModel) ask(cost int64) (Decision, string) {
	before := counter{l: l.real.l, state: l.real.state, log: *l.real.log.Clone()}
	ask := func(d time.Duration) Decision {
		c := counter{l: before.l, state: before.state, log: *before.log.Clone()}
		return c.take(l.at(int64(d)), cost)
	}
	d := l.real.take(l.now, cost)
	switch {
	case d.Allowed && (d.Delay < 0 || d.Delay > l.limit.MaxDelay && l.limit.Kind != LeakyBucket || d.RetryAfter != 0):
		return d, "allowed with a wrong delay"
	case d.Allowed && cost == 0 && d.Delay != 0:
		return d, "a cost of 0 is delayed"
	case d.Allowed && d.Delay > 0 && d.Remaining != 0 && l.limit.Kind != LeakyBucket:
		return d, "delayed with some remaining"
	case d.Allowed:
		if cost > 0 {
			from := l.limit.TakeRecord(l.real.state, l.now)
			if l.limit.Kind == SlidingLog {
				from = l.real.log.TakeRecord()
			}
			l.on = append(l.on, admission{l.now.Wall + int64(d.Delay), cost, from})
		}
		return d, ""
	case cost > l.limit.Capacity():
		if d.RetryAfter != Never {
			return d, "above the capacity, but not never"
		}
		return d, ""
	case d.RetryAfter <= 0:
		return d, "refused, but to be retried at once"
	case d.RetryAfter > l.longestDelay+2*l.limit.Window+l.refill():
		return d, "blocked for longer than a queue and a window"
	}
	if then := ask(d.RetryAfter); !then.Allowed {
		return d, "refused again after RetryAfter"
	} else if l.limit.MaxDelay > 0 && then.Delay != l.limit.MaxDelay && l.limit.Kind != LeakyBucket {
		return d, fmt.Sprintf("after RetryAfter the delay is %d, not the longest", then.Delay)
	}
	if ask(d.RetryAfter - 1).Allowed {
		return d, "allowed before RetryAfter"
	}
	return d, ""
}

// refill returns how long a bucket takes to fill.
func (l *queueModel) refill() time.Duration {
	if !l.limit.Kind.IsBucket() {
		return 0
	}
	return l.limit.drainTime(l.limit.Burst, 0, 0)
}

// newModel returns the algorithm without a queue, implemented naively.
func (l *queueModel) newModel() model {
	switch l.limit.Kind {
	case FixedWindow:
		return &windowModel{used_: map[int64]int64{}}
	case SlidingWindow:
		return &slidingModel{windowModel{used_: map[int64]int64{}}}
	case SlidingLog:
		return &logModel{}
	}
	return &bucketModel{}
}

// At the times when they proceed, the checks of a queue are what the algorithm
// admits. None could proceed earlier, and none overtakes another.
func TestQueues(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			forEachQueue(t, func(rng *rand.Rand) string {
				q := newQueueModel(rng, kind)
				m, last := q.newModel(), int64(0)
				for i := range 60 {
					q.passTime()
					cost := q.drawCost()
					d, why := q.ask(cost)
					if why == "" && d.Allowed && cost > 0 {
						why = q.checkAdmission(m, d, cost, last)
						last = q.on[len(q.on)-1].at
					}
					if why != "" {
						return fmt.Sprintf("check %d of %d, %+v: %+v: %s", i, cost, q.limit, d, why)
					}
				}
				return ""
			})
		})
	}
}

func forEachQueue(t *testing.T, run func(*rand.Rand) string) {
	t.Helper()
	n := 6000
	if testing.Short() {
		n = 600
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for i := range n {
		if why := run(rand.New(rand.NewPCG(seed, uint64(i)))); why != "" {
			t.Fatalf("-seed=%d, queue %d: %s", seed, i, why)
		}
	}
}

// checkAdmission compares one allowed check with the model.
func (l *queueModel) checkAdmission(m model, d Decision, cost, last int64) string {
	on := l.now.Wall + int64(d.Delay)
	moment := func(wall int64) Instant { return Instant{Steady: wall, Wall: wall} }
	if l.limit.Kind == LeakyBucket {
		// Its turn comes once everything before it has drained.
		b := m.(*bucketModel)
		b.advance(&l.limit, l.now)
		wait := new(big.Int).Add(&b.owed, big.NewInt(l.limit.Amount-1))
		if wait.Div(wait, big.NewInt(l.limit.Amount)); wait.Cmp(big.NewInt(int64(d.Delay))) != 0 {
			return fmt.Sprintf("its turn comes in %s", wait)
		}
		b.add(cost, TakeRecord{})
		return ""
	}
	if on < last {
		return "overtakes the one before"
	}
	if before := on - 1; d.Delay > 0 && before >= max(last, l.now.Wall) {
		if m.advance(&l.limit, moment(before)); m.allows(cost) {
			return "could go on earlier"
		}
	}
	if m.advance(&l.limit, moment(on)); !m.allows(cost) {
		return "goes on when the algorithm would refuse it"
	}
	m.add(cost, m.taken())
	return ""
}

// A queue ends as promised even if MaxDelay is changed or removed, or other
// costs in it are given back. Nothing proceeds that the algorithm would not
// admit, and nobody is blocked for longer than the queue.
func TestChangedQueues(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			forEachQueue(t, func(rng *rand.Rand) string {
				q := newQueueModel(rng, kind)
				for i := range 60 {
					q.passTime()
					switch rng.IntN(8) {
					case 0:
						q.limit.MaxDelay = 0
					case 1:
						q.drawDelay()
					case 2:
						q.limit.MaxDelay /= 2
					case 3:
						q.giveOne()
					}
					cost := q.drawCost()
					if d, why := q.ask(cost); why != "" {
						return fmt.Sprintf("check %d of %d, %+v: %+v: %s", i, cost, q.limit, d, why)
					}
				}
				return q.checkAll()
			})
		})
	}
}

// giveOne gives back one waiting cost. It skips buckets, because what they forget drains anyway.
func (l *queueModel) giveOne() {
	if len(l.on) == 0 || l.limit.Kind.IsBucket() {
		return
	}
	i := l.rng.IntN(len(l.on))
	p := l.on[i]
	if p.at <= l.now.Wall {
		return
	}
	l.on = slices.Delete(l.on, i, i+1)
	if l.limit.Kind == SlidingLog {
		l.real.log.Give(&l.limit, p.from, l.now, p.cost)
	} else {
		l.real.state = l.limit.Give(l.real.state, p.from, l.now, p.cost)
	}
}

func (l *queueModel) checkAll() string {
	if l.limit.Kind == LeakyBucket {
		return "" // its checks proceed in turn, not when the algorithm would admit them
	}
	slices.SortStableFunc(l.on, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
	m := l.newModel()
	for i, p := range l.on {
		m.advance(&l.limit, Instant{Steady: p.at, Wall: p.at})
		if !m.allows(p.cost) {
			return fmt.Sprintf("the %d-th of %v goes on when %+v would refuse it", i, l.on, l.limit)
		}
		m.add(p.cost, m.taken())
	}
	return ""
}

func TestQueueVectors(t *testing.T) {
	const s = time.Second
	noon := float64(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Unix())
	late := func(t float64, cost int64, delay time.Duration) step {
		return step{t: noon + t, cost: cost, allowed: true, delay: delay}
	}
	refused := func(t float64, cost int64, retry time.Duration) step { return refusedStep(noon+t, cost, 0, retry) }
	tests := []struct {
		name  string
		limit Limit
		steps []step
	}{
		{"token bucket", Limit{Kind: TokenBucket, Amount: 1, Burst: 3, Window: s, MaxDelay: 2 * s}, []step{
			late(0, 3, 0), late(0, 1, s), late(0.5, 1, 1500*time.Millisecond), refused(0.5, 1, s/2),
			late(1, 1, 2*s), late(1, 0, 0),
			refused(1, 4, Never),
		}},
		{"leaky bucket", Limit{Kind: LeakyBucket, Amount: 1, Burst: 2, Window: s, MaxDelay: 3 * s}, []step{
			{noon, 1, true, 1, 0, 0}, late(0, 1, s), late(0, 1, 2*s), late(0, 1, 3*s),
			refused(0, 1, s), refused(0, 3, Never),
		}},
		{"fixed window", Limit{Kind: FixedWindow, Amount: 2, Window: 10 * s, MaxDelay: 15 * s}, []step{
			late(1, 2, 0), late(1, 1, 9*s), refused(1, 2, 4*s), late(2, 1, 8*s), late(5, 1, 15*s),
			refused(4.5, 2, 10500*time.Millisecond),
		}},
		{"sliding log", Limit{Kind: SlidingLog, Amount: 2, Window: 10 * s, MaxDelay: 15 * s}, []step{
			late(0, 1, 0), late(4, 1, 0), late(5, 1, 5*s), late(5, 1, 9*s), late(5, 1, 15*s), refused(5, 1, 4*s),
		}},
		{"sliding window", Limit{Kind: SlidingWindow, Amount: 10, Window: 10 * s, MaxDelay: 15 * s}, []step{
			late(5, 10, 0), late(5, 1, 6*s), late(6, 2, 7*s), refused(6, 10, 9*s),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := counter{l: &tt.limit}
			for i, want := range tt.steps {
				have := c.take(atSecond(want.t), want.cost)
				if have.Allowed != want.allowed || have.RetryAfter != want.retry || have.Delay != want.delay {
					t.Errorf("step %d, %+v: have %+v", i, want, have)
				}
			}
		})
	}
}

// Calendar windows have queues too: across midnight, and across a day of 25 hours.
func TestQueueOverADay(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	l := &Limit{Kind: FixedWindow, Amount: 2, Window: 24 * time.Hour,
		Calendar: NewCalendar(Day, berlin), MaxDelay: 24 * time.Hour}
	at := func(day, hour int) Instant { return At(time.Date(2026, 10, day, hour, 0, 0, 0, berlin)) }
	c := counter{l: l}
	for i, want := range []time.Duration{0, 0, time.Hour, time.Hour, -1} {
		if d := c.take(at(24, 23), 1); d.Allowed != (want >= 0) || d.Allowed && d.Delay != want ||
			!d.Allowed && d.RetryAfter != 2*time.Hour {
			t.Errorf("check %d: have %+v", i, d)
		}
	}
	// Give back one of the 25th, the last one there. The queue then ends on the 24th again.
	for range 2 {
		c.state = l.Give(c.state, l.TakeRecord(c.state, at(24, 23)), at(24, 23), 1)
	}
	if c.state.Fresh() {
		t.Error("the state looks fresh, so it would be dropped although the 24th is full")
	}
	if d := c.take(at(24, 23), 1); !d.Allowed || d.Delay != time.Hour {
		t.Errorf("after it was given back: have %+v", d)
	}
	if d := c.take(at(25, 1), 1); !d.Allowed || d.Delay != 0 {
		t.Errorf("the next day: have %+v", d)
	}
	if d := c.take(at(25, 23), 1); !d.Allowed || d.Delay != time.Hour {
		t.Errorf("the evening after a day of 25 hours: have %+v", d)
	}
}

// A reward shortens a queue by its amount.
func TestRewardShortensAQueue(t *testing.T) {
	l := &Limit{Kind: FixedWindow, Amount: 3, Window: time.Hour, MaxDelay: 20 * time.Hour}
	c := counter{l: l}
	now := At(time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC))
	for range 10 {
		c.take(now, 1)
	}
	for _, tt := range []struct {
		gift int64
		want time.Duration // the delay of the next check
	}{{0, 3 * time.Hour}, {1, 3 * time.Hour}, {4, time.Hour}, {3, 0}, {100, 0}} {
		c.state = l.Reward(c.state, now, tt.gift)
		if d := l.Peek(c.state, now, 1); !d.Allowed || d.Delay != tt.want {
			t.Errorf("after %d: have %+v, want %s", tt.gift, d, tt.want)
		}
	}
}

// Giving back the whole last window of a queue keeps the usage of the windows before.
func TestQueueGivenBackFromItsEnd(t *testing.T) {
	l := Limit{Kind: SlidingWindow, Amount: 20, Window: time.Minute, MaxDelay: 5 * time.Minute}
	now := At(time.Unix(1_800_000_000, 0))
	take := func(s State, cost int64) (State, TakeRecord) {
		t.Helper()
		s, ok := l.Take(s, now, cost)
		if !ok {
			t.Fatalf("a cost of %d is refused", cost)
		}
		return s, l.TakeRecord(s, now)
	}
	s, _ := take(State{}, 17)
	s, ten := take(s, 10)
	s, twenty := take(s, 20)
	s = l.Give(s, twenty, now, 20)
	s = l.Give(s, ten, now, 10)
	s, _ = take(s, 7)
	// At most 13 of the 17 may be in view.
	at := now.Wall + int64(l.Describe(s, now, 7, true).Delay)
	next := l.endOfWindow(l.windowNumber(now.Wall))
	if least := next + int64(time.Minute)*4/17; at < least {
		t.Errorf("proceeds %v after the window begins, want at least %v", time.Duration(at-next),
			time.Duration(least-next))
	}
}
