package limiter

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// grant makes the grant that one request asks for, and debits it from the
// counters of ops. It returns false if the limits do not allow a grant.
func (ls *leases) grant(
	now algorithms.Instant, request *leaseRequest, ops []counters.Op, lineage uint64, nodes int,
) (leaseGrant, bool) {
	cp := ls.limiter.cluster
	g := leaseGrant{subject: request.subject, Grant: localcache.Grant{EndsIn: request.Policy.TTL}}
	for i := range ops {
		if !localcache.LeasableAmong(ops[i].Limit, nodes) {
			return g, false
		}
	}

	req := localcache.GrantInput{Holder: request.holder, Lineage: lineage,
		SameBoot: request.Boot == ls.limiter.boot, Request: &request.LeaseRequest, Nodes: nodes,
		Ops: ops}
	g.ID, g.Amounts = ls.granted.Grant(cp.Boottime(), &req, func(ops []counters.Op) bool {
		if debitFirst {
			if ls.limiter.table.Take(now, ops) != counters.Admitted {
				return false
			}
		} else { // only in a test of the checkers: see debit_on.go
			ls.limiter.table.Peek(now, ops)
		}

		for i := range ops {
			g.addMark(&ops[i])
		}
		return true
	})
	if g.ID != 0 {
		cp.counts.granted.Add(1)
	}

	return g, g.ID != 0
}

// addMark adds to g the mark of the debit from op's limit. It makes g end no
// later than the window that was debited.
func (g *leaseGrant) addMark(op *counters.Op) {
	if op.Limit.Kind == algorithms.TokenBucket {
		g.Marks = append(g.Marks, algorithms.TakeMark(op.Decision.ResetAfter))
		return
	}
	g.Marks = append(g.Marks, algorithms.TakeMark(op.TakeRecord().Window))
	g.EndsIn = min(g.EndsIn, op.Limit.WindowLeft(op.At))
}

// leaseRequest requests a grant for one of a question's subjects.
type leaseRequest struct {
	subject uint64 // Key.Subject of the subject
	holder  ring.NodeID
	localcache.LeaseRequest
}

// leaseGrant is a grant in a reply.
type leaseGrant struct {
	subject uint64 // Key.Subject of the subject
	localcache.Grant
}

const (
	// minLeaseRequestBytes and minGrantBytes are the minimum sizes of an encoded request and grant.
	minLeaseRequestBytes = 8 + len(ring.NodeID{}) + 8 + 8 + 1 + 8 + 1 + 2 + 1
	minGrantBytes        = 8 + 1 + 1 + 2 + 2
)

func (req *leaseRequest) code(c *wire.Coder) {
	policy := &req.Policy
	wire.Fixed(c, &req.subject)
	c.Raw(req.holder[:])
	c.Float(&policy.Threshold)
	c.Float(&policy.Idle)
	wire.Number(c, &policy.TTL, int64(localcache.MaxTTL))
	wire.Fixed(c, &req.Boot)
	wire.Number(c, &req.LastGrant, math.MaxInt64)
	codeAmounts(c, &req.Want, math.MaxInt64)
	wire.List(c, &req.Held, localcache.MaxGrants, minHeldBytes, func(held *localcache.HeldGrant) {
		codeHeld(c, held)
		c.Require(len(held.Left) == len(req.Want))
	})

	// NaN fails these conditions, too.
	c.Require(policy.Threshold >= 0 && policy.Threshold <= 1 && policy.Idle >= 0 &&
		policy.Idle <= 1 && policy.TTL >= localcache.MinTTL && len(req.Want) > 0)
}

func (g *leaseGrant) code(c *wire.Coder) {
	wire.Fixed(c, &g.subject)
	wire.Number(c, &g.ID, math.MaxInt64)
	wire.Number(c, &g.EndsIn, int64(localcache.MaxTTL))
	codeAmounts(c, &g.Amounts, algorithms.MaxAmount)
	wire.List(c, &g.Marks, maxSubjectOps, 1, func(mark *algorithms.TakeMark) { wire.Varint(c, mark) })
	c.Require(g.ID != 0 && len(g.Amounts) > 0 && len(g.Marks) == len(g.Amounts))
}

// minHeldBytes is the minimum size of an encoded HeldGrant.
const minHeldBytes = 2

func codeHeld(c *wire.Coder, held *localcache.HeldGrant) {
	wire.Number(c, &held.ID, math.MaxInt64)
	codeAmounts(c, &held.Left, math.MaxInt64)
}

// codeAmounts writes or reads a number of units for each limit of a subject.
func codeAmounts(c *wire.Coder, list *[]int64, most int64) {
	wire.List(c, list, maxSubjectOps, 1, func(n *int64) { wire.Number(c, n, most) })
}
