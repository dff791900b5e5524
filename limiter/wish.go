package limiter

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// wish asks for a lease on one of a question's subjects.
type wish struct {
	hi     uint64 // Key.Hi of the subject
	holder ring.NodeID
	localcache.Wish
}

// granted is a lease granted in a reply.
type granted struct {
	hi uint64 // Key.Hi of the subject
	localcache.Grant
}

const (
	// maxHeld bounds the grants of one subject that a node may hold.
	maxHeld = 2
	// leastWish and leastGrant are the least sizes of a wish and a grant, in bytes.
	leastWish  = 8 + len(ring.NodeID{}) + 8 + 8 + 1 + 8 + 1 + 2 + 1
	leastGrant = 8 + 1 + 1 + 2 + 2
)

func (w *wish) code(c *wire.Coder) {
	t := &w.Terms
	wire.Fixed(c, &w.hi)
	c.Raw(w.holder[:])
	c.Float(&t.Threshold)
	c.Float(&t.Idle)
	wire.Number(c, &t.TTL, int64(localcache.MaxTTL))
	wire.Fixed(c, &w.Process)
	wire.Number(c, &w.Seen, math.MaxInt64)
	codeAmounts(c, &w.Want, math.MaxInt64)
	wire.List(c, &w.Held, maxHeld, 2, func(h *localcache.Held) {
		wire.Number(c, &h.ID, math.MaxInt64)
		codeAmounts(c, &h.Left, math.MaxInt64)
		c.Require(len(h.Left) == len(w.Want))
	})
	// Written so that NaN fails too.
	c.Require(t.Threshold >= 0 && t.Threshold <= 1 && t.Idle >= 0 && t.Idle <= 1 && t.TTL >= localcache.MinTTL && len(w.Want) > 0)
}

func (g *granted) code(c *wire.Coder) {
	wire.Fixed(c, &g.hi)
	wire.Number(c, &g.ID, math.MaxInt64)
	wire.Number(c, &g.EndsIn, int64(localcache.MaxTTL))
	codeAmounts(c, &g.Amounts, algorithms.MaxAmount)
	wire.List(c, &g.Windows, maxSubjectOps, 1, func(n *int64) { wire.Varint(c, n) })
	c.Require(g.ID != 0 && len(g.Amounts) > 0 && len(g.Windows) == len(g.Amounts))
}

// codeAmounts writes or reads a number of units for each limit of a subject.
func codeAmounts(c *wire.Coder, list *[]int64, most int64) {
	wire.List(c, list, maxSubjectOps, 1, func(n *int64) { wire.Number(c, n, most) })
}

// forgetting is the body of MethodForget.
type forgetting struct {
	hi   uint64 // Key.Hi of the subject
	room bool   // there is room again: forget only refusals, not leases
}

// Code implements wire.Message.
func (f *forgetting) Code(c *wire.Coder) {
	wire.Fixed(c, &f.hi)
	c.Bool(&f.room)
}
