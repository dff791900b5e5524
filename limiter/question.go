package limiter

import (
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// The messages between limiters.
const (
	MethodAsk      peer.Method = 80 + iota // a question, with a reply
	MethodRefund                           // one way: gives back cost that was debited but not spent
	MethodTop                              // asks for one of the lists of subjects, with a reply
	MethodForget                           // one way: leases or remembered refusals of a subject are void
	MethodChange                           // reads or changes a subject's counters, with a reply
	MethodSettle                           // settles a reservation, with a reply
	MethodActivity                         // asks for a node's decisions so far, with a reply
	MethodBorrow                           // says that a share runs short; the reply follows the loans that a check awaits
	// MethodLend comes from another region, or is forwarded to the owner. It
	// requests a loan, with a reply.
	MethodLend
	// MethodShare comes from another region. It asks how much of this region's
	// shares is used, with a reply.
	MethodShare
	MethodReserve // a reservation with an id, to the owner of its first subject, with a reply
	MethodAcquire // an acquire with an id, to the owner of its first slots, with a reply
	// MethodRuleUse asks a node, or another region, which rules were used in the
	// last hour, with a reply.
	MethodRuleUse
	MethodUnspent // an owner asks what is left of a subject's grants, with a reply
	// MethodPassPlaces brings places in queues that callers have left, for the
	// callers behind them, with an empty reply.
	MethodPassPlaces
	MethodSlot // renews, releases or reports a slot, with a reply
	endOfMethods
)

// flags are the flags of a question.
type flags uint8

const (
	flagPeek            flags = 1 << iota // take nothing
	flagStandby                           // the asker can't reach the owner: pass the question on, or act as the standby
	flagDespiteOldRules                   // decide even if the asker's rules are older
	allFlags            = flagPeek | flagStandby | flagDespiteOldRules
)

// maxHops bounds how many times a question may be forwarded.
const maxHops = 2

// question asks one node to decide subjects together, all or nothing.
type question struct {
	count    int           // number of identical checks, to be decided one after another; at least 1
	patience time.Duration // how much longer the asker will wait
	hops     int           // how many times it was forwarded
	flags    flags
	revision int64 // of the ring that the asker had
	version  int64 // of the asker's rules
	// ops are in order of Key.Subject. Those with the same one are one subject.
	ops       []counters.Op
	limits    []algorithms.Limit // after read, the limits that ops point to
	requests  []leaseRequest     // in order of their subjects
	place     *placeRequest      // of a reservation; nil for all others
	acquiring *acquisition       // of a check that acquires slots; nil for all others
}

// A question has two parts: a head, which differs from message to message, and
// a body, which is the same for identical questions.

func (qn *question) appendHead(b []byte) []byte {
	c := wire.Coder{Out: b}
	qn.codeHead(&c)
	return c.Out
}

func (qn *question) appendBody(b []byte) []byte {
	c := wire.Coder{Out: b}
	qn.codeBody(&c)
	return c.Out
}

// read reads the question from a message.
func (qn *question) read(body []byte) error {
	c := wire.NewReader(body)
	qn.codeHead(&c)
	qn.codeBody(&c)
	qn.patience = min(qn.patience, checkTimeout)
	c.Require(qn.count >= 1 && qn.requestsFit() && (qn.count == 1 || len(qn.ops)*qn.count <= maxResults))
	return c.In.Done("question")
}

func (qn *question) codeHead(c *wire.Coder) {
	wire.Number(c, &qn.count, maxIdentical)
	c.Millis(&qn.patience, time.Hour)
	wire.Number(c, &qn.hops, maxHops)
	wire.List(c, &qn.requests, maxMessageOps, minLeaseRequestBytes, func(req *leaseRequest) { req.code(c) })
}

func (qn *question) codeBody(c *wire.Coder) {
	wire.Number(c, &qn.flags, int64(allFlags))
	wire.Number(c, &qn.revision, maxVersion)
	wire.Number(c, &qn.version, maxVersion)
	qn.limits = codeOps(c, &qn.ops, qn.limits, false)
	wire.Optional(c, &qn.place, func(pl *placeRequest) { pl.code(c) })
	wire.Optional(c, &qn.acquiring, func(acq *acquisition) { qn.codeAcquiring(c, acq) })
	c.Require(len(qn.ops) > 0)
}

// codeAcquiring writes or reads acq, with the group of each of qn's subjects.
func (qn *question) codeAcquiring(c *wire.Coder, acq *acquisition) {
	if c.Reads() {
		acq.groups = map[uint64]uint32{}
	}

	wire.Fixed(c, &acq.id)
	wire.Fixed(c, &acq.nonce)
	c.Millis(&acq.ttl, MaxSlotTTL)
	c.Text(&acq.who, MaxWho)

	for first := 0; first < len(qn.ops); first += countSubjectOps(qn.ops[first:]) {
		subject := qn.ops[first].Key.Subject
		group := acq.groups[subject]
		wire.Number(c, &group, math.MaxUint32)
		acq.groups[subject] = group
	}
}

// requestsFit reports whether the requests are for subjects of the question, in
// order and at most one for each.
func (qn *question) requestsFit() bool {
	for i := range qn.requests {
		request := &qn.requests[i]
		at, _ := findSubject(qn.ops, request.subject)
		if at < 0 || len(request.Want) != countSubjectOps(qn.ops[at:]) || i > 0 &&
			request.subject <= qn.requests[i-1].subject {
			return false
		}
	}
	return true
}
