package counters

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// always is the life of a table that was never reset.
var always = Life{Lineage: soleLineage}

// G8: costs may be taken, lent, lost, borrowed, put back and given back in any
// order. The total that all regions have admitted and may still admit grows
// only by what drains from buckets.
func TestG8_LoansCreateNoQuota(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]algorithms.Kind{algorithms.FixedWindow, algorithms.TokenBucket}).Draw(t, "kind")
		m := newLoanModel(kind, rapid.SliceOfN(rapid.Int64Range(0, 40), 2, 4).Draw(t, "shares"))
		defer m.close()
		for range 60 {
			before, steady := m.possible(), m.now.Steady
			m.step(t)
			allowed := before
			if kind == algorithms.TokenBucket {
				for _, l := range m.limits {
					allowed += l.Drained(time.Duration(m.now.Steady - steady))
				}
			}
			if now := m.possible(); now > allowed && m.turned == 0 {
				t.Fatalf("have %d possible, want at most %d", now, allowed)
			}
			m.check(t)
		}
	})
}

// loanModel is several regions' counters of one limit, and the loans in transit between them.
type loanModel struct {
	key    Key
	tables []*Table
	limits []*algorithms.Limit
	now    algorithms.Instant
	flying []flyingLoan
	taken  []takenCost
	turned int // windows that turned in the last step
	// The amounts that went through each table since the window began.
	admitted, lent, borrowed []int64
}

type flyingLoan struct {
	from, to int
	window   int64
	n        int64
}

type takenCost struct {
	at   int
	from algorithms.TakeRecord
	cost int64
}

func newLoanModel(kind algorithms.Kind, shares []int64) *loanModel {
	m := &loanModel{key: Key{Subject: 3 << 52, Counter: 7}, now: algorithms.At(time.Unix(1_800_000_000, 0))}
	for _, share := range shares {
		l := &algorithms.Limit{Kind: kind, Amount: share, Window: time.Minute}
		if kind.IsBucket() {
			l.Burst = share
		}
		m.limits, m.tables = append(m.limits, l), append(m.tables, New(1000))
	}
	m.forget()
	return m
}

func (m *loanModel) forget() {
	n := len(m.tables)
	m.admitted, m.lent, m.borrowed = make([]int64, n), make([]int64, n), make([]int64, n)
	m.taken = nil
}

func (m *loanModel) close() {
	for _, table := range m.tables {
		table.Close()
	}
}

func (m *loanModel) stand(i int) LoanBalance { return m.tables[i].Loans(m.now, m.key, m.limits[i]) }

// possible returns what was admitted plus what could still be admitted if no
// time passed, loans in transit included.
func (m *loanModel) possible() (n int64) {
	for i := range m.tables {
		n += m.admitted[i] + m.stand(i).Remaining
	}
	for _, f := range m.flying {
		if f.window == m.stand(f.to).Window {
			n += f.n
		}
	}
	return n
}

func (m *loanModel) step(t *rapid.T) {
	m.turned = 0
	i := rapid.IntRange(0, len(m.tables)-1).Draw(t, "region")
	switch rapid.IntRange(0, 7).Draw(t, "step") {
	case 0, 1:
		m.take(i, rapid.Int64Range(1, 9).Draw(t, "cost"))
	case 2:
		m.lend(t, i)
	case 3, 4:
		m.borrow(t)
	case 5:
		m.giveBack(t)
	case 6: // a region's process is lost, and its standby takes over
		m.tables[i] = copied(m.tables[i], m.key.Partition(), m.now)
	case 7:
		m.pass(time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "time")))
	}
}

// copied returns a table with another table's counters, encoded and decoded as between nodes.
func copied(from *Table, p int, now algorithms.Instant) *Table {
	to := New(1000)
	_ = from.Copy(p, func(records []Record) error {
		for i := range records {
			var r Record
			if _, err := parseRecord(AppendRecord(nil, &records[i], now), &r, now); err != nil {
				return err
			}
			to.Put(now, r)
		}
		return nil
	})
	from.Close()
	return to
}

func (m *loanModel) take(i int, cost int64) {
	ops := []Op{{Key: m.key, Limit: m.limits[i], Cost: cost}}
	if m.tables[i].Take(m.now, ops) == Admitted {
		m.admitted[i] += cost
		m.taken = append(m.taken, takenCost{i, ops[0].TakeRecord(), cost})
	}
}

