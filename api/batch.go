package api

import (
	"github.com/rlnode/rlnode/limiter"
)

const (
	maxBatch = 10_000 // checks in a batch
	// maxBatchAnswer bounds the bytes of a batch's answer; checks beyond it are not decided. It is more than enough for a
	// batch without detail.
	maxBatchAnswer = 8 << 20
	// usualResult is the typical size of one result, in bytes; the answer's buffer is allocated with room for that much
	// each.
	usualResult = 240
	// maxChunk bounds the checks of a batch that are decided together.
	maxChunk = 256
	// usualWork is roughly the memory, in bytes, that deciding a check takes.
	usualWork = 2 << 10
)

// batch answers POST /v1/check/batch.
func (p *dataPlane) batch(x *exchange) *Error {
	start, count, e := x.readBatch()
	if e != nil {
		return e
	}
	x.checks = count
	x.work = int64(min(count, maxChunk) * usualWork)
	if !p.budget.wait(func() bool { return p.room(x, count*usualResult) }) {
		return p.budget.full()
	}
	x.json(200)
	x.styleHeader(p.decider.Rules().Headers)
	c, ok := p.chunks.Get().(*chunk)
	if !ok {
		c = &chunk{}
	}
	p.all(x, c, start)
	p.chunks.Put(c)
	return nil
}

// room makes room for more bytes in x's answer. It reports false if the budget has none.
func (p *dataPlane) room(x *exchange, more int) bool {
	b := x.response.body
	n := len(b) + more
	if !p.chargeFor(x, max(0, n-cap(b))) {
		return false
	}
	if n > cap(b) {
		x.response.body = append(make([]byte, 0, n), b...)
	}
	return true
}

// item is one check of a batch.
type item struct {
	check  checkRequest
	answer limiter.Answer
	e      *Error // replaces the answer
}

// chunk is a part of a batch that is decided together, in order. It is reused.
type chunk struct {
	items []*item // the first used are in use; at most maxChunk
	used  int

	queries []*limiter.Query
	answers []*limiter.Answer
	errs    []error
	asked   []*item // the items that have a query
}

// next returns an empty item.
func (c *chunk) next() *item {
	if c.used == len(c.items) {
		c.items = append(c.items, &item{})
	}
	c.used++
	return c.items[c.used-1]
}

// reset empties c. The strings of its checks would keep whole bodies alive.
func (c *chunk) reset() {
	for _, it := range c.items[:c.used] {
		it.check.reset()
		it.e = nil
	}
	c.used = 0
}

// all decides the checks that begin at start and writes the answer. c is empty, before and after.
func (p *dataPlane) all(x *exchange, c *chunk, start int) {
	x.response.body = append(x.response.body, `{"results":[`...)
	s := &x.scan
	s.reset(x.request.body)
	s.pos, s.depth = start, 1
	s.open()
	first := true
	var full *Error // why no more checks are decided
	n := 0
	flush := func() {
		if full == nil && len(x.response.body) > maxBatchAnswer {
			full = errorf(TooLarge, "not decided: the answer to this batch is over %d bytes", maxBatchAnswer)
		}
		x.response.body = p.decideChunk(c, x.response.body, first, full)
		more := expected(len(x.response.body), n, x.checks)
		if full == nil && !p.budget.wait(func() bool { return p.room(x, more) }) {
			full = p.budget.full()
		}
		first = first && c.used == 0
		c.reset()
		s.scratch = s.scratch[:0] // it held the strings of the checks
	}
	for ; s.more(n, ']'); n++ {
		it := c.next()
		it.e = p.readItem(s, &it.check)
		// Answers with detail are long, so each of them must check whether there is room left.
		if c.used == maxChunk || it.check.detail {
			flush()
		}
	}
	flush()
	x.response.body = append(x.response.body, "]}"...)
}

// expected estimates how many bytes the answer will still grow by, given that the results of the checks up to index n
// take size bytes. It adds some slack. It is a guess that saves growing the answer in steps.
func expected(size, n, checks int) int {
	return min(size/(n+1)*(checks-n)*9/8, maxBatchAnswer+maxBatchAnswer/8-size)
}

// decideChunk decides the checks of c and appends their results. If full is not nil, it is the result of each of them.
func (p *dataPlane) decideChunk(c *chunk, b []byte, first bool, full *Error) []byte {
	c.queries, c.answers, c.errs, c.asked = c.queries[:0], c.answers[:0], c.errs[:0], c.asked[:0]
	for _, it := range c.items[:c.used] {
		if it.e == nil && full != nil {
			it.e = full
		}
		if it.e == nil {
			c.queries, c.answers = append(c.queries, &it.check.Query), append(c.answers, &it.answer)
			c.errs, c.asked = append(c.errs, nil), append(c.asked, it)
		}
	}
	p.decider.CheckAll(c.queries, c.answers, c.errs)
	for i, it := range c.asked {
		if c.errs[i] != nil {
			it.e = p.explain(c.errs[i])
		}
	}
	for i, it := range c.items[:c.used] {
		if i > 0 || !first {
			b = append(b, ',')
		}
		if it.e == nil {
			b = appendDecision(append(b, '{'), &it.answer, &it.check, p.node)
			continue
		}
		b = append(b, `{"error":{`...)
		b = append(appendProblemFields(b, it.e), "}}"...)
	}
	return b
}

// readBatch validates the whole body before any check is decided. It returns where the array of checks begins and how
// many there are.
func (x *exchange) readBatch() (start, count int, e *Error) {
	s := &x.scan
	if s.reset(x.request.body); !s.object() {
		return 0, 0, s.err()
	}
	given := false
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		switch {
		case s.syntax != nil:
		case name != "checks":
			s.unknown(name, "checks")
		case given:
			s.fail("checks is given twice, the second time")
		default:
			given = true
			s.next()
			start = s.pos
			count = s.countChecks()
		}
	}
	s.end()
	if s.err() == nil && !given {
		s.mean(MissingKey, "checks is missing")
	}
	return start, count, s.err()
}

// countChecks skips an array of checks and returns its length, at most maxBatch.
func (s *scanner) countChecks() (n int) {
	if s.next() != '[' {
		s.skip()
		s.mean(BadValue, "checks must be an array")
		return 0
	}
	s.open()
	for ; s.more(n, ']'); n++ {
		if s.skip(); n == maxBatch {
			s.mean(BadValue, "checks must not be more than %d", maxBatch)
		}
	}
	return min(n, maxBatch)
}

// readItem reads the next check of a batch. The body is known to be JSON; an error, even a field given twice, concerns
// this check alone.
func (p *dataPlane) readItem(s *scanner, q *checkRequest) *Error {
	s.meaning = nil
	s.next()
	start := s.pos
	e := readObject(s, q)
	switch {
	case e == nil && q.wait:
		e = errorf(BadValue, "wait must be false in a batch: its answer is not held")
	case e == nil:
		e = p.needsKey(q)
	}
	if e != nil {
		// Continue after this check, wherever in it the scanner stopped.
		s.syntax, s.pos, s.depth = nil, start, 2
		s.skip()
	}
	return e
}

// readObject reads a check that must be an object.
func readObject(s *scanner, q *checkRequest) *Error {
	if s.next() != '{' {
		s.skip()
		return errorf(BadValue, "a check must be an object")
	}
	q.read(s, checkForm)
	return s.err()
}

var _ Decider = (*limiter.Limiter)(nil)
