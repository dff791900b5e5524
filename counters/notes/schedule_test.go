package notes

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// Reservations with a body are due at their end, in order and once, whatever
// was settled, removed or moved meanwhile.
func TestSchedule(t *testing.T) {
	s := New(1 << 20)
	put := func(id uint64, open time.Duration, body string, rank uint64) {
		n := reservation(1, id, id)
		n.At, n.Minor, n.UntilSecond = begin, uint64(open), begin/1e9+1000
		n.Body, n.Rank = body, rank
		lp := s.Lock(n.Partition(), begin)
		defer lp.Unlock()
		lp.Put(&n)
	}
	for id := range uint64(20) {
		put(id, time.Duration(20-id)*time.Second, "do", Open)
		put(id, time.Duration(20-id)*time.Second, "do", Open)
	}
	put(100, time.Second, "", Open)
	put(19, 0, "the answer", Settled)
	lp := s.Lock(0, begin)
	lp.Remove(reservation(1, 18, 18).Key)
	lp.Unlock()

	if at, some := s.NextDue(); !some || at != begin+1e9 {
		t.Errorf("the first is due at %d, %t", at, some)
	}
	expect.Equal(t, len(s.TakeDue(begin, 10)), 0, "due at once")
	var got []uint64
	for range 3 {
		for _, n := range s.TakeDue(begin+5e9, 2) {
			got = append(got, n.ID)
		}
	}
	if len(got) != 3 || got[0] != 17 || got[1] != 16 || got[2] != 15 {
		t.Errorf("%v were due in order, want 17, 16, 15", got)
	}
	s.PutOff(reservation(1, 17, 17).Key, begin+6e9)
	if list := s.TakeDue(begin+6e9, 10); len(list) != 2 || list[1].ID != 17 {
		t.Errorf("%v, want 14, and what was put off", list)
	}

	// A copy has its own schedule.
	other := New(1 << 20)
	for p := range s.partitions {
		for _, n := range s.Copy(p) {
			other.Replace(&n, begin)
		}
	}
	expect.Equal(t, len(other.TakeDue(begin+60e9, 100)), 18, "due in a copy")
}

// Late places and rates give way to new ones, but not those of a rule that has hardly any.
func TestLateOnesGiveWay(t *testing.T) {
	s := New(1 << 20)
	make := func(group uint32, subject uint64) {
		n := reservation(group, subject, 1)
		n.At, n.Minor, n.UntilSecond = begin, 1e9, begin/1e9+61+LateSettling
		rate := n
		rate.Kind, rate.Rank, rate.Minor = Rate, 5, 0
		lp := s.Lock(n.Partition(), begin)
		defer lp.Unlock()
		expect.NoError(t, lp.PutIfRoom(n, rate))
	}
	for i := range uint64(1000) {
		make(1, spread(i))
	}
	make(2, spread(5000))
	count := func() (n int) {
		for p := range s.partitions {
			n += len(s.Copy(p))
		}
		return n
	}
	at := begin + 100e9
	s.Sweep(at, 1, func(int) bool { return true })
	expect.Equal(t, s.Stats().Open, 1001, "open after their end, as none was carried out")
	before := count()
	s.BoundReservations(1000 * Overhead)
	s.Sweep(at, 1, func(int) bool { return true })
	s.Sweep(at+int64((RateRetention+1)*time.Second), 1, func(int) bool { return true })
	// Half of each may stay, and what the other rule has, and a note for each
	// partition that has forgotten rates.
	if got := s.Stats().Reservations; got > 501*Overhead || got < 500*Overhead || before != 2002 {
		t.Errorf("%d bytes of reservations are left, of %d notes", got, before)
	}
	if !s.Lock(0, at).HasForgottenRates(spread(0), at) {
		t.Error("the partition does not know that it has forgotten rates")
	}
}
