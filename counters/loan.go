package counters

import (
	"errors"

	"github.com/rlnode/rlnode/algorithms"
)

// A loan moves what one region has not used of its share of a limit to another region: a Take at the lender, and a Give
// at the borrower, later. Both are kept beside the counter too, in companions: counters under the same limit that are
// debited with what was lent, or borrowed, so that they end, or drain, as what they tell of does, and go wherever the
// counter goes. Nobody asks them about a cost.

// ErrWindow: the counter is not in the window that a loan is for; nothing was changed.
var ErrWindow = errors.New("counter is in another window")

// Companions of a counter have its Key, but for these bits of Lo.
const (
	lentMark     = 0x9e6c63d0876a9a47
	borrowedMark = 0x3f84d5b5b5470917
)

// LentKey is the counter of what was lent of k.
func (k Key) LentKey() Key { return Key{Hi: k.Hi, Lo: k.Lo ^ lentMark} }

// BorrowedKey is the counter of what was borrowed for k.
func (k Key) BorrowedKey() Key { return Key{Hi: k.Hi, Lo: k.Lo ^ borrowedMark} }

// Loans is how a counter stands with loans.
type Loans struct {
	Window    int64 // number of the window that it stands in; 0 for buckets
	Used      int64 // rounded up, above the capacity in debt: what its own region used, and lent, less what it borrowed; may be below 0
	Remaining int64 // rounded down
	Lent      int64 // in this window; of a bucket: what has not drained since
	Borrowed  int64 // likewise

	whole int64 // Used without the part of a unit
	room  int64 // of a fixed window: what was borrowed beyond what it had used then
}

// Own is what the counter's own region has used.
func (l *Loans) Own() int64 { return max(0, l.Used-l.Lent+l.Borrowed) }

// Loans tells how the counter of k stands with loans. Limits other than fixed windows and token buckets have none.
func (t *Table) Loans(now algorithms.Now, k Key, l *algorithms.Limit) Loans {
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.loansHeld(s, now, k, l)
}

// loansHeld is Loans for a shard that is held.
func (t *Table) loansHeld(s *shard, now algorithms.Now, k Key, l *algorithms.Limit) (out Loans) {
	var d algorithms.Decision
	out.Used, d = t.usageHeld(s, now, k, l)
	out.Remaining = d.Remaining
	out.Lent, _ = t.usageHeld(s, now, k.LentKey(), l)
	out.Borrowed, _ = t.usageHeld(s, now, k.BorrowedKey(), l)
	out.whole = out.Used
	if state := l.Advance(s.find(k).state(), now); l.Kind.Bucket() {
		out.whole = state.Count
	} else {
		out.Window, out.room = state.Window(), state.Part
		out.Used -= out.room
	}
	return out
}

// Lend takes up to want units of the counter for another region, if it is in that window (any, of a bucket): while its
// own region has used less than half of its share and what it borrowed, half of what is unused, rounded up. It returns how much, and how
// the counter stands afterwards. It fails, and does nothing, with ErrShut, ErrWindow or ErrFull.
func (t *Table) Lend(now algorithms.Now, k Key, l *algorithms.Limit, window, want int64) (int64, Loans, error) {
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	stand, err := t.lendable(s, now, k, l, window)
	if err != nil {
		return 0, stand, err
	}
	n := min(want, stand.Remaining-stand.Remaining/2)
	if own := stand.Own(); n <= 0 || own >= l.Capacity()+stand.room-own {
		return 0, stand, nil
	}
	if !t.roomForLoan(s, now, k) {
		return 0, stand, ErrFull
	}
	took := false
	if err := t.changeHeld(s, now, k, l, edit{state: func(state algorithms.State) (next algorithms.State) {
		next, took = l.Take(state, now, n)
		return next
	}}); err != nil || !took {
		return 0, stand, err // nothing changed: a Take that refuses takes nothing
	}
	if err := t.noteLoan(s, now, k.LentKey(), l, n); err != nil {
		return 0, stand, err // quota lost: room was just made
	}
	s.keep(k)
	return n, t.loansHeld(s, now, k, l), nil
}

