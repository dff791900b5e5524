package codec

import (
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/rules"
)

const maxBatch = 10_000 // checks in a batch

// Batch starts to read a batch, whose checks More and Next then read. It validates the whole body first, before any check
// is decided, and returns how many checks there are.
func (s *Decoder) Batch(body []byte) (count int, e *api.Error) {
	if s.reset(body); !s.object() {
		return 0, s.err()
	}
	given, start := false, 0
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
		s.mean(api.MissingKey, "checks is missing")
	}
	if e = s.err(); e == nil {
		s.reset(body)
		s.pos, s.depth = start, 1
		s.open()
	}
	return count, e
}

// More reports whether there is a check after the first n of a batch.
func (s *Decoder) More(n int) bool { return s.more(n, ']') }

// countChecks skips an array of checks and returns its length, at most maxBatch.
func (s *Decoder) countChecks() (n int) {
	if s.next() != '[' {
		s.skip()
		s.mean(api.BadValue, "checks must be an array")
		return 0
	}
	s.open()
	for ; s.more(n, ']'); n++ {
		if s.skip(); n == maxBatch {
			s.mean(api.BadValue, "checks must not be more than %d", maxBatch)
		}
	}
	return min(n, maxBatch)
}

// Next reads the next check of a batch. The body is known to be JSON; an error, even a field given twice, concerns
// this check alone.
func (s *Decoder) Next(q *Request, set *rules.Set) *api.Error {
	s.meaning = nil
	s.next()
	start := s.pos
	e := readObject(s, q)
	switch {
	case e == nil && q.Wait:
		e = api.Errorf(api.BadValue, "wait must be false in a batch: its answer is not held")
	case e == nil:
		e = q.NeedsKey(set)
	}
	if e != nil {
		// Continue after this check, wherever in it the scanner stopped.
		s.syntax, s.pos, s.depth = nil, start, 2
		s.skip()
	}
	return e
}

// readObject reads a check that must be an object.
func readObject(s *Decoder, q *Request) *api.Error {
	if s.next() != '{' {
		s.skip()
		return api.Errorf(api.BadValue, "a check must be an object")
	}
	q.read(s, CheckForm)
	return s.err()
}
