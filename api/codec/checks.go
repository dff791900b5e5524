package codec

import (
	"slices"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const maxBatch = 10_000 // checks in a batch

// StartBatch starts to read a batch and returns its number of checks;
// MoreChecks and NextCheck then read them. It validates the whole body first,
// so that no check of a malformed batch is decided.
func (dec *Decoder) StartBatch(body []byte) (count int, e *api.Error) {
	dec.reset(body)
	if !dec.startObject() {
		return 0, dec.err()
	}

	given := false
	start := 0
	dec.enter()

	for n := 0; dec.hasMore(n, '}'); n++ {
		name := dec.readName()
		switch {
		case dec.syntaxErr != nil:
		case name != "checks":
			dec.rejectUnknown(name, "checks")
		case given:
			dec.failSyntax("checks is given twice, the second time")
		default:
			given = true
			dec.skipSpace()
			start = dec.pos
			count = dec.countChecks()
		}
	}

	dec.requireEnd()
	if dec.err() == nil && !given {
		dec.failValue(api.MissingKey, "checks is missing")
	}

	e = dec.err()
	if e == nil {
		dec.reset(body)
		dec.pos = start
		dec.depth = 1
		dec.enter()
	}

	return count, e
}

// MoreChecks reports whether a batch has a check after the first n.
func (dec *Decoder) MoreChecks(n int) bool { return dec.hasMore(n, ']') }

// countChecks skips an array of checks and returns its length. More than maxBatch is an error.
func (dec *Decoder) countChecks() (n int) {
	if dec.skipSpace() != '[' {
		dec.skip()
		dec.failValue(api.BadValue, "checks must be an array")
		return 0
	}

	dec.enter()

	for ; dec.hasMore(n, ']'); n++ {
		if !dec.readPlain(nil) {
			dec.skip()
		}
		if n == maxBatch {
			dec.failValue(api.BadValue, "checks: at most %d are allowed", maxBatch)
		}
	}

	return min(n, maxBatch)
}

// NextCheck reads the next check of a batch. StartBatch has validated the JSON,
// so any error, even a duplicate field, affects this check alone.
func (dec *Decoder) NextCheck(q *Request, set *rules.Set) *api.Error {
	dec.valueErr = nil
	dec.skipSpace()
	start := dec.pos

	if dec.readPlain(&q.Attributes) {
		q.given = fieldAttributes
		return nil
	}

	e := readCheck(dec, q)
	switch {
	case e == nil && q.Wait:
		e = api.Errorf(api.BadValue, "wait must be false in a batch: its answer is not held")
	case e == nil:
		e = q.RequireKey(set)
	}

	if e != nil {
		// The next check begins after this one, wherever the scanner stopped within
		// it.
		dec.syntaxErr = nil
		dec.pos = start
		dec.depth = 2
		dec.skip()
	}

	return e
}

// plainStart is the beginning of a plain check.
const plainStart = `{"attributes":{"`

// readPlain reads a plain check: it has only attributes, and is written without
// blanks or escapes. It appends the attributes to attrs unless that is nil. For
// any other check, valid or not, it reads nothing and reports false.
func (dec *Decoder) readPlain(attrs *[]rules.Attribute) bool {
	b := dec.src[dec.pos:]
	if len(b) < len(plainStart) || UnsafeString(b[:len(plainStart)]) != plainStart {
		return false
	}

	for at, n := len(plainStart), 0; n < document.MaxAttributes; n++ {
		colon := plainText(b, at)
		if colon < 0 || b[colon+1] != ':' || b[colon+2] != '"' {
			break
		}

		end := plainText(b, colon+3)
		if end < 0 {
			break
		}

		if attrs != nil {
			attribute := rules.Attribute{Name: UnsafeString(b[at:colon]), Value: UnsafeString(b[colon+3 : end])}
			// A name that is given twice is left to the general way, which
			// reports it.
			if slices.ContainsFunc(*attrs, func(a rules.Attribute) bool { return a.Name == attribute.Name }) {
				break
			}
			*attrs = append(*attrs, attribute)
		}

		if b[end+1] == '}' && b[end+2] == '}' {
			dec.pos += end + 3
			return true
		}
		at = end + 3
		if b[end+1] != ',' || b[end+2] != '"' {
			break
		}
	}

	if attrs != nil {
		*attrs = (*attrs)[:0]
	}

	return false
}

// plainText returns the index of the quote that ends the string starting at
// from. It returns -1 if the string is longer than MaxValue or has escapes, or
// if fewer than two bytes follow it.
func plainText(b []byte, from int) int {
	for i := from; i+2 < len(b) && i-from <= MaxValue; i++ {
		c := b[i]
		switch {
		case c == '"':
			return i
		case c < ' ' || c == '\\':
			return -1
		}
	}
	return -1
}

// readCheck reads a check that must be an object.
func readCheck(dec *Decoder, q *Request) *api.Error {
	if dec.skipSpace() != '{' {
		dec.skip()
		return api.Errorf(api.BadValue, "a check must be an object")
	}
	q.read(dec, CheckForm)
	return dec.err()
}
