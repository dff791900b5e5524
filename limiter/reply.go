package limiter

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// status is how a question fared.
type status uint8

const (
	decided     status = iota
	notMine            // the one asked is not the owner; the reply may say who is
	noAuthority        // the owner has no authority now
	unreachable        // the one asked could not reach the owner, and could not act for it
	behind             // the asker's rules are older than those here
	full               // the table of counters has no room (verbAdjust, verbReset)
	otherBody          // a request with the same id had another body
	crowded            // there is no room for the answer to a request with an id
	undecided          // said by nobody: the answer ended before this check's turn
	statuses    = undecided
)

// final says that nobody else is to be asked.
func (s status) final() bool {
	switch s {
	case decided, behind, full, otherBody, crowded:
		return true
	}
	return false
}

// statusOf says how a change fared, and err what that means to the asker.
func statusOf(err error) status {
	switch {
	case err == nil:
		return decided
	case errors.Is(err, ErrRequestBody):
		return otherBody
	case errors.Is(err, ErrRequests):
		return crowded
	}
	return full
}

func (s status) err() error {
	switch s {
	case decided:
		return nil
	case full:
		return ErrFull
	case otherBody:
		return ErrRequestBody
	case crowded:
		return ErrRequests
	}
	return ErrNoOwner
}

// reply answers a question.
type reply struct {
	status   status
	revision int64
	version  int64       // of the rules at the one who answers
	hint     ring.NodeID // notMine, unreachable: the owner as far as is known; zero: not known

	// Of decided.
	standby  bool        // a standby acted
	decider  ring.NodeID // who decided
	process  uint64      // of the decider: readings of its clock mean nothing to another
	steady   int64       // when, on the decider's clock
	lineages []uint64    // by subject; 0: nothing can be given back
	// admitted is by check. After a refusal the rest is refused too and left out; where the last was admitted, those
	// left out have to ask anew.
	admitted []bool
	results  []result // of each check, by op
	grants   []granted
}

// result is what one limit said to one check.
type result struct {
	algorithms.Decision
	full   bool
	window int64 // that the cost was taken in
	used   int64 // of verbUsage, verbAdjust
}

func (r *reply) reset() {
	*r = reply{lineages: r.lineages[:0], admitted: r.admitted[:0], results: r.results[:0], grants: r.grants[:0]}
}

// Bits of the byte that a result begins with.
const (
	resultAllowed = 1 << iota
	resultFull
	resultDelay
	resultUsed
	resultRetry
	allResults = 1<<iota - 1
)

func (r *reply) append(b []byte) []byte {
	b = append(b, byte(r.status))
	b = binary.AppendUvarint(b, uint64(r.revision))
	b = binary.AppendUvarint(b, uint64(r.version))
	if r.status != decided {
		return append(b, r.hint[:]...)
	}
	b = append(wire.AppendBool(b, r.standby), r.decider[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.process)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.steady))
	b = binary.AppendUvarint(b, uint64(len(r.lineages)))
	for _, lineage := range r.lineages {
		b = binary.LittleEndian.AppendUint64(b, lineage)
	}
	b = binary.AppendUvarint(b, uint64(len(r.admitted)))
	for _, ok := range r.admitted {
		b = wire.AppendBool(b, ok)
	}
	for i := range r.results {
		b = r.results[i].append(b)
	}
	b = binary.AppendUvarint(b, uint64(len(r.grants)))
	for i := range r.grants {
		b = r.grants[i].append(b)
	}
	return b
}

func (r *result) append(b []byte) []byte {
	bits := byte(0)
	set := func(on bool, bit byte) {
		if on {
			bits |= bit
		}
	}
	set(r.Allowed, resultAllowed)
	set(r.full, resultFull)
	set(r.Delay != 0, resultDelay)
	set(r.used != 0, resultUsed)
	set(r.RetryAfter != 0, resultRetry)
	b = binary.AppendUvarint(append(b, bits), uint64(r.Remaining))
	b = binary.AppendUvarint(b, uint64(r.ResetAfter))
	b = binary.AppendVarint(b, r.window)
	if r.Delay != 0 {
		b = binary.AppendUvarint(b, uint64(r.Delay))
	}
	if r.used != 0 {
		b = binary.AppendUvarint(b, uint64(r.used))
	}
	if r.RetryAfter != 0 {
		b = binary.AppendVarint(b, int64(r.RetryAfter))
	}
	return b
}

// read takes r from a message that answers a question of so many ops in so many subjects, for count checks.
func (r *reply) read(body []byte, ops, subjects, count int) error {
	d := wire.NewDecoder(body)
	r.reset()
	r.status = status(d.Byte())
	r.revision, r.version = d.UpTo(1<<62), d.UpTo(1<<62)
	if r.status >= statuses {
		d.Fail()
	}
	if r.status != decided {
		r.hint = ring.DecodeNodeID(d)
		return d.Done("reply")
	}
	r.standby, r.decider, r.process, r.steady = d.Bool(), ring.DecodeNodeID(d), d.Uint64(), int64(d.Uint64())
	if d.Count(maxMessageOps, 8) != subjects {
		d.Fail()
		subjects = 0
	}
	for range subjects {
		r.lineages = append(r.lineages, d.Uint64())
	}
	n := int(d.UpTo(int64(count)))
	for i, b := range d.Bytes(n) {
		if b > 1 || b == 0 && i+1 < n {
			d.Fail()
		}
		r.admitted = append(r.admitted, b == 1)
	}
	// Fewer than were asked for: after a refusal the rest is refused too; else it was not decided.
	if n < 1 || d.Failed() || n*ops*leastResult > d.Len() {
		d.Fail()
		return d.Done("reply")
	}
	for range n * ops {
		r.results = append(r.results, decodeResult(d))
	}
	r.grants = decodeGrants(d, subjects)
	return d.Done("reply")
}

const leastResult = 4 // bytes

func decodeResult(d *wire.Decoder) (r result) {
	bits := d.Byte()
	if bits&^allResults != 0 {
		d.Fail()
	}
	r.Allowed, r.full = bits&resultAllowed != 0, bits&resultFull != 0
	r.Remaining = d.UpTo(algorithms.MaxAmount)
	r.ResetAfter = time.Duration(d.UpTo(math.MaxInt64))
	r.window = d.Varint()
	if bits&resultDelay != 0 {
		r.Delay = time.Duration(d.UpTo(math.MaxInt64))
	}
	if bits&resultUsed != 0 {
		r.used = d.UpTo(math.MaxInt64)
	}
	if bits&resultRetry != 0 {
		if r.RetryAfter = time.Duration(d.Varint()); r.RetryAfter < algorithms.Never {
			d.Fail()
		}
	}
	return r
}
