package api

import (
	"strings"
	"unicode/utf8"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
)

// bounded reads a string of at most maxValue bytes.
func (s *scanner) bounded(field string) string {
	if s.next() != '"' {
		s.skip()
		s.mean(BadValue, "%s: each value must be a string", field)
		return ""
	}
	v := s.text()
	if len(v) > maxValue {
		s.mean(BadValue, "%s: a value must not have more than %d bytes", field, maxValue)
	}
	return v
}

// bounded2 is bounded for a field of a field.
func (s *scanner) bounded2(outer, field string) string {
	if s.next() != '"' {
		s.skip()
		s.mean(BadValue, "%s.%s must be a string", outer, excerpt(field))
		return ""
	}
	v := s.text()
	if len(v) > maxValue {
		s.mean(BadValue, "%s.%s must not have more than %d bytes", outer, excerpt(field), maxValue)
	}
	return v
}

// filled reads a string of 1…maxValue bytes.
func (s *scanner) filled(field string) string {
	if s.next() != '"' {
		s.skip()
		s.mean(BadValue, "%s must be a string", field)
		return ""
	}
	v := s.text()
	if s.syntax == nil && (v == "" || len(v) > maxValue) {
		s.mean(BadValue, "%s must have 1 to %d bytes", field, maxValue)
	}
	return v
}

// requestID reads the id of a request.
func (s *scanner) requestID() string {
	if s.next() != '"' {
		s.skip()
		s.mean(BadValue, "request_id must be a string")
		return ""
	}
	id := s.text()
	if s.syntax == nil && !isRequestID(id) {
		s.mean(BadValue, "request_id must have 1 to %d bytes", limiter.MaxRequestID)
	}
	return id
}

func isRequestID(id string) bool { return id != "" && len(id) <= limiter.MaxRequestID }

// boolean reads true or false.
func (s *scanner) boolean(field string) bool {
	c := s.next()
	s.skip()
	if c != 't' && c != 'f' {
		s.mean(BadValue, "%s must be true or false", field)
	}
	return c == 't'
}

// amount reads a whole number from least, which is 0 or -MaxAmount, to MaxAmount, written in plain digits.
func (s *scanner) amount(field string, least int64) int64 {
	v, ok := s.whole(least)
	if !ok {
		s.mean(BadValue, "%s must be a whole number in plain digits from %d to %d", field, least, int64(algorithms.MaxAmount))
	}
	return v
}

// costOf is amount for one unit of costs.
func (s *scanner) costOf(unit string) int64 {
	v, ok := s.whole(0)
	if !ok {
		s.mean(BadValue, "costs.%s must be a whole number in plain digits from 0 to %d", excerpt(unit), int64(algorithms.MaxAmount))
	}
	return v
}

func (s *scanner) whole(least int64) (v int64, ok bool) {
	c := s.next()
	if c != '-' && (c < '0' || c > '9') {
		s.skip()
		return 0, false
	}
	digits := s.number()
	if c == '-' {
		if digits = digits[min(1, len(digits)):]; least == 0 || digits == "0" {
			return 0, false
		}
	}
	for i := range len(digits) {
		d := digits[i]
		if d < '0' || d > '9' {
			return 0, false // a fraction or an exponent
		}
		if v = v*10 + int64(d-'0'); v > algorithms.MaxAmount {
			return 0, false
		}
	}
	if c == '-' {
		v = -v
	}
	return v, s.syntax == nil
}

// unknown skips a field that there is not.
func (s *scanner) unknown(name, known string) {
	s.skip()
	s.mean(UnknownField, "there is no field %q here: the fields are %s", excerpt(name), known)
}

// excerpt shortens a caller's text for a message, and copies it.
func excerpt(v string) string {
	const most = 64
	if len(v) <= most {
		return strings.Clone(v)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(v[cut]) {
		cut--
	}
	return v[:cut] + "…"
}
