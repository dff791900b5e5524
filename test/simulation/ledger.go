package simulation

import (
	"fmt"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
)

// Ledger is what happened in a run. The checkers go by nothing else.
type Ledger struct {
	Config   Config
	Start    time.Time // all other times count from here
	End      time.Duration
	Subjects []Subject
	Checks   []Check // in the order in which they ended
	Acts     []Act
	Losses   []Loss
	Cuts     []Cut
	Owners   []Owner
	Troubles []Trouble
	Failures []string // what is wrong without any checker
	Counts   Counts
	Events   int64
	Regions  []*Ledger // one for each region, where there are several; what follows is then of all of them
	Versions []Version // of the rules
	Loans    []Loan
	Holds    []Hold   // a region's
	TooSoon  []string // loans that were told of before they were safe

	mu sync.Mutex // guards Checks and Failures
}

// Subject is one limit of one subject.
type Subject struct {
	Rule, Key string
	Partition int
	Counter   counters.Key
	Limit     algorithms.Limit
	Exact     bool          // no leases
	Global    bool          // regions divide it; Limit is the whole of the first version
	TTL       time.Duration // of leases; 0: none
}

// Check is one check that was answered.
type Check struct {
	Began, Ended time.Duration // it was decided in between
	Node         int
	Subject      int
	Cost         int64
	Share        int64 // the most that the node may spend of the limit by itself
	Admitted     bool
	Joint        bool // it was about other subjects too: By is the weakest of the ways in which they were decided
	By           limiter.DecidedBy
}

// Act is what a standby admitted in its owner's place.
type Act struct {
	At      time.Duration
	Node    int // the standby
	Subject int
	Cost    int64
	Share   int64
}

// Loss is a change of a subject's owner that is no hand-over.
type Loss struct {
	At      time.Duration
	Subject int
	Amount  int64 // debits of the old owner, leases included, that the new one does not know
	Anew    bool  // it knows none
}

// Cut is a time in which a node did not hear the leader, if there was one.
type Cut struct {
	Node        int
	From, Until time.Duration
}

// Owner is the beginning of a node's time as the owner of a partition with subjects in it.
type Owner struct {
	At        time.Duration
	Partition int
	Node      int
}

// Trouble is a time in which something was wrong with some nodes.
type Trouble struct {
	From, Until time.Duration
	Nodes       map[int]bool // nil: all
}

// Counts say how much happened.
type Counts struct {
	Faults map[string]int
	By     [8]int64 // checks by limiter.DecidedBy, admitted or not
	Ended  int      // nodes that the leader ended
	Begun  int      // partitions whose owner changed without a hand-over
	Anew   int      // of those, that began without a copy
	Rings  int
	Moved  int // partitions handed over
	Debts  int // debts paid
	Judged Judged
	// Of several regions.
	Recorded int   // versions that all regions honoured
	Loans    int   // made
	Lent     int64 // units
}

// Judged says how much the checkers had to look at.
type Judged struct {
	Windows int // fixed windows with admissions
	Full    int // of those, where demand lasted and nothing was wrong
	Spans   int // subjects of other algorithms
	Alone   int // windows of a node that decided alone
	// Of several regions.
	Admissions int // of global limits
	Whole      int // fixed windows of them with admissions
	Exact      int // of those looked at, whose bound was the limit
	Filled     int // and of those, in which 90 % of the limit or more was admitted
	Flows      int // subjects of token buckets
}

// Note adds a check.
func (l *Ledger) Note(c Check) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Checks = append(l.Checks, c)
	l.Counts.By[c.By]++
}

// Fail notes something wrong.
func (l *Ledger) Fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Failures = append(l.Failures, fmt.Sprintf(format, args...))
}

// addTooSoon notes a loan that was told of before it was safe. It is called under the world's mutex.
func (l *Ledger) addTooSoon(format string, args ...any) {
	l.TooSoon = append(l.TooSoon, fmt.Sprintf(format, args...))
}

// beginTrouble begins one, and returns its place for over.
func (l *Ledger) beginTrouble(from time.Duration, nodes map[int]bool) int {
	l.Troubles = append(l.Troubles, Trouble{From: from, Until: forever, Nodes: nodes})
	return len(l.Troubles) - 1
}

func (l *Ledger) endTrouble(i int, at time.Duration) { l.Troubles[i].Until = at }

// addCut notes that a node did not hear the leader. One that does hear all others is asked by them, and asks them.
func (l *Ledger) addCut(n *node, from, until time.Duration) {
	if n.wasStuck {
		return
	}
	l.Cuts = append(l.Cuts, Cut{Node: n.index, From: from, Until: until})
}
