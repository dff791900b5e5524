package limiter

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// The messages between limiters.
const (
	MethodAsk      peer.Method = 80 + iota // a question, with a reply
	MethodGive                             // one way: what was debited and not spent is given back
	MethodTop                              // the subjects refused most, with a reply
	MethodForget                           // one way: what is leased and known of a subject holds no more
	MethodChange                           // what a person asks of a subject's counters, with a reply
	MethodSettle                           // what a reservation really used, with a reply
	MethodActivity                         // what was decided so far, with a reply
	MethodBorrow                           // one way, to the owner: a share is nearly used
	MethodLend                             // from another region, or passed on to the owner: a loan, with a reply
	MethodShare                            // from another region: what is used here of its shares, with a reply
	MethodReserve                          // a reservation with an id, to the owner of its first subject, with a reply
)

// flags of a question.
type flags uint8

const (
	flagPeek    flags = 1 << iota // nothing is taken
	flagStandby                   // the owner can't be reached: the standby is to reach it, or to act
	flagLast                      // decide though the rules here are older than yours
	allFlags    = flagPeek | flagStandby | flagLast
)

// maxHops is how often a question may be passed on.
const maxHops = 2

// question asks one node to decide subjects together, all or nothing.
type question struct {
	count    int           // it stands for so many checks alike, one after another; at least 1
	patient  time.Duration // so long the asker waits from now on
	hops     int           // times it was passed on
	flags    flags
	revision int64
	version  int64 // of the rules that the asker goes by
	// ops are in order of Key.Hi: those with the same one are a subject.
	ops    []counters.Op
	limits []algorithms.Limit // what ops of a question that was read refer to
	wishes []wish             // in order of their subjects
}

// A question is a head, which differs from message to message, and a body, by which questions alike are known.

func (q *question) appendHead(b []byte) []byte {
	c := wire.Coder{Out: b}
	q.codeHead(&c)
	return c.Out
}

func (q *question) appendBody(b []byte) []byte {
	c := wire.Coder{Out: b}
	q.codeBody(&c)
	return c.Out
}

// read takes q from a message.
func (q *question) read(body []byte) error {
	c := wire.NewReader(body)
	q.codeHead(&c)
	q.codeBody(&c)
	q.patient = min(q.patient, checkTime)
	c.Require(q.count >= 1 && q.wishesFit() && (q.count == 1 || len(q.ops)*q.count <= maxResults))
	return c.In.Done("question")
}

func (q *question) codeHead(c *wire.Coder) {
	wire.Number(c, &q.count, maxAlike)
	c.Millis(&q.patient, time.Hour)
	wire.Number(c, &q.hops, maxHops)
	wire.List(c, &q.wishes, maxMessageOps, leastWish, func(w *wish) { w.code(c) })
}

func (q *question) codeBody(c *wire.Coder) {
	wire.Number(c, &q.flags, int64(allFlags))
	wire.Number(c, &q.revision, maxVersion)
	wire.Number(c, &q.version, maxVersion)
	q.limits = codeOps(c, &q.ops, q.limits, false)
	c.Require(len(q.ops) > 0)
}

// wishesFit reports whether a question's wishes are about its subjects, each at most once and in their order.
func (q *question) wishesFit() bool {
	for i := range q.wishes {
		w := &q.wishes[i]
		at, _ := findSubject(q.ops, w.hi)
		if at < 0 || len(w.Want) != subjectOps(q.ops[at:]) || i > 0 && w.hi <= q.wishes[i-1].hi {
			return false
		}
	}
	return true
}

// subjectOps is how many of ops are about the first one's subject.
func subjectOps(ops []counters.Op) int {
	n := 1
	for n < len(ops) && ops[n].Key.Hi == ops[0].Key.Hi {
		n++
	}
	return n
}

// findSubject is where the ops of a subject begin, −1 if there are none, and the subject's place.
func findSubject(ops []counters.Op, hi uint64) (at, subject int) {
	for at < len(ops) {
		if ops[at].Key.Hi == hi {
			return at, subject
		}
		at, subject = at+subjectOps(ops[at:]), subject+1
	}
	return -1, 0
}

// subjectsOf is how many subjects ops are about.
func subjectsOf(ops []counters.Op) (n int) {
	for first := 0; first < len(ops); n++ {
		first += subjectOps(ops[first:])
	}
	return n
}

// partitionOf is the partition of a subject.
func partitionOf(hi uint64) int { return ring.PartitionOf(hi) }
