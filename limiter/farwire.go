package limiter

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/rlnode/rlnode/algorithms"
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
	b = appendText(b, n.rule)
	b = binary.AppendUvarint(b, uint64(len(n.key)))
	for _, value := range n.key {
		b = appendText(b, value)
	}
	return b
}

func (p *packet) text(bound int64) string { return string(p.bytes(int(p.count(bound)))) }

func (p *packet) named() (n named) {
	n.version, n.rule = p.count(1<<62), p.text(maxRuleBytes)
	values := int(p.count(maxNamedKey))
	if values > len(p.rest) {
		p.fail()
		return named{}
	}
	for range values {
		n.key = append(n.key, p.text(maxValueBytes))
	}
	return n
}

// readNamed reads the body of MethodBorrow or of MethodShare.
func readNamed(body []byte) (named, error) {
	p := packet{rest: body}
	n := p.named()
	return n, p.end("subject")
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
	p := packet{rest: body}
	r.named = p.named()
	r.limit, r.window, r.want = p.word(), p.number(), p.count(algorithms.MaxAmount)
	if r.want < 1 {
		p.fail()
	}
	return r, p.end("request for a loan")
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
	p := packet{rest: body}
	r.status = loanStatus(p.byte())
	r.amount, r.unused, r.rate = p.count(algorithms.MaxAmount), p.count(algorithms.MaxAmount), p.count(algorithms.MaxAmount)
	if r.status >= loanStatuses || (r.status == loanMade) != (r.amount > 0) {
		p.fail()
	}
	return r, p.end("reply to a request for a loan")
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
	p := packet{rest: body}
	n := int(p.count(maxShared))
	if n*least > len(p.rest) {
		return nil, fmt.Errorf("read shares: %w", errMessage)
	}
	list := make([]sharedLimit, n)
	for i := range list {
		s := &list[i]
		s.limit = p.word()
		s.share, s.used = p.count(math.MaxInt64), p.wrapped()
		for _, n := range [...]*int64{&s.lent, &s.borrowed, &s.remaining} {
			*n = p.count(math.MaxInt64)
		}
	}
	return list, p.end("shares")
}

// wrapped reads a number that was written as an unsigned one, though it may be a little below zero.
func (p *packet) wrapped() int64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 || int64(v) < -algorithms.MaxAmount {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return int64(v)
}
