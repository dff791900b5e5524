package httpd

import (
	"cmp"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
)

const (
	// maxBatchAnswer bounds a batch's answer, in bytes. Once the answer exceeds it,
	// the remaining checks are not decided. A batch without detail stays well below
	// it.
	maxBatchAnswer = 8 << 20
	// typicalResultSize is the typical size of one result, in bytes, for which the
	// answer's buffer is allocated.
	typicalResultSize = 240
	// maxChunk bounds the checks of a batch that are decided together, and
	// chunkLimits roughly how many limits they match. After each chunk, the node
	// looks at whether to go on.
	maxChunk    = 256
	chunkLimits = 4096
	// maxBatchTime bounds how long a batch may take. By then, nobody waits for its
	// answer any more.
	maxBatchTime = 10 * time.Second
	// hangUpTime is how long a batch is decided even for a caller that has closed its sending side.
	hangUpTime = time.Second
	// typicalCheckMemory is roughly the memory that deciding a check takes, in bytes.
	typicalCheckMemory = 2 << 10
)

// batch answers POST /v1/check/batch.
func (h *handlers) batch(x *exchange) *api.Error {
	count, e := x.decoder.StartBatch(x.request.body)
	if e != nil {
		return e
	}

	x.checks = count
	x.batchMemory = int64(min(count, maxChunk) * typicalCheckMemory)

	if !h.Budget.Wait(func() bool { return h.growAnswer(x, count*typicalResultSize) }) {
		return h.Budget.FullError()
	}

	x.StartJSON(200)
	x.StyleHeader(h.Decider.Rules().Headers)
	x.StartBatch()
	c, ok := h.chunks.Get().(*chunk)
	if !ok {
		c = &chunk{}
	}

	h.decideAll(x, c)
	h.chunks.Put(c)
	return nil
}

// growAnswer grows the capacity of x's answer by extra bytes. It reports false
// if the budget does not allow that.
func (h *handlers) growAnswer(x *exchange, extra int) bool {
	b := x.Body
	n := len(b) + extra
	if !h.chargeFor(x, max(0, n-cap(b))) {
		return false
	}
	if n > cap(b) {
		x.Body = append(make([]byte, 0, n), b...)
	}
	return true
}

// item is one check of a batch.
type item struct {
	check   codec.Request
	answer  limiter.Answer
	failure *api.Error // if not nil, the result instead of answer
}

// chunk is a part of a batch that is decided together, in order. It is reused.
type chunk struct {
	items []*item // at most maxChunk; the first used of them hold checks
	used  int

	queries []*limiter.Query
	answers []*limiter.Answer
	errs    []error
	pending []*item // the items that have a query

	matched int // limits that the checks have matched, in all chunks
	decided int // checks that were decided
}

// size returns how many checks the next chunk may have, if each may match
// ruleCount rules, and the batch at most so many limits.
func (c *chunk) size(ruleCount, most int) int {
	// Nothing is known yet: assume that each check matches every rule.
	if c.decided == 0 {
		return max(1, min(maxChunk, most/max(1, ruleCount)))
	}
	return max(1, min(maxChunk, chunkLimits*c.decided/max(1, c.matched)))
}

// next returns an empty item.
func (c *chunk) next() *item {
	if c.used == len(c.items) {
		c.items = append(c.items, &item{})
	}
	c.used++
	return c.items[c.used-1]
}

// reset empties c. It clears the checks' strings, which would keep whole bodies alive.
func (c *chunk) reset() {
	for _, item := range c.items[:c.used] {
		item.check.Reset()
		item.failure = nil
	}
	c.used = 0
}

