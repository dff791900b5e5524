package limiter

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// A request with an id is decided once. The owner keeps the answer with the subject's counters, so that copies and hand-overs
// carry it along, and returns it if the request is repeated.

const (
	// MaxRequestID bounds an id, in bytes.
	MaxRequestID = 64
	// answerLife is how long the owner keeps an answer.
	answerLife = time.Minute
	// retryGrace is how much longer the owner keeps the answer to a request that a node retries by itself, after the last retry.
	retryGrace = 2 * time.Second
	// maxKeptAnswers bounds the answers that a node keeps to requests that it decided.
	maxKeptAnswers = 65_536
)

// Errors of requests with an id.
var (
	// ErrRequestIDReused means that an earlier request about the same subject had the same id but asked for something else.
	ErrRequestIDReused = errors.New("request_id: another request about this subject has used this id within the last minute; choose a new id for each request")
	// ErrTooManyRequestIDs means that the owner keeps too many answers and can drop none for this one. It has changed nothing.
	ErrTooManyRequestIDs = fmt.Errorf("request_id: the subject's owner already keeps %d answers from the last minute, the most allowed", maxKeptAnswers)
)

// ticket identifies a request to the owner of its subject.
type ticket struct {
	id          uint64 // derived from the caller's id, or random
	contentHash uint64 // hash of the request's content
	life        time.Duration
	sent        bool // another node may have carried it out; set only on the first node
}

// ticketOf returns the ticket for a caller's id. Without an id the ticket is random, for a request that this node retries by
// itself for the duration tries.
func ticketOf(id string, contentHash uint64, tries time.Duration) *ticket {
	if id == "" {
		return &ticket{id: rand.Uint64(), contentHash: contentHash, life: tries + retryGrace}
	}
	h := sha256.Sum256([]byte("request " + id))
	return &ticket{id: binary.LittleEndian.Uint64(h[:]), contentHash: contentHash, life: answerLife}
}

// kind returns the kind of a request that is not a check.
func (t *ticket) kind() requestKind {
	if t.life < answerLife {
		return nodeRequest
	}
	return writeRequest
}

// isUnneeded reports whether the request can do without t: no other node can have carried it out, and no caller will repeat it.
func (t *ticket) isUnneeded() bool { return t == nil || !t.sent && t.life <= checkTimeout+retryGrace }

// memo returns the memo of t, which is kept with the subject's counters. An inline subject's memo is an inline counter, whose
// tag replaces some bits of the id. Those bits go into the hash of the content, so that two ids never share an answer.
func (t *ticket) memo(subject counters.Key, now algorithms.Instant) *counters.Memo {
	m := &counters.Memo{Key: counters.Key{Subject: subject.Subject, Counter: t.id}, ContentHash: t.contentHash, Until: (now.Steady+int64(t.life))/1e9 + 1}
	if subject.IsInline() {
		m.Key.Counter = counters.InlineNote(t.id)
		m.ContentHash ^= (m.Key.Counter ^ t.id) >> (63 - counters.ContentHashBits) // including the note's bit
	}
	return m
}

// Code implements wire.Message.
func (t *ticket) Code(c *wire.Coder) {
	wire.Fixed(c, &t.id)
	wire.Number(c, &t.contentHash, 1<<counters.ContentHashBits-1)
	c.Millis(&t.life, answerLife)
}

// hashContent hashes a request's content.
func hashContent(b []byte) uint64 {
	h := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(h[:]) >> (64 - counters.ContentHashBits)
}

// hashChange hashes a change of one subject. The order of costs does not matter.
func hashChange(v verb, u *Usage, costs []UnitCost) uint64 {
	n, others := int64(0), []UnitCost(nil)
	for _, c := range costs {
		if c.Unit == rules.Requests {
			n = c.Cost
		} else {
			others = append(others, c)
		}
	}
	slices.SortFunc(others, func(x, y UnitCost) int { return cmp.Compare(x.Unit, y.Unit) })
	b := wire.AppendText(binary.AppendVarint(nil, int64(v)), u.Rule.Name)
	b = binary.AppendVarint(wire.AppendTexts(b, u.Key), n)
	for _, c := range others {
		b = binary.AppendVarint(wire.AppendText(b, c.Unit), c.Cost)
	}
	if u.Namespace != "" {
		b = wire.AppendText(b, u.Namespace)
		for i := range u.Limits {
			l := u.Limits[i].Limit
			b = l.Append(binary.LittleEndian.AppendUint64(b, l.ID), 0)
		}
	}
	return hashContent(b)
}