func (m *loanModel) lend(t *rapid.T, i int) {
	before := m.stand(i)
	want := rapid.Int64Range(1, 50).Draw(t, "want")
	n, after, err := m.tables[i].DebitLoan(m.now, m.key, m.limits[i], before.Window, want)
	if err != nil || n > want || n < 0 || n > 0 && 2*before.OwnUse() >= m.limits[i].Capacity()+before.widening {
		t.Fatalf("have %d lent, %v, of %+v", n, err, before)
	}
	if most := min(before.Remaining,
		max((before.Remaining+1)/2, m.limits[i].Capacity()/8)); n > most ||
		after.Remaining != before.Remaining-n || after.Lent != before.Lent+
		n {
		t.Fatalf("have %d lent of %+v, then %+v", n, before, after)
	}
	m.lent[i] += n
	if n > 0 && rapid.Bool().Draw(t, "put back") {
		m.tables[i].Unlend(m.now, m.key, m.limits[i], before.Window, n, always)
		m.lent[i] -= n
		if again := m.stand(i); again != before {
			t.Fatalf("have %+v, want %+v", again, before)
		}
		return
	}
	to := rapid.IntRange(0, len(m.tables)-1).Draw(t, "to")
	if n > 0 && rapid.IntRange(0, 5).Draw(t, "lost") > 0 {
		m.flying = append(m.flying, flyingLoan{i, to, before.Window, n})
	}
}

func (m *loanModel) borrow(t *rapid.T) {
	if len(m.flying) == 0 {
		return
	}
	at := rapid.IntRange(0, len(m.flying)-1).Draw(t, "loan")
	f := m.flying[at]
	m.flying = append(m.flying[:at], m.flying[at+1:]...)
	out := rapid.Int64Range(0, 10).Draw(t, "out")
	before := m.stand(f.to)
	n, err := m.tables[f.to].CreditLoan(m.now, m.key, m.limits[f.to], f.window, f.n, out, always)
	after := m.stand(f.to)
	if wrong := f.window != before.Window; wrong != errors.Is(err, ErrOtherWindow) {
		t.Fatalf("have %v for window %d in %d", err, f.window, before.Window)
	}
	most := f.n // the part that a fixed window has not used yet widens it
	if m.limits[0].Kind.IsBucket() {
		most = min(f.n, max(0, before.Used-out))
	}
	if err == nil && !m.limits[0].Kind.IsBucket() && n != f.n || n > most ||
		after.Borrowed != before.Borrowed+n || after.Used != before.Used-n {
		t.Fatalf("have %d of %d borrowed, from %+v to %+v", n, f.n, before, after)
	}
	m.borrowed[f.to] += n
}

func (m *loanModel) giveBack(t *rapid.T) {
	if len(m.taken) == 0 || m.limits[0].Kind.IsBucket() {
		return
	}
	at := rapid.IntRange(0, len(m.taken)-1).Draw(t, "cost")
	c := m.taken[at]
	m.taken = append(m.taken[:at], m.taken[at+1:]...)
	_ = m.tables[c.at].give(m.now, m.key, m.limits[c.at], c.from, c.cost)
	m.admitted[c.at] -= c.cost
}

func (m *loanModel) pass(d time.Duration) {
	before := m.stand(0).Window
	m.now.Steady, m.now.Wall = m.now.Steady+int64(d), m.now.Wall+int64(d)
	for _, table := range m.tables {
		table.Sweep(m.now, 1)
	}
	if m.stand(0).Window != before {
		m.turned++
		m.forget()
	}
}

// check compares what each region admitted with what it may admit.
func (m *loanModel) check(t *rapid.T) {
	if m.limits[0].Kind.IsBucket() {
		return
	}
	admitted, limit := int64(0), int64(0)
	for i, l := range m.limits {
		admitted, limit = admitted+m.admitted[i], limit+l.Amount
		if s := m.stand(i); s.Lent != m.lent[i] || s.Borrowed != m.borrowed[i] {
			t.Fatalf("region %d: have %+v, want %d lent and %d borrowed", i, s, m.lent[i], m.borrowed[i])
		}
		if m.admitted[i] > l.Amount-m.lent[i]+m.borrowed[i] {
			t.Fatalf("region %d admitted %d of %d, lent %d, borrowed %d", i, m.admitted[i],
				l.Amount, m.lent[i], m.borrowed[i])
		}
	}
	if admitted > limit {
		t.Fatalf("have %d admitted, want at most %d", admitted, limit)
	}
}

