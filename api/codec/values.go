package codec

import (
	"math"
	"strconv"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter/loads"
)

// readBounded reads a string of minLen to maxLen bytes. For messages, outer
// names the field that contains field; empty: none.
func (dec *Decoder) readBounded(outer, field string, minLen, maxLen int) string {
	if dec.skipSpace() != '"' {
		dec.skip()
		dec.failValue(api.BadValue, "%s must be a string", pathOf(outer, field))
		return ""
	}

	v := dec.readString()
	switch {
	case dec.syntaxErr != nil:
	case minLen == 0 && len(v) > maxLen:
		dec.failValue(api.BadValue, "%s must not have more than %d bytes", pathOf(outer, field), maxLen)
	case len(v) < minLen || len(v) > maxLen:
		dec.failValue(api.BadValue, "%s must have %d to %d bytes", pathOf(outer, field), minLen, maxLen)
	}

	return v
}

// readValue reads a value of a key or of an attribute: text, or a whole number
// in plain digits, which counts as text. present is false for null.
func (dec *Decoder) readValue(outer, field string) (text string, present bool) {
	c := dec.skipSpace()
	switch {
	case c == '"':
		return dec.readBounded(outer, field, 0, MaxValue), true
	case c == 'n':
		dec.readLiteral("null")
		return "", false
	case c == '-' || '0' <= c && c <= '9':
		text = dec.readNumber()
		if dec.syntaxErr == nil && (len(text) > MaxValue || text == "-0" || strings.ContainsAny(text, ".eE")) {
			break
		}
		return text, true
	default:
		dec.skip()
	}

	dec.failValue(api.BadValue,
		"%s must be a string, or a whole number in plain digits, of at most %d bytes",
		pathOf(outer, field), MaxValue)
	return "", true
}

// pathOf returns the path of a field for messages.
func pathOf(outer, field string) string {
	if outer == "" {
		return field
	}
	return outer + "." + api.Excerpt(field)
}

// readBool reads true or false.
func (dec *Decoder) readBool(field string) bool {
	c := dec.skipSpace()
	dec.skip()
	if c != 't' && c != 'f' {
		dec.failValue(api.BadValue, "%s must be true or false", field)
	}
	return c == 't'
}

// readAmount reads a whole number in plain digits, from minimum, which is 0 or
// -MaxAmount, to MaxAmount.
func (dec *Decoder) readAmount(outer, field string, minimum int64) int64 {
	v, ok := dec.readInteger(minimum)
	if !ok {
		dec.failValue(api.BadValue, "%s must be a whole number in plain digits from %d to %d",
			pathOf(outer, field), minimum, int64(algorithms.MaxAmount))
	}
	return v
}

func (dec *Decoder) readInteger(minimum int64) (v int64, ok bool) {
	c := dec.skipSpace()
	if c != '-' && (c < '0' || c > '9') {
		dec.skip()
		return 0, false
	}

	digits := dec.readNumber()
	if c == '-' {
		digits = digits[min(1, len(digits)):]
		if minimum == 0 || digits == "0" {
			return 0, false
		}
	}

	for i := range len(digits) {
		d := digits[i]
		if d < '0' || d > '9' {
			return 0, false // a fraction or an exponent
		}
		// The bound is checked after each digit, so this can't overflow.
		v = v*10 + int64(d-'0')
		if v > algorithms.MaxAmount {
			return 0, false
		}
	}

	if c == '-' {
		v = -v
	}

	return v, dec.syntaxErr == nil
}

// readDecimal reads a number of at least 0.
func (dec *Decoder) readDecimal(field string) float64 {
	c := dec.skipSpace()
	if c != '-' && (c < '0' || c > '9') {
		dec.skip()
		dec.failValue(api.BadValue, "%s must be a number", field)
		return 0
	}
	v, err := strconv.ParseFloat(dec.readNumber(), 64)
	if dec.syntaxErr == nil && (err != nil || math.Signbit(v) && v != 0) {
		dec.failValue(api.BadValue, "%s must be a number from 0 to %d", field, loads.MaxLoad)
	}
	return math.Abs(v)
}

// rejectUnknown skips the value of an unknown field and records the error.
func (dec *Decoder) rejectUnknown(name, known string) {
	dec.skip()
	dec.failValue(api.UnknownField, "there is no field %q here: the fields are %s", api.Excerpt(name), known)
}
