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
	x.json(200)
	x.response.body = p.all(x, start, slices.Grow(x.response.body, count*usualResult))
}

// all decides the checks that begin at start and appends their results.
func (p *dataPlane) all(x *exchange, start int, b []byte) []byte {
	b = append(b, `{"results":[`...)
	s := &x.scan
	s.reset(x.request.body)
	s.pos, s.depth = start, 1
	s.open()
	for n := 0; s.more(n, ']'); n++ {
		if n > 0 {
			b = append(b, ',')
		}
		b = p.one(x, b)
	}
	return append(b, "]}"...)
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

// one decides the next check of a batch and appends its result. The body is known to be JSON; errors, also those
// of a field given twice, are this check's alone.
func (p *dataPlane) one(x *exchange, b []byte) []byte {
	s := &x.scan
	s.meaning, s.scratch = nil, s.scratch[:0]
	x.check.reset()
	s.next()
	start := s.pos
	e := p.askNext(x)
	switch {
	case e == nil && x.check.wait:
		e = errorf(BadValue, "wait must be false in a batch: its answer is not held")
	case e == nil && len(b) > maxBatchAnswer:
		e = errorf(TooLarge, "not decided: the answer to this batch is over %d bytes", maxBatchAnswer)
	case e == nil:
		e = p.decide(x)
	}
	if e == nil {
		return x.appendAnswer(b, p.node, false)
	}
	// Go on after this check, wherever in it the scanner stopped.
	s.syntax, s.pos, s.depth = nil, start, 2
	s.skip()
	b = append(b, `{"error":{`...)
	b = appendProblemFields(b, e)
	return append(b, "}}"...)
}

// askNext reads the next check of a batch.
func (p *dataPlane) askNext(x *exchange) *Error {
	s := &x.scan
	if s.next() != '{' {
		s.skip()
		return errorf(BadValue, "a check must be an object")
	}
	x.check.read(s)
	return s.err()
}

var _ Decider = (*limiter.Limiter)(nil)
