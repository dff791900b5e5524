package limiter

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
)

// Messages about limits that regions divide. They identify a subject by its
// rule's name and its key, because each region finds counters by its own rules.

const (
	maxRuleBytes  = 1024
	maxValueBytes = 8192
	// maxShares bounds the limits in a reply about shares. It is also the bound on
	// the limits of a rule.
	maxShares = 16
)

// subjectRef names a subject by rule and key. It is the body of MethodShare.
type subjectRef struct {
	version int64 // of the sender's rules
	Rule    string
	Key     []string
}

// Code implements wire.Message.
func (ref *subjectRef) Code(c *wire.Coder) {
	wire.Number(c, &ref.version, maxVersion)
	c.Text(&ref.Rule, maxRuleBytes)
	c.Texts(&ref.Key, maxKeyValues, maxValueBytes)
}

// LoanRequest asks another region for a loan. It is the body of MethodLend.
type LoanRequest struct {
	subjectRef
	limit  uint64 // rules.Limit.ID
	Window int64  // number of the window; zero for a token bucket
	Want   int64  // units
}

// Code implements wire.Message.
func (req *LoanRequest) Code(c *wire.Coder) {
	req.subjectRef.Code(c)
	wire.Fixed(c, &req.limit)
	wire.Varint(c, &req.Window)
	wire.Number(c, &req.Want, algorithms.MaxAmount)
	c.Require(req.Want > 0)
}

// loanStatus is the outcome of a request for a loan.
type loanStatus uint8

const (
	loanMade    loanStatus = iota
	loanNothing            // nothing to lend now, or later in this window
	loanLater              // not now, for example because the windows differ or the counter is being moved
	loanUnknown            // the lender has no such rule, key or limit, or does not lend from the limit
	loanStatuses
)

// LoanReply answers a LoanRequest.
type LoanReply struct {
	status loanStatus
	Amount int64 // units lent; zero unless the loan was made
	unused int64 // units left of the lender's share
	rate   int64 // Amount of the lender's limit, for a token bucket
}

// Code implements wire.Message.
func (r *LoanReply) Code(c *wire.Coder) {
	wire.Number(c, &r.status, int64(loanStatuses-1))
	wire.Number(c, &r.Amount, algorithms.MaxAmount)
	wire.Number(c, &r.unused, algorithms.MaxAmount)
	wire.Number(c, &r.rate, algorithms.MaxAmount)
	c.Require((r.status == loanMade) == (r.Amount > 0))
}

// shareReply reports a region's use of its shares of a rule's limits.
type shareReply struct{ limits []ShareUsage }

// Code implements wire.Message.
func (r *shareReply) Code(c *wire.Coder) {
	wire.List(c, &r.limits, maxShares, 8+6, func(share *ShareUsage) {
		wire.Fixed(c, &share.id)
		wire.Number(c, &share.Share, math.MaxInt64)
		wire.Varint(c, &share.Used)
		wire.Number(c, &share.Leased, math.MaxInt64)
		wire.Number(c, &share.Lent, math.MaxInt64)
		wire.Number(c, &share.Borrowed, math.MaxInt64)
		wire.Number(c, &share.Remaining, math.MaxInt64)
		c.Require(share.Used >= -algorithms.MaxAmount)
	})
}

// ShareUsage reports what a region has used of its share of a limit.
type ShareUsage struct {
	Name      string `json:"name"`   // of the limit
	Share     int64  `json:"share"`  // capacity of the region's share
	Used      int64  `json:"used"`   // Own + Leased + Lent − Borrowed
	Own       int64  `json:"own"`    // by the region's own checks
	Leased    int64  `json:"leased"` // at the region's nodes, and not spent
	Lent      int64  `json:"lent"`
	Borrowed  int64  `json:"borrowed"`
	Remaining int64  `json:"remaining"`

	id uint64 // rules.Limit.ID
}
