package limiter

import (
	"encoding/binary"
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
)

// Messages about limits that regions divide. Rules and keys go by their names, since each region finds counters by its
// own rules.

const (
	maxRuleBytes  = 1024
	maxNamedKey   = 32
	maxValueBytes = 8192
	// maxShared bounds the limits of a reply about shares: those that a rule may have.
	maxShared = 16
)

// Lengths of the bodies of MethodForget, which begin with the subject.
const (
	forgetBytes = 8 // all that is leased and known
	retryBytes  = 9 // only refusals
)

// named is a subject by its names.
type named struct {
	version int64 // of the sender's rules
	rule    string
	key     []string
}

func (n *named) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(n.version))
	return wire.AppendTexts(wire.AppendText(b, n.rule), n.key)
}

func decodeNamed(d *wire.Decoder) named {
	return named{version: d.UpTo(1 << 62), rule: d.Text(maxRuleBytes), key: d.Texts(maxNamedKey, maxValueBytes)}
}

// readNamed reads the body of MethodBorrow or of MethodShare.
func readNamed(body []byte) (named, error) {
	d := wire.NewDecoder(body)
	n := decodeNamed(d)
	return n, d.Done("subject")
}

// loanRequest asks another region for a loan.
type loanRequest struct {
	named
	limit  uint64 // rules.Limit.ID
	window int64  // its number; 0 of a bucket
	want   int64  // units
}

func (r *loanRequest) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(r.named.append(b), r.limit)
	b = binary.AppendVarint(b, r.window)
	return binary.AppendUvarint(b, uint64(r.want))
}

func readLoanRequest(body []byte) (r loanRequest, err error) {
	d := wire.NewDecoder(body)
	r.named = decodeNamed(d)
	r.limit, r.window, r.want = d.Uint64(), d.Varint(), d.UpTo(algorithms.MaxAmount)
	if r.want < 1 {
		d.Fail()
	}
	return r, d.Done("request for a loan")
}

// loanStatus is what became of a request for a loan.
type loanStatus uint8

const (
	loanMade    loanStatus = iota
	loanNothing            // there is nothing to lend, nor will be in this window
	loanLater              // not now: another window, or the counter is on its way
	loanUnknown            // no such rule, key or limit there, or none that is lent of
	loanStatuses
)

// loanReply answers a loanRequest.
type loanReply struct {
	status loanStatus
	amount int64 // lent; above 0 if the loan is made
	unused int64 // of the lender's share, now
	rate   int64 // of a bucket: the lender's Amount
}

func (r *loanReply) append(b []byte) []byte {
	b = binary.AppendUvarint(append(b, byte(r.status)), uint64(r.amount))
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(r.unused)), uint64(r.rate))
}

func readLoanReply(body []byte) (r loanReply, err error) {
	d := wire.NewDecoder(body)
	r.status = loanStatus(d.Byte())
	r.amount, r.unused, r.rate = d.UpTo(algorithms.MaxAmount), d.UpTo(algorithms.MaxAmount), d.UpTo(algorithms.MaxAmount)
	if r.status >= loanStatuses || (r.status == loanMade) != (r.amount > 0) {
		d.Fail()
	}
	return r, d.Done("reply to a request for a loan")
}

// sharedLimit is what a region says of its share of a limit.
type sharedLimit struct {
	limit                                  uint64 // rules.Limit.ID
	share, used, lent, borrowed, remaining int64
}

func appendShared(b []byte, list []sharedLimit) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for i := range list {
		s := &list[i]
		b = binary.LittleEndian.AppendUint64(b, s.limit)
		for _, n := range [...]int64{s.share, s.used, s.lent, s.borrowed, s.remaining} {
			b = binary.AppendUvarint(b, uint64(n)) // used may be below 0
		}
	}
	return b
}

func readShared(body []byte) ([]sharedLimit, error) {
	const least = 8 + 5
	d := wire.NewDecoder(body)
	list := make([]sharedLimit, d.Count(maxShared, least))
	for i := range list {
		s := &list[i]
		s.limit = d.Uint64()
		s.share, s.used = d.UpTo(math.MaxInt64), int64(d.Uvarint())
		if s.used < -algorithms.MaxAmount {
			d.Fail()
		}
		for _, n := range [...]*int64{&s.lent, &s.borrowed, &s.remaining} {
			*n = d.UpTo(math.MaxInt64)
		}
	}
	return list, d.Done("shares")
}