// decideAll decides the remaining checks of the batch in x.decoder and writes
// the answer. c is empty before and after.
func (h *handlers) decideAll(x *exchange, c *chunk) {
	x.Body = append(x.Body, `{"results":[`...)
	first := true
	var stopError *api.Error // if not nil, no more checks are decided
	n := 0

	flush := func() {
		if stopError == nil && len(x.Body)+x.RefusalTableSize() > maxBatchAnswer {
			stopError = api.Errorf(api.TooLarge,
				"not decided: the answer to this batch is over %d bytes", maxBatchAnswer)
		}
		if stopError == nil {
			stopError = h.batchError(x, c)
		}

		h.decideChunk(x, c, first, stopError)
		growth := estimateGrowth(len(x.Body), n, x.checks)
		if stopError == nil && !h.Budget.Wait(func() bool { return h.growAnswer(x, growth) }) {
			stopError = h.Budget.FullError()
		}

		first = first && c.used == 0
		c.reset()
		// The strings are released only now, because the decided checks refer to
		// them.
		x.decoder.ReleaseStrings()
	}

	ruleCount := len(h.Decider.Rules().Rules)
	most := cmp.Or(h.MaxMatched, api.MaxMatched)
	size := c.size(ruleCount, most)
	for ; x.decoder.MoreChecks(n); n++ {
		item := c.next()
		item.failure = x.decoder.NextCheck(&item.check, h.Decider.Rules())
		if item.failure == nil {
			item.failure = x.token.NamespaceError(&item.check.Query)
		}

		// Results with detail are long, so the room is checked again after each.
		if c.used >= size || item.check.Detail {
			flush()
			size = c.size(ruleCount, most)
		}
	}

	flush()
	c.matched, c.decided = 0, 0
	x.Body = append(x.EndBatch(append(x.Body, ']')), '}')
}

// batchError returns why the rest of a batch is not decided; nil if it is.
func (h *handlers) batchError(x *exchange, c *chunk) *api.Error {
	took := time.Since(x.began)
	most := cmp.Or(h.MaxMatched, api.MaxMatched)
	longest := cmp.Or(h.Timeout, maxBatchTime)
	switch {
	case c.matched > most:
		return api.Errorf(api.TooMuchWork,
			"not decided: the checks of this batch match over %d limits; send fewer at once", most)
	case took > longest:
		return api.Errorf(api.Timeout,
			"not decided: the batch takes longer than %v; send fewer checks at once", longest)
	case took > hangUpTime && x.conn != nil && x.conn.HasHungUp():
		return api.Errorf(api.Timeout, "not decided: the caller has hung up")
	}
	return nil
}

// estimateGrowth estimates, with some slack, by how many bytes the answer will
// still grow, given that the results of the checks up to index n take size
// bytes. The estimate saves growing the buffer in steps.
func estimateGrowth(size, n, checks int) int {
	return min(size/(n+1)*(checks-n)*9/8, maxBatchAnswer+maxBatchAnswer/8-size)
}

// decideChunk decides the checks of c and appends their results to x's answer.
// If stopError is not nil, it decides none, and stopError is the result of
// each.
func (h *handlers) decideChunk(x *exchange, c *chunk, first bool, stopError *api.Error) {
	c.queries = c.queries[:0]
	c.answers = c.answers[:0]
	c.errs = c.errs[:0]

	c.pending = c.pending[:0]
	for _, item := range c.items[:c.used] {
		if item.failure == nil && stopError != nil {
			item.failure = stopError
		}
		if item.failure == nil {
			c.queries = append(c.queries, &item.check.Query)
			c.answers = append(c.answers, &item.answer)
			c.errs = append(c.errs, nil)
			c.pending = append(c.pending, item)
		}
	}

	h.Decider.CheckAll(c.queries, c.answers, c.errs)
	c.decided += len(c.answers)

	for _, a := range c.answers {
		c.matched += len(a.Limits)
	}

	for i, item := range c.pending {
		if c.errs[i] != nil {
			item.failure = h.explain(c.errs[i])
		}
	}

	b := x.Body
	for i, item := range c.items[:c.used] {
		if i > 0 || !first {
			b = append(b, ',')
		}
		if item.failure == nil {
			b = x.AppendDecision(append(b, '{'), &item.answer, &item.check, h.node)
			continue
		}
		b = append(b, `{"error":{`...)
		b = append(codec.AppendProblemFields(b, item.failure), "}}"...)
	}

	x.Body = b
}