// Unlend puts back a loan that nobody was told of. Where the counter has gone on to another window, or is not decided
// here any more, nothing happens: it is lost. same reports, while no partition comes or goes, whether the counters here
// are still those that the loan came from.
func (t *Table) Unlend(now algorithms.Now, k Key, l *algorithms.Limit, window, n int64, same func() bool) {
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := t.lendable(s, now, k, l, window); err != nil || n <= 0 || !same() {
		return
	}
	give := edit{state: func(state algorithms.State) algorithms.State {
		state = l.Advance(state, now)
		return l.Give(state, l.Taken(state, now), now, n)
	}}
	_ = t.changeHeld(s, now, k, l, give) // it only lowers what is there
	_ = t.changeHeld(s, now, k.LentKey(), l, give)
}

// lendable reports how the counter stands if it may take part in a loan for a window.
func (t *Table) lendable(s *shard, now algorithms.Now, k Key, l *algorithms.Limit, window int64) (Loans, error) {
	if t.gates.isShut(k.Partition()) {
		return Loans{}, ErrShut
	}
	stand := t.loansHeld(s, now, k, l)
	if !l.Kind.Shared() || stand.Window != window {
		return stand, ErrWindow
	}
	return stand, nil
}

// Borrow puts into the counter what was borrowed for a window, up to n units, but no more than it has used without out,
// which may still come back to it otherwise. What is more than that widens a fixed window, and is lost of a bucket. It returns
// how much came in. same reports, while no partition comes or goes, whether the counters here are still those that it was
// borrowed for. It fails, and does nothing, with ErrShut, ErrWindow or ErrFull.
func (t *Table) Borrow(now algorithms.Now, k Key, l *algorithms.Limit, window, n, out int64, same func() bool) (int64, error) {
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	stand, err := t.lendable(s, now, k, l, window)
	if err != nil {
		return 0, err
	}
	back, more := min(n, stand.Room(out)), int64(0)
	if l.Kind == algorithms.FixedWindow {
		more = n - back
	}
	if back+more <= 0 || !same() {
		return 0, nil
	}
	if !t.roomForLoan(s, now, k) {
		return 0, ErrFull
	}
	if err := t.noteLoan(s, now, k.BorrowedKey(), l, back+more); err != nil {
		return 0, err
	}
	err = t.changeHeld(s, now, k, l, edit{state: func(state algorithms.State) algorithms.State {
		state = l.Advance(state, now)
		state = l.Give(state, l.Taken(state, now), now, back)
		if more > 0 {
			state = l.Widen(state, now, more)
		}
		return state
	}})
	if more > 0 {
		s.keep(k)
	}
	return back + more, err
}

// Room is how much the counter could take back beside out, which may still come back to it otherwise.
func (l *Loans) Room(out int64) int64 { return max(0, l.whole-max(0, out)) }

// roomForLoan makes room for two counters, and not by what the loan is about. The shard is held.
func (t *Table) roomForLoan(s *shard, now algorithms.Now, k Key) bool {
	spared := [...]Op{{Key: k}, {Key: k.LentKey()}, {Key: k.BorrowedKey()}}
	return t.roomFor(s, k, now, 2, spared[:])
}

// noteLoan debits a companion, and keeps it from being evicted. The shard is held and has room.
func (t *Table) noteLoan(s *shard, now algorithms.Now, k Key, l *algorithms.Limit, n int64) error {
	if err := t.changeHeld(s, now, k, l, penalty(l, now, n)); err != nil {
		return err
	}
	s.keep(k)
	return nil
}

// keep has a counter, which is no log, not evicted until it is fresh, or is asked about a cost. The shard is held.
func (s *shard) keep(k Key) {
	if p := s.find(k); p.found() {
		m := &p.home().marks[p.slot()]
		*m = newMark(m.kind(), refusedLevel)
	}
}