// A region without a share can use what it borrows and lend half of what it
// does not use. It loses the rest with the window. That holds even after its
// counters were handed to another node and merged with an older copy.
func TestLoanToNoShare(t *testing.T) {
	table := New(1000)
	l := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 0, Window: time.Minute}
	now, k := algorithms.At(time.Unix(1_800_000_000, 0)), Key{Subject: 1, Counter: 2}
	window := table.Loans(now, k, l).Window
	if n, err := table.CreditLoan(now, k, l, window, 100, 0, always); n != 100 || err != nil {
		t.Fatalf("have %d, %v", n, err)
	}
	table.Sweep(now, 1)
	ops := []Op{{Key: k, Limit: l, Cost: 30}}
	if v := table.Take(now, ops); v != Admitted || ops[0].Decision.Remaining != 70 {
		t.Fatalf("have %v, %+v", v, ops[0].Decision)
	}
	table = copied(table, k.Partition(), now)
	defer func() { table.Close() }()
	table.Merge(now,
		Record{Key: k, Kind: l.Kind, State: algorithms.State{Count: 10, At: window}, ExpiresAt: now.Steady/1e9 + 60},
		true)
	if n, stand, err := table.DebitLoan(now, k, l, window, 100); n != 35 || stand.Used != -35 ||
		stand.OwnUse() != 30 || err != nil {
		t.Fatalf("have %d lent, %+v, %v", n, stand, err)
	}
	ops[0].Cost = 36
	if table.Take(now, ops) != Refused || ops[0].Decision.Remaining != 35 {
		t.Errorf("have %+v", ops[0].Decision)
	}
	ops[0].Cost = 35
	if table.Take(now, ops) != Admitted {
		t.Errorf("have %+v", ops[0].Decision)
	}
	next := algorithms.At(time.Unix(1_800_000_061, 0))
	if stand := table.Loans(next, k, l); stand.Remaining != 0 || stand.Borrowed != 0 || stand.widening != 0 {
		t.Errorf("in the next window have %+v", stand)
	}
}

// A region whose own traffic has used half of its share keeps the rest. One
// that used nothing lends everything, in halves.
func TestLendHalf(t *testing.T) {
	for own, want := range map[int64]int64{0: 300, 1: 299, 149: 151, 150: 0, 300: 0} {
		table := New(1000)
		l := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 300, Window: time.Minute}
		now, k := algorithms.At(time.Unix(1_800_000_000, 0)), Key{Subject: 1, Counter: 2}
		table.Take(now, []Op{{Key: k, Limit: l, Cost: own}})
		lent := int64(0)
		for {
			n, _, err := table.DebitLoan(now, k, l, table.Loans(now, k, l).Window, algorithms.MaxAmount)
			expect.NoError(t, err)
			lent += n
			if n == 0 {
				break
			}
		}
		expect.Equal(t, lent, want, "%d used, lent", own)
		table.Close()
	}
}

// A loan changes nothing if this node does not decide the counter, if the
// counter is in another window, or if its limit has no loans.
func TestLoanRefused(t *testing.T) {
	table := New(1000)
	defer table.Close()
	now, k := algorithms.At(time.Unix(1_800_000_000, 0)), Key{Subject: 1 << 60, Counter: 2}
	fixed := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 300, Window: time.Minute}
	sliding := &algorithms.Limit{Kind: algorithms.SlidingWindow, Amount: 300, Window: time.Minute}
	window := table.Loans(now, k, fixed).Window
	table.Take(now, []Op{{Key: k, Limit: fixed, Cost: 100}})
	try := func(what string, l *algorithms.Limit, window int64, same Life, want error) {
		t.Helper()
		if _, _, err := table.DebitLoan(now, k, l, window, 10); !errors.Is(err, want) {
			t.Errorf("lend, %s: have %v, want %v", what, err, want)
		}
		if n, err := table.CreditLoan(now, k, l, window, 10, 0, same); n != 0 || !errors.Is(err, want) {
			t.Errorf("borrow, %s: have %d, %v, want %v", what, n, err, want)
		}
		table.Unlend(now, k, l, window, 10, same)
	}
	try("next window", fixed, window+1, always, ErrOtherWindow)
	try("window before", fixed, window-1, always, ErrOtherWindow)
	try("sliding window", sliding, window, always, ErrOtherWindow)
	table.Shut(k.Partition())
	try("shut", fixed, window, always, ErrShut)
	table.Open(k.Partition(), soleLineage)
	if n, err := table.CreditLoan(now, k, fixed, window, 10, 0, Life{Lineage: 99}); n != 0 || err != nil {
		t.Errorf("another lineage: have %d, %v", n, err)
	}
	table.Unlend(now, k, fixed, window, 10, Life{Lineage: 99})
	if s := table.Loans(now, k, fixed); s.Used != 100 || s.Lent != 0 || s.Borrowed != 0 {
		t.Errorf("have %+v", s)
	}
	expect.Equal(t, table.Stats().Counters, 1, "counters")
}

// A table full of refusing counters makes no loans and forgets nothing.
func TestLoanWithoutRoom(t *testing.T) {
	table := New(64)
	defer table.Close()
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	l := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 2, Window: time.Hour}
	for table.Stats().Counters < 64 {
		k := Key{Subject: rand.Uint64(), Counter: rand.Uint64()}
		table.Take(now, []Op{{Key: k, Limit: l, Cost: 2}})
		table.Take(now, []Op{{Key: k, Limit: l, Cost: 1}})
	}
	used := Key{Subject: rand.Uint64(), Counter: 1}
	if n, _, err := table.DebitLoan(now, used, l, table.Loans(now, used, l).Window, 1); n != 0 || !errors.Is(err, ErrNoRoom) {
		t.Errorf("have %d, %v, want ErrNoRoom", n, err)
	}
}
