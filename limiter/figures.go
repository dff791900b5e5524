package limiter

import (
	"sync/atomic"
	"time"
)

// ForwardBounds are the upper bounds of ClusterStats.Seconds.
var ForwardBounds = [...]time.Duration{
	25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
}

// ClusterStats are counts since the process began.
type ClusterStats struct {
	Forwards  int64                         // messages with questions that others answered
	Seconds   [len(ForwardBounds) + 1]int64 // of those, by the first of ForwardBounds that holds; the last is beyond all
	Sum       time.Duration                 // that they took together
	Coalesced int64                         // checks that shared a message with one before them
	Failed    int64                         // questions that were not answered, or that the one asked could not decide
	Fallback  [4]int64                      // subjects decided without owner and standby, by rules.OnPartition
	Acted     int64                         // decisions here as a standby
	Served    int64                         // decisions here for other nodes
	Relayed   int64                         // questions passed on
	Given     int64                         // messages that gave back what another node's refusal made void
	Busy      int64                         // questions turned away
	Leases    int64                         // grants held here
	Out       int64                         // grants that others hold of this node
	Leased    int64                         // subjects of checks spent from leases
	Cached    int64                         // subjects of checks refused as their owners refused a moment ago
	Renewals  int64                         // questions that only renew a lease
	Granted   int64                         // wishes for leases that were granted here
	Ungranted int64                         // and that were not
	Returned  int64                         // limits of which leases came back here unspent
	// Reservations are counted by a node by itself too.
	Reservations ReservationStats
	Requests     RequestStats // likewise
	// Loans to other regions made here, and from them: how many, and of how many units. Lost are units that were lent to
	// this node and came too late, or to where there was no room.
	Lent, LentUnits, Borrowed, BorrowedUnits, LoansFailed, LoanUnitsLost int64

	Uncharged int64 // debts of reservations that their owners could not be told
}

type figures struct {
	seconds                                                     [len(ForwardBounds) + 1]atomic.Int64
	sum                                                         atomic.Int64
	coalesced, failed, acted, served, relayed, given, busyness  atomic.Int64
	leased, remembered, renewals, granted, ungranted, returned  atomic.Int64
	uncharged                                                   atomic.Int64
	lent, lentUnits, borrowed, borrowedUnits, lost, loansFailed atomic.Int64
	fallback                                                    [4]atomic.Int64
}

// answered counts a question that took d.
func (f *figures) answered(d time.Duration) {
	i := 0
	for i < len(ForwardBounds) && d > ForwardBounds[i] {
		i++
	}
	f.seconds[i].Add(1)
	f.sum.Add(int64(d))
}

// ClusterStats returns what this node did together with others; zeros for a node by itself.
func (l *Limiter) ClusterStats() (s ClusterStats) {
	s.Reservations, s.Requests = l.ReservationStats(), l.RequestStats()
	if l.member == nil {
		return s
	}
	f := &l.member.figures
	for i := range s.Seconds {
		s.Seconds[i] = f.seconds[i].Load()
		s.Forwards += s.Seconds[i]
	}
	for i := range s.Fallback {
		s.Fallback[i] = f.fallback[i].Load()
	}
	s.Sum, s.Coalesced, s.Failed = time.Duration(f.sum.Load()), f.coalesced.Load(), f.failed.Load()
	s.Acted, s.Served, s.Relayed = f.acted.Load(), f.served.Load(), f.relayed.Load()
	s.Given, s.Busy = f.given.Load(), f.busyness.Load()
	s.Leases, s.Out = l.member.leases.Count(), l.member.book.Out()
	s.Leased, s.Cached, s.Renewals = f.leased.Load(), f.remembered.Load(), f.renewals.Load()
	s.Granted, s.Ungranted, s.Returned = f.granted.Load(), f.ungranted.Load(), f.returned.Load()
	s.Uncharged = f.uncharged.Load()
	s.Lent, s.LentUnits, s.Borrowed, s.BorrowedUnits = f.lent.Load(), f.lentUnits.Load(), f.borrowed.Load(), f.borrowedUnits.Load()
	s.LoansFailed, s.LoanUnitsLost = f.loansFailed.Load(), f.lost.Load()
	return s
}
