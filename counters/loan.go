package counters

import (
	"errors"

	"github.com/rlnode/rlnode/algorithms"
)

// A loan moves an unused part of one region's share of a limit to another
// region. The lender takes it from its counter, and later the borrower gives it
// to its own. Each side also records the loan in a companion of its counter
// (companion.go).

// ErrOtherWindow means that the counter is in another window than the loan.
// Nothing was changed.
var ErrOtherWindow = errors.New("the counter is in another window")

// Loans describes the counter of k and its loans. l must be a fixed window or a
// token bucket: only these have loans.
func (t *Table) Loans(now algorithms.Instant, k Key, l *algorithms.Limit) LoanBalance {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	return t.loansLocked(s, now, k, l)
}

// loansLocked is Loans for a caller that holds the shard.
func (t *Table) loansLocked(s *shard, now algorithms.Instant, k Key, l *algorithms.Limit) (out LoanBalance) {
	d := t.usageLocked(s, now, k, l)
	return s.balance(now, k, l, s.find(k).state(), &d)
}

// DebitLoan takes up to want units from the counter for another region,
// provided that the counter is in the given window (0 for buckets). It lends
// only while the counter's own region has used less than half of its share, as
// loans have widened the share.
//
// It lends at most half of what is unused, rounded up, or an eighth of the
// share if that is more. Without the eighth, the end of a share would take many
// small loans. It returns the amount lent and the counter's loans afterwards.
// If it fails with ErrShut, ErrOtherWindow or ErrNoRoom, nothing changes.
func (t *Table) DebitLoan(
	now algorithms.Instant, k Key, l *algorithms.Limit, window, want int64,
) (int64, LoanBalance, error) {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()

	loans, err := t.loansInWindow(s, now, k, l, window)
	if err != nil {
		return 0, loans, err
	}

	n := min(want, loans.Remaining, max(loans.Remaining-loans.Remaining/2, l.Capacity()/8))
	share := l.Capacity() + loans.widening
	inUse := loans.OwnUse()
	isHalfUsed := inUse >= share-inUse
	if n <= 0 || isHalfUsed {
		return 0, loans, nil
	}
	if !t.makeRoomForLoan(s, now, k, k.LentKey()) {
		return 0, loans, ErrNoRoom
	}

	took := false
	take := func(state algorithms.State, now algorithms.Instant) (next algorithms.State) {
		next, took = l.Take(state, now, n)
		return next
	}
	err = t.changeLocked(s, now, k, l, edit{state: take})
	if err != nil || !took {
		return 0, loans, err // nothing changed: a refused Take takes nothing
	}

	err = t.debitCompanion(s, now, k.LentKey(), l, n)
	if err != nil {
		return 0, loans, err // can't happen, because room was just made; the units taken would be lost
	}

	s.protect(k)
	return n, t.loansLocked(s, now, k, l), nil
}

// Unlend puts back a loan of n units that was made in the given life and never
// reported to its borrower. If the counter has moved to another window or begun
// another life, or this node no longer decides it, nothing happens and the loan
// is lost.
func (t *Table) Unlend(now algorithms.Instant, k Key, l *algorithms.Limit, window, n int64, life Life) {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	if _, err := t.loansInWindow(s, now, k, l, window); err != nil || n <= 0 || !t.isAlive(now, k, life) {
		return
	}
	give := edit{state: func(state algorithms.State, now algorithms.Instant) algorithms.State {
		state = l.Advance(state, now)
		return l.Give(state, l.TakeRecord(state, now), now, n)
	}}
	_ = t.changeLocked(s, now, k, l, give) // can't fail: it only lowers existing counters
	_ = t.changeLocked(s, now, k.LentKey(), l, give)
}

// loansInWindow returns the counter's loans. It fails with ErrShut, or with
// ErrOtherWindow if the counter is not in window or its limit can't be divided.
// The caller must hold the shard.
func (t *Table) loansInWindow(
	s *shard, now algorithms.Instant, k Key, l *algorithms.Limit, window int64,
) (LoanBalance, error) {
	if t.gates.isShut(k.Partition()) {
		return LoanBalance{}, ErrShut
	}
	loans := t.loansLocked(s, now, k, l)
	if !l.Kind.Divisible() || loans.Window != window {
		return loans, ErrOtherWindow
	}
	return loans, nil
}

// CreditLoan credits the counter with up to n units that were borrowed for
// window. It gives back no more than the counter has used, less outstanding:
// the amount that may still be given back in another way. What exceeds that
// widens a fixed window; for a bucket it is lost.
//
// CreditLoan returns how much it credited. It credits nothing if the counters
// are not those of life, in which the loan was asked for. If it fails with
// ErrShut, ErrOtherWindow or ErrNoRoom, nothing changes.
func (t *Table) CreditLoan(
	now algorithms.Instant, k Key, l *algorithms.Limit, window, n, outstanding int64, life Life,
) (int64, error) {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()

	loans, err := t.loansInWindow(s, now, k, l, window)
	if err != nil {
		return 0, err
	}

	back := min(n, loans.Room(outstanding))
	excess := int64(0)
	if l.Kind == algorithms.FixedWindow {
		excess = n - back
	}

	if back+excess <= 0 || !t.isAlive(now, k, life) {
		return 0, nil
	}
	if !t.makeRoomForLoan(s, now, k, k.BorrowedKey()) {
		return 0, ErrNoRoom
	}

	// The companion comes first. Used is corrected by what the companion records:
	// without a record, the credit would hide as much of the region's own use.
	if err := t.debitCompanion(s, now, k.BorrowedKey(), l, back+excess); err != nil {
		return 0, err
	}

	err = t.changeLocked(s, now, k, l, edit{state: func(state algorithms.State, now algorithms.Instant) algorithms.State {
		state = l.Advance(state, now)
		state = l.Give(state, l.TakeRecord(state, now), now, back)
		if excess > 0 {
			state = l.Widen(state, now, excess)
		}
		return state
	}})
	if err != nil {
		return 0, err // can't happen, because room was just made
	}

	if excess > 0 {
		s.protect(k)
	}
	return back + excess, nil
}

// makeRoomForLoan makes room for a counter and a companion, without evicting
// the counter or either of its companions. The caller must hold the shard.
func (t *Table) makeRoomForLoan(s *shard, now algorithms.Instant, k, companion Key) bool {
	all := [...]Op{{Key: k}, {Key: companion}, {Key: k.LentKey()}, {Key: k.BorrowedKey()}}
	return t.makeRoomFor(s, now, all[:2], all[:])
}

// debitCompanion debits a companion and protects it from eviction. The caller must
// hold the shard and have made room.
func (t *Table) debitCompanion(s *shard, now algorithms.Instant, k Key, l *algorithms.Limit, n int64) error {
	if err := t.changeLocked(s, now, k, l, debitEdit(l, n, false)); err != nil {
		return err
	}
	s.protect(k)
	return nil
}

// protect keeps a counter that is not a log from being evicted, until it is
// fresh or a check uses it. The caller must hold the shard.
func (s *shard) protect(k Key) {
	if loc := s.find(k); loc.found() {
		packed := &loc.group().kindFullnesses[loc.slot()]
		*packed = packKindFullness(packed.kind(), refusedFullness)
	}
}
