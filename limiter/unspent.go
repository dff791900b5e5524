package limiter

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// What is leased is already debited from the owner's counter. Only the holders
// know how much of it was spent. So before an owner reports what a subject has
// used, it asks the holders.

const (
	// unspentTimeout bounds how long an owner waits for the holders' reports. What
	// a silent holder has left counts as used.
	unspentTimeout = 250 * time.Millisecond
	// unspentAge bounds the age of reports that are used again. So holders are
	// asked about one subject at most every 100 ms.
	unspentAge = 100 * time.Millisecond
	// maxUnspentRounds bounds the subjects whose last round an owner remembers.
	maxUnspentRounds = 4096
)

// leasedPart is what is leased of one limit.
type leasedPart struct {
	units     int64 // granted and, as far as this node knows, neither spent nor given back
	estimated bool  // some holder has not said what it has left, which counts as spent
}

// unspentRounds holds the latest reports about each subject.
type unspentRounds struct {
	mu     sync.Mutex
	latest map[uint64]*cachedRound[unspentRound] // by Key.Subject; at most maxUnspentRounds; guarded by mu
}

// unspentRound is what a subject's holders have reported.
type unspentRound struct {
	reports  map[ring.NodeID]localcache.Unspent // of the holders that answered
	left     map[uint64][]int64                 // by grant, as reported: what is left of each part
	wasAsked map[ring.NodeID]bool
}

// of returns the rounds of questions about a subject.
func (rs *unspentRounds) of(subject uint64) *cachedRound[unspentRound] {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.latest[subject]
	if r != nil {
		return r
	}

	if rs.latest == nil || len(rs.latest) >= maxUnspentRounds { // forgetting them only costs a few more messages
		rs.latest = make(map[uint64]*cachedRound[unspentRound])
	}
	r = &cachedRound[unspentRound]{}
	rs.latest[subject] = r
	return r
}

// askHolders returns the holders' reports about a subject that this node owns,
// at most 100 ms old; nil if nothing is leased.
func (ls *leases) askHolders(lineage, subject uint64) *unspentRound {
	cp := ls.limiter.cluster
	var holders []ring.NodeID
	ls.granted.View(cp.Boottime(), lineage, subject, func(outstanding []localcache.OutstandingGrant) {
		for i := range outstanding {
			if !slices.Contains(holders, outstanding[i].Holder) {
				holders = append(holders, outstanding[i].Holder)
			}
		}
	})
	if len(holders) == 0 {
		return nil
	}

	return ls.unspent.of(subject).latest(cp.Boottime, unspentAge, func() *unspentRound {
		return ls.collectUnspent(subject, holders)
	})
}

// collectUnspent asks the holders and collects their reports.
func (ls *leases) collectUnspent(subject uint64, holders []ring.NodeID) *unspentRound {
	cp := ls.limiter.cluster
	round := &unspentRound{
		reports:  make(map[ring.NodeID]localcache.Unspent, len(holders)),
		left:     make(map[uint64][]int64),
		wasAsked: make(map[ring.NodeID]bool, len(holders)),
	}
	for _, id := range holders {
		round.wasAsked[id] = true
	}

	body := wire.Encode(nil, &unspentQuestion{subject: subject, boot: ls.limiter.boot})
	gather(unspentTimeout, holders, func(id ring.NodeID, done func([]byte, error)) {
		cp.Peers.Go(id, MethodUnspent, body, unspentTimeout, done)
	}, func(id ring.NodeID, reply []byte, err error) {
		var report unspentReport
		if err != nil || wire.Decode(reply, &report, "unspent grants") != nil {
			return
		}
		round.reports[id] = report.Unspent
		for _, g := range report.Held {
			round.left[g.ID] = g.Left
		}
	})

	return round
}

// leasedOf returns what is leased of one counter by the grants that are out.
func (round *unspentRound) leasedOf(outstanding []localcache.OutstandingGrant, counter uint64) (sum leasedPart) {
	for i := range outstanding {
		part := round.leased(&outstanding[i], counter)
		sum.units += part.units
		sum.estimated = sum.estimated || part.estimated
	}
	return sum
}

// leased returns how much of the counter's part of a grant is out: neither
// spent nor returned, as far as the round knows.
func (round *unspentRound) leased(g *localcache.OutstandingGrant, counter uint64) leasedPart {
	if round == nil {
		return leasedPart{units: g.Outstanding(counter, nil)} // the grant was made after the owner had looked for holders
	}

	report, answered := round.reports[g.Holder]
	left, held := round.left[g.ID]
	switch {
	case !answered && round.wasAsked[g.Holder]:
		return leasedPart{estimated: g.Outstanding(counter, nil) > 0}
	case !answered || g.ID > report.LastGrant:
		// The grant was made later, or was on its way: all of it is out.
		return leasedPart{units: g.Outstanding(counter, nil)}
	case !held: // nothing is left of the grant
		return leasedPart{}
	}

	return leasedPart{units: g.Outstanding(counter, left)}
}

// unspentQuestion asks a holder what is left of a subject's grants from one
// process of their owner. It is the body of MethodUnspent.
type unspentQuestion struct {
	subject uint64 // Key.Subject of the subject
	boot    uint64
}

// Code implements wire.Message.
func (qn *unspentQuestion) Code(c *wire.Coder) {
	wire.Fixed(c, &qn.subject)
	wire.Fixed(c, &qn.boot)
}

// unspentReport answers an unspentQuestion.
type unspentReport struct{ localcache.Unspent }

// Code implements wire.Message.
func (ur *unspentReport) Code(c *wire.Coder) {
	wire.Number(c, &ur.LastGrant, math.MaxInt64)
	wire.List(c, &ur.Held, localcache.MaxUnspent, minHeldBytes, func(held *localcache.HeldGrant) { codeHeld(c, held) })
}
