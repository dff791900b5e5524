package codec

import (
	"math"
	"strconv"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/loads"
)

// quoted reads a string of least to most bytes. For messages, outer names the field that contains field; empty: none.
func (dec *Decoder) quoted(outer, field string, least, most int) string {
	if dec.next() != '"' {
		dec.skip()
		dec.failValue(api.BadValue, "%s must be a string", pathOf(outer, field))
		return ""
	}
	v := dec.text()
	switch {
	case dec.syntax != nil:
	case least == 0 && len(v) > most:
		dec.failValue(api.BadValue, "%s must not have more than %d bytes", pathOf(outer, field), most)
	case len(v) < least || len(v) > most:
		dec.failValue(api.BadValue, "%s must have %d to %d bytes", pathOf(outer, field), least, most)
	}
	return v
}

// pathOf returns the path of a field for messages.
func pathOf(outer, field string) string {
	if outer == "" {
		return field
	}
	return outer + "." + api.Excerpt(field)
}

// boolean reads true or false.
func (dec *Decoder) boolean(field string) bool {
	c := dec.next()
	dec.skip()
	if c != 't' && c != 'f' {
		dec.failValue(api.BadValue, "%s must be true or false", field)
	}
	return c == 't'
}

// amount reads a whole number in plain digits, from least, which is 0 or -MaxAmount, to MaxAmount.
func (dec *Decoder) amount(outer, field string, least int64) int64 {
	v, ok := dec.whole(least)
	if !ok {
		dec.failValue(api.BadValue, "%s must be a whole number in plain digits from %d to %d", pathOf(outer, field), least, int64(algorithms.MaxAmount))
	}
	return v
}

func (dec *Decoder) whole(least int64) (v int64, ok bool) {
	c := dec.next()
	if c != '-' && (c < '0' || c > '9') {
		dec.skip()
		return 0, false
	}
	digits := dec.number()
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
	return v, dec.syntax == nil
}

// decimal reads a number of at least 0.
func (dec *Decoder) decimal(field string) float64 {
	if c := dec.next(); c != '-' && (c < '0' || c > '9') {
		dec.skip()
		dec.failValue(api.BadValue, "%s must be a number", field)
		return 0
	}
	v, err := strconv.ParseFloat(dec.number(), 64)
	if dec.syntax == nil && (err != nil || math.Signbit(v) && v != 0) {
		dec.failValue(api.BadValue, "%s must be a number from 0 to %d", field, loads.MaxLoad)
	}
	return math.Abs(v)
}

// unknown skips the value of an unknown field and records the error.
func (dec *Decoder) unknown(name, known string) {
	dec.skip()
	dec.failValue(api.UnknownField, "there is no field %q here: the fields are %s", api.Excerpt(name), known)
}
