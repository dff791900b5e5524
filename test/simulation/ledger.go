package simulation

import (
	"fmt"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
)

// Ledger is the record of a run. The checkers use nothing else.
type Ledger struct {
	Start       time.Time // all other times count from here
	End         time.Duration
	Subjects    []Subject
	Checks      []Check // in the order in which they ended
	StandbyActs []StandbyAct
	Losses      []OwnerLoss
	Cuts        []Cut
	Owners      []Owner
	Troubles    []Trouble
	Failures    []string // mistakes that need no checker
	Counts      Counts
	Regions     []*Ledger // one per region, if there are several; the fields below are then those of all regions
	Versions    []Version // of the rules
	Loans       []Loan
	Holds       []Hold // of one region

	mu     sync.Mutex // guards Checks and Failures
	states sharedStates
}

// Subject is one limit of one subject.
type Subject struct {
	Rule, Key string
	Partition int
	Counter   counters.Key
	Limit     algorithms.Limit
	Exact     bool          // without leases
	Global    bool          // regions divide it; Limit is the undivided one of the first version
	TTL       time.Duration // of leases; 0 without leases
}

// Check is an answered check.
type Check struct {
	Began, Ended time.Duration // the decision was made in between
	Node         int
	Subject      int
	Cost         int64
	Share        int64 // the most that the node may spend of the limit alone
	Admitted     bool
	Joint        bool // a check with other subjects, too; By is the weakest of their ways of being decided
	By           limiter.DecidedBy
}

// StandbyAct is cost that a standby admitted in its owner's place.
type StandbyAct struct {
	At      time.Duration
	Node    int // the standby
	Subject int
	Cost    int64
	Share   int64
}

// OwnerLoss is a change of a subject's owner without a hand-over.
type OwnerLoss struct {
	At      time.Duration
	Subject int
	Amount  int64 // debits of the old owner, leases included, that the new one does not have
	Anew    bool  // the new owner has none of them
}

// Cut is a time in which a node did not reach a leader.
type Cut struct {
	Node        int
	From, Until time.Duration
}

// Owner records when a node became the owner of a partition that has subjects.
type Owner struct {
	At        time.Duration
	Partition int
	Node      int
}

const (
	// forever is a time that never comes.
	forever = time.Duration(1<<63 - 1)
	// authorityTime is how long a node has authority after its last contact with the leader.
	authorityTime = 2 * time.Second
	// aftermath is the time after a fault for which its effects may last.
	aftermath = 5 * time.Second
)

// Trouble is a time in which a fault affected nodes.
type Trouble struct {
	From, Until time.Duration
	Nodes       map[int]bool // nil for all
}

// Counts counts what happened in a run.
type Counts struct {
	By     [8]int64 // checks by limiter.DecidedBy, admitted or not
	Judged Judged
	// For several regions.
	Recorded int   // versions that all regions honoured
	Lent     int64 // units lent
}

// Judged counts what the checkers judged.
type Judged struct {
	Windows int // fixed windows with admissions
	Full    int // of those: the ones with lasting demand and without faults
	Spans   int // subjects of other algorithms
	Alone   int // windows of nodes that decided alone
	// For several regions.
	Admissions int // of global limits
	Whole      int // fixed windows of global limits with admissions
	Exact      int // of those: the ones whose bound was the limit itself
	Filled     int // of those: the ones in which at least 90 % of the limit was admitted
	Flows      int // subjects of token buckets
}

// Note adds a check. It is safe for concurrent use.
func (l *Ledger) Note(c Check) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Checks = append(l.Checks, c)
	l.Counts.By[c.By]++
}

// Fail records a failure that needs no checker. It is safe for concurrent use.
func (l *Ledger) Fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Failures = append(l.Failures, fmt.Sprintf(format, args...))
}