// requestKind says which answers may be dropped early to make room.
type requestKind int

const (
	checkRequest requestKind = iota // dropped first: a repeated check only costs
	nodeRequest                     // dropped next: nodes retry their own requests only briefly
	writeRequest                    // never dropped
	requestKinds
)

// keptRequests tracks the requests with an id that this node decided. It does not track answers that arrived with copies and
// hand-overs: the nodes that decided them do.
type keptRequests struct {
	// mu guards kept and deciding.
	mu       sync.Mutex
	kept     [2][requestKinds][]keptRequest // in order of decision; [1] is for inline subjects
	deciding map[counters.Key]chan struct{} // closed once the check is decided; at most one per waiting check

	repeated, refused atomic.Int64
}

type keptRequest struct {
	table *counters.Table // where its answer is
	key   counters.Key
	until int64
}

// makeRoom makes room for memo among the answers that this node keeps, by dropping another one if necessary. At most half of them
// are for inline subjects; answers for inline subjects replace only each other, and so do the rest. makeRoom returns false if
// it can drop none: only answers to writes are left or, if kind is checkRequest, no answers to checks. Once the table has memo,
// the caller calls add.
func (kr *keptRequests) makeRoom(kind requestKind, memo *counters.Memo, now algorithms.Instant) bool {
	kr.mu.Lock()
	defer kr.mu.Unlock()
	var totals [len(kr.kept)]int
	for class := range kr.kept {
		for i, kept := range kr.kept[class] {
			for len(kept) > 0 && kept[0].until <= now.Steady/1e9 {
				kept = kept[1:]
			}
			kr.kept[class][i] = kept
			totals[class] += len(kept)
		}
	}
	own := kr.classOf(memo)
	if totals[0]+totals[1] >= maxKeptAnswers || memo.Key.IsInline() && totals[1] >= maxKeptAnswers/2 {
		victims := &own[checkRequest]
		if len(*victims) == 0 && kind != checkRequest {
			victims = &own[nodeRequest]
		}
		if len(*victims) == 0 {
			kr.refused.Add(1)
			return false
		}
		(*victims)[0].table.Forget(now, (*victims)[0].key)
		*victims = (*victims)[1:]
	}
	return true
}

// add records that table keeps memo. The bound that makeRoom enforces may be exceeded by the requests that are being
// decided.
func (kr *keptRequests) add(table *counters.Table, kind requestKind, memo *counters.Memo) {
	kr.mu.Lock()
	defer kr.mu.Unlock()
	own := kr.classOf(memo)
	own[kind] = append(own[kind], keptRequest{table, memo.Key, memo.Until})
}

// classOf returns the answers that share a bound with memo. The caller must hold mu.
func (kr *keptRequests) classOf(memo *counters.Memo) *[requestKinds][]keptRequest {
	if memo.Key.IsInline() {
		return &kr.kept[1]
	}
	return &kr.kept[0]
}

