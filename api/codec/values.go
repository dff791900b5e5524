package codec

import (
	"math"
	"strconv"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/loads"
)

// quoted reads a string of least to most bytes. outer is the field that contains field; empty: none.
func (s *Decoder) quoted(outer, field string, least, most int) string {
	if s.next() != '"' {
		s.skip()
		s.mean(api.BadValue, "%s must be a string", pathOf(outer, field))
		return ""
	}
	v := s.text()
	switch {
	case s.syntax != nil:
	case least == 0 && len(v) > most:
		s.mean(api.BadValue, "%s must not have more than %d bytes", pathOf(outer, field), most)
	case len(v) < least || len(v) > most:
		s.mean(api.BadValue, "%s must have %d to %d bytes", pathOf(outer, field), least, most)
	}
	return v
}

// pathOf returns a field's name for messages.
func pathOf(outer, field string) string {
	if outer == "" {
		return field
	}
	return outer + "." + api.Excerpt(field)
}

// boolean reads true or false.
func (s *Decoder) boolean(field string) bool {
	c := s.next()
	s.skip()
	if c != 't' && c != 'f' {
		s.mean(api.BadValue, "%s must be true or false", field)
	}
	return c == 't'
}

// amount reads a whole number from least, which is 0 or -MaxAmount, to MaxAmount, written in plain digits.
func (s *Decoder) amount(outer, field string, least int64) int64 {
	v, ok := s.whole(least)
	if !ok {
		s.mean(api.BadValue, "%s must be a whole number in plain digits from %d to %d", pathOf(outer, field), least, int64(algorithms.MaxAmount))
	}
	return v
}

func (s *Decoder) whole(least int64) (v int64, ok bool) {
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

// decimal reads a number of at least 0.
func (s *Decoder) decimal(field string) float64 {
	if c := s.next(); c != '-' && (c < '0' || c > '9') {
		s.skip()
		s.mean(api.BadValue, "%s must be a number", field)
		return 0
	}
	v, err := strconv.ParseFloat(s.number(), 64)
	if s.syntax == nil && (err != nil || math.Signbit(v) && v != 0) {
		s.mean(api.BadValue, "%s must be a number from 0 to %d", field, loads.MaxLoad)
	}
	return math.Abs(v)
}

// unknown skips and rejects an unknown field.
func (s *Decoder) unknown(name, known string) {
	s.skip()
	s.mean(api.UnknownField, "there is no field %q here: the fields are %s", api.Excerpt(name), known)
}
