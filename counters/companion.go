package counters

import "github.com/rlnode/rlnode/algorithms"

// A companion records what a counter has lent, or what it has borrowed. It is a
// counter under the same limit, in the same shard, and is debited with each
// loan. So what it records expires or drains as the loan does, and moves
// wherever the counter moves. Checks read companions only to report what their
// own region uses.

// A companion has its counter's Key, except for these bits of Key.Counter.
const (
	lentBits     = 0x9e6c63d0876a9a47
	borrowedBits = 0x3f84d5b5b5470917
)

// LentKey is the key of the companion that records what k lent.
func (k Key) LentKey() Key { return Key{Subject: k.Subject, Counter: k.Counter ^ lentBits} }

// BorrowedKey is the key of the companion that records what k borrowed.
func (k Key) BorrowedKey() Key { return Key{Subject: k.Subject, Counter: k.Counter ^ borrowedBits} }

// LoanBalance describes a counter and its loans, in units of the limit.
type LoanBalance struct {
	Window    int64 // number of the counter's window; 0 for buckets
	Used      int64 // rounded up: own use plus lent minus borrowed; exceeds the capacity in debt, may be negative
	Remaining int64 // rounded down
	Lent      int64 // in this window; for a bucket, the part that has not drained yet
	Borrowed  int64 // in this window; for a bucket, the part that has not drained yet

	wholeUnits int64 // Used, but of a bucket without the fraction of a unit
	widening   int64 // of a fixed window: the amount borrowed beyond its usage at that time
}

// OwnUse returns what the counter's own region has used.
func (lb *LoanBalance) OwnUse() int64 { return max(0, lb.Used-lb.Lent+lb.Borrowed) }

// Room returns how much can be given back to the counter besides outstanding,
// the amount that may still be given back in another way.
func (lb *LoanBalance) Room(outstanding int64) int64 {
	return max(0, lb.wholeUnits-max(0, outstanding))
}

// balance describes the counter of k and its loans. state is the counter's, and
// d the decision on a check of cost 0. The caller must hold the shard.
func (s *shard) balance(
	now algorithms.Instant, k Key, l *algorithms.Limit, state algorithms.State, d *algorithms.Decision,
) (out LoanBalance) {
	out.Used, out.Remaining = d.Used, d.Remaining
	out.Lent, out.Borrowed = s.companions(now, k, l)
	out.wholeUnits = out.Used

	state = l.Advance(state, now)
	if l.Kind.IsBucket() {
		out.wholeUnits = state.Count
	} else {
		out.Window = state.Window()
		out.widening = state.Part
		out.Used -= out.widening
	}
	return out
}

// companions returns what the counter of k has lent and borrowed. The caller must hold the shard.
func (s *shard) companions(now algorithms.Instant, k Key, l *algorithms.Limit) (lent, borrowed int64) {
	used := func(k Key) int64 { return l.Used(l.Advance(s.find(k).state(), now), now) }
	return used(k.LentKey()), used(k.BorrowedKey())
}

// leaveOutLoans changes op's Decision, which describes the given state of its
// counter, so that Used is the use of the counter's own region: what was lent
// is subtracted, and what was borrowed is added. The caller must hold the
// shard.
func (s *shard) leaveOutLoans(now algorithms.Instant, op *Op, state algorithms.State) {
	loans := s.balance(now, op.Key, op.Limit, state, &op.Decision)
	op.Decision.Used, op.Decision.NetBorrowed = loans.OwnUse(), loans.Borrowed-loans.Lent
}