// lock waits until this node is deciding no other request with the key, and holds off others until done is called.
func (kr *keptRequests) lock(ctx context.Context, key counters.Key) (done func(), ok bool) {
	finished := make(chan struct{})
	for {
		kr.mu.Lock()
		other := kr.deciding[key]
		if other == nil {
			kr.deciding[key] = finished
		}
		kr.mu.Unlock()
		if other == nil {
			return func() {
				kr.mu.Lock()
				delete(kr.deciding, key)
				kr.mu.Unlock()
				close(finished)
			}, true
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// count returns how many answers this node keeps to requests that it decided.
func (kr *keptRequests) count() (n int) {
	kr.mu.Lock()
	defer kr.mu.Unlock()
	for class := range kr.kept {
		for i := range kr.kept[class] {
			n += len(kr.kept[class][i])
		}
	}
	return n
}

// amend applies c to this node's counters; only once, if c has a ticket. The error is or wraps counters.ErrShut, ErrFull,
// ErrRequestIDReused or ErrTooManyRequestIDs.
func (c *change) amend(l *Limiter, now algorithms.Instant) error {
	a := counters.Amendment{Ops: c.ops, Reset: c.verb == verbReset}
	if c.ticket != nil {
		memo, _, err := c.recall(l, now)
		if err != nil {
			return err
		}
		a.Memo = memo
		a.Answer = func(a *counters.Amendment) []byte { return wire.Encode(nil, resultsOf(a.Ops)) }
	}
	err := c.table(l).Amend(now, &a)
	if errors.Is(err, counters.ErrRequestIDReused) {
		return ErrRequestIDReused
	}
	if err != nil {
		return err
	}
	if !a.Repeated {
		if a.Memo != nil {
			l.requests.add(c.table(l), c.ticket.kind(), a.Memo)
		}
		return nil
	}
	l.requests.repeated.Add(1)
	var list results
	if wire.Decode(a.Memo.Answer, &list, "answer") != nil || !c.acceptResults(list) {
		return c.readUsage(l, now) // the kept answer is for the limits of earlier rules: report the current usage
	}
	return nil
}

// recall returns the memo of c's ticket, and whether it is already kept. If it is not, recall makes room for it. If there
// is no room, the memo is nil, or the error is ErrTooManyRequestIDs if the ticket is a write's. The error is or wraps
// counters.ErrShut, ErrRequestIDReused or ErrTooManyRequestIDs.
func (c *change) recall(l *Limiter, now algorithms.Instant) (memo *counters.Memo, found bool, err error) {
	memo = c.ticket.memo(counters.Key{Subject: c.subject(), Counter: c.anyCounter()}, now)
	switch found, err = c.table(l).Recall(now, memo); {
	case errors.Is(err, counters.ErrRequestIDReused):
		return nil, false, ErrRequestIDReused
	case err != nil || found || l.requests.makeRoom(c.ticket.kind(), memo, now):
		return memo, found, err
	case c.ticket.kind() == writeRequest:
		return nil, false, ErrTooManyRequestIDs
	}
	return nil, false, nil
}

// clear makes every inline counter of c's subject fresh, in batches; only once, if c has a ticket. The error is or wraps
// counters.ErrShut, ErrFull, ErrNoOwner, ErrRequestIDReused or ErrTooManyRequestIDs.
func (c *change) clear(ctx context.Context, l *Limiter) error {
	now := l.clock.Now()
	var memo *counters.Memo
	if c.ticket != nil {
		done, ok := l.requests.lock(ctx, c.ticket.memo(counters.Key{Subject: c.inlineSubject, Counter: c.anyCounter()}, now).Key)
		if !ok {
			return ErrNoOwner
		}
		defer done()
		var found bool
		var err error
		if memo, found, err = c.recall(l, now); err != nil {
			return err
		}
		if found {
			l.requests.repeated.Add(1)
			return nil
		}
	}
	for more := true; more; {
		ops := l.table.InlineOps(c.inlineSubject, maxListed)
		if !l.table.IsOpen(ring.PartitionOf(c.inlineSubject)) {
			return counters.ErrShut
		}
		for some := range slices.Chunk(ops, maxSubjectOps) {
			if err := l.table.Amend(now, &counters.Amendment{Ops: some, Reset: true}); err != nil {
				return err
			}
		}
		if more = len(ops) == maxListed; more && ctx.Err() != nil {
			return ErrNoOwner
		}
	}
	if memo == nil {
		return nil
	}
	if err := l.table.Remember(now, memo); err != nil {
		return err
	}
	l.requests.add(l.table, c.ticket.kind(), memo)
	return nil
}

// acceptResults copies the results of c into c. It returns false if they are for other limits.
func (c *change) acceptResults(list results) bool {
	if len(list) != len(c.ops) {
		return false
	}
	for i := range list {
		c.ops[i].Decision = list[i].Decision
	}
	return true
}

// results is the answer to a change, as kept and sent.
type results []result

func resultsOf(ops []counters.Op) *results {
	list := make(results, len(ops))
	for i := range ops {
		list[i].Decision = ops[i].Decision
	}
	return &list
}

// Code implements wire.Message.
func (r *results) Code(c *wire.Coder) {
	wire.List(c, (*[]result)(r), maxSubjectOps, minResultBytes, func(v *result) { v.code(c) })
}
