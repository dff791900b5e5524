package api

import (
	"slices"

	"github.com/rlnode/rlnode/limiter"
)

const (
	maxBatch = 10_000 // checks in a batch
	// maxBatchAnswer bounds the bytes of a batch's answer; checks after that are not decided.
	maxBatchAnswer = 64 << 20
	// usualResult is about the bytes of one result; the answer has room for so much from the start.
	usualResult = 240
	// maxChunk is how many checks of a batch are decided together.
	maxChunk = 256
)

// batch answers POST /v1/check/batch.
func (p *dataPlane) batch(x *exchange) {
	if e := p.readiness.checks(); e != nil {
		x.refuse(e)
		return
	}
	start, count, e := x.readBatch()
	if e != nil {
		x.refuse(e)
		return
	}
	x.checks = count
	x.json(200)
	x.response.body = p.all(x, start, slices.Grow(x.response.body, count*usualResult))
}

// item is a check of a batch.
type item struct {
	check  checkRequest
	answer limiter.Answer
	e      *Error // in place of an answer
}

// chunk is the part of a batch that is decided together, in order. It is kept for the next one.
type chunk struct {
	items []*item // of which used are in use; at most maxChunk
	used  int

	queries []*limiter.Query
	answers []*limiter.Answer
	errs    []error
	asked   []*item // that have a query
}

// next is an empty item.
func (c *chunk) next() *item {
	if c.used == len(c.items) {
		c.items = append(c.items, &item{})
	}
	c.used++
	return c.items[c.used-1]
}

// reset empties c; strings of its checks would keep whole bodies alive.
func (c *chunk) reset() {
	for _, it := range c.items[:c.used] {
		it.check.reset()
		it.e = nil
	}
	c.used = 0
}

// all decides the checks that begin at start and appends their results.
func (p *dataPlane) all(x *exchange, start int, b []byte) []byte {
	b = append(b, `{"results":[`...)
	s, c := &x.scan, &x.chunk
	s.reset(x.request.body)
	s.pos, s.depth = start, 1
	s.open()
	first := true
	flush := func() {
		b = p.decideChunk(c, b, first)
		first = first && c.used == 0
		c.reset()
		s.scratch = s.scratch[:0] // which texts of the checks were in
	}
	for n := 0; s.more(n, ']'); n++ {
		it := c.next()
		it.e = p.readItem(s, &it.check)
		// Answers in detail are long: each has to see whether there is room left.
		if c.used == maxChunk || it.check.detail {
			flush()
		}
	}
	flush()
	return append(b, "]}"...)
}

// decideChunk decides the checks of c and appends their results.
func (p *dataPlane) decideChunk(c *chunk, b []byte, first bool) []byte {
	c.queries, c.answers, c.errs, c.asked = c.queries[:0], c.answers[:0], c.errs[:0], c.asked[:0]
	for _, it := range c.items[:c.used] {
		if it.e == nil && len(b) > maxBatchAnswer {
			it.e = errorf(TooLarge, "not decided: the answer to this batch is over %d bytes", maxBatchAnswer)
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

// readBatch checks the whole body before any of it is decided, and returns where the array of checks begins and how
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

// countChecks skips an array of checks and returns how many it has, at most maxBatch.
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

// readItem reads the next check of a batch. The body is known to be JSON; errors, also those of a field given twice,
// are this check's alone.
func (p *dataPlane) readItem(s *scanner, q *checkRequest) *Error {
	s.meaning = nil
	s.next()
	start := s.pos
	e := readObject(s, q)
	switch {
	case e == nil && q.wait:
		e = errorf(BadValue, "wait must be false in a batch: its answer is not held")
	case e == nil:
		e = p.complete(q)
	}
	if e != nil {
		// Go on after this check, wherever in it the scanner stopped.
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
	q.read(s)
	return s.err()
}

var _ Decider = (*limiter.Limiter)(nil)
