package codec

import (
	"cmp"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/rlnode/rlnode/api"
)

// maxDepth bounds the nesting of arrays and objects in a body.
const maxDepth = 32

// Decoder parses one JSON text strictly. It distinguishes two kinds of errors.
// At a syntax error it stops. After an invalid value it continues and keeps the
// first such error, so that a body that is not JSON is always reported as that.
//
// The strings that it returns point into src or scratch, and are valid until the next reset.
type Decoder struct {
	src       []byte
	pos       int
	depth     int
	scratch   []byte     // decoded strings that had escapes
	syntaxErr *api.Error // the syntax error at which the decoder stopped
	valueErr  *api.Error // the first invalid value
}

// Reset releases the body.
func (dec *Decoder) Reset() {
	dec.reset(nil)
	dec.scratch = api.Reuse(dec.scratch)
}

// ReleaseStrings releases the memory of the strings that NextCheck has returned so far.
func (dec *Decoder) ReleaseStrings() { dec.scratch = dec.scratch[:0] }

// Size returns how many bytes dec holds besides the body.
func (dec *Decoder) Size() int { return cap(dec.scratch) }

func (dec *Decoder) reset(src []byte) {
	scratch := dec.scratch[:0]
	*dec = Decoder{}
	dec.src = src
	dec.scratch = scratch
}

// Read reads a body of form f into r.
func (dec *Decoder) Read(body []byte, f *Form, r *Request) *api.Error {
	dec.reset(body)
	if dec.startObject() {
		r.read(dec, f)
		dec.requireEnd()
	}
	return dec.err()
}

// startObject finds the opening brace of a body that must be one JSON object.
func (dec *Decoder) startObject() bool {
	// The whole body is checked for UTF-8 at once, so that no string need be
	// checked.
	switch {
	case !utf8.Valid(dec.src):
		for dec.pos < len(dec.src) { // find the byte
			r, size := utf8.DecodeRune(dec.src[dec.pos:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			dec.pos += size
		}
		dec.failSyntax("the body is not UTF-8")
	case dec.skipSpace() == '{':
		return true
	case dec.pos == len(dec.src):
		dec.failSyntax("the body is empty")
	default:
		dec.skip()
		dec.failSyntax("the body is not an object") // unless it is no valid JSON either
	}

	return false
}

// err returns the error found so far, if any.
func (dec *Decoder) err() *api.Error { return cmp.Or(dec.syntaxErr, dec.valueErr) }

// failSyntax records a syntax error, which ends the scan.
func (dec *Decoder) failSyntax(what string) {
	if dec.syntaxErr == nil {
		dec.syntaxErr = api.Errorf(api.BadJSON, "%s at byte %d of %d", what, dec.pos, len(dec.src))
	}
}

// failValue records a value that is valid JSON but not allowed.
func (dec *Decoder) failValue(code api.Code, format string, args ...any) {
	if dec.valueErr == nil {
		dec.valueErr = api.Errorf(code, format, args...)
	}
}

// skipSpace skips white space and returns the byte after it without consuming it; 0 at the end.
func (dec *Decoder) skipSpace() byte {
	for dec.pos < len(dec.src) {
		c := dec.src[dec.pos]
		switch c {
		case ' ', '\t', '\n', '\r':
			dec.pos++
		default:
			return c
		}
	}
	return 0
}

// requireEnd requires that only white space follows.
func (dec *Decoder) requireEnd() {
	if dec.syntaxErr == nil {
		dec.skipSpace()
		if dec.pos < len(dec.src) {
			dec.failSyntax("more follows after the object")
		}
	}
}

// enter enters the object or array whose opening bracket skipSpace has found.
func (dec *Decoder) enter() {
	dec.pos++
	dec.depth++
	if dec.depth > maxDepth {
		dec.failSyntax("nested too deeply")
	}
}

// hasMore reports whether the open object or array has another member after the
// first n. If not, it consumes the closing bracket.
func (dec *Decoder) hasMore(n int, closing byte) bool {
	if dec.syntaxErr != nil {
		return false
	}

	c := dec.skipSpace()
	switch {
	case c == closing:
		dec.pos++
		dec.depth--
		return false
	case n == 0:
		return true
	case c == ',':
		dec.pos++
		return true
	}

	dec.failSyntax("a comma or the end is missing")
	return false
}

// readName reads a member's name and the colon.
func (dec *Decoder) readName() string {
	if dec.skipSpace() != '"' {
		dec.failSyntax("a name in quotes is missing")
		return ""
	}

	name := dec.readString()
	if dec.syntaxErr != nil {
		return ""
	}
	if dec.skipSpace() != ':' {
		dec.failSyntax("a colon is missing")
		return ""
	}

	dec.pos++
	return name
}

// readString reads a string whose opening quote skipSpace has found.
func (dec *Decoder) readString() string {
	dec.pos++
	from := dec.pos
	for i := from; i < len(dec.src); i++ {
		c := dec.src[i]
		switch {
		case c == '"':
			dec.pos = i + 1
			return UnsafeString(dec.src[from:i])
		case c == '\\':
			return dec.readEscapedString(from, i)
		case c < ' ':
			dec.pos = i
			dec.failSyntax("a control character in a string")
			return ""
		}
	}

	dec.pos = len(dec.src)
	dec.failSyntax("an unterminated string")
	return ""
}

// readEscapedString reads the rest of a string that starts at from and has its first escape at i.
func (dec *Decoder) readEscapedString(from, i int) string {
	// Strings that were read before point into scratch. If it grows into new
	// memory, they keep the old.
	start := len(dec.scratch)
	dec.scratch = append(dec.scratch, dec.src[from:i]...)

	for i < len(dec.src) {
		c := dec.src[i]
		switch {
		case c == '"':
			dec.pos = i + 1
			return UnsafeString(dec.scratch[start:])
		case c == '\\':
			dec.pos = i
			dec.readEscape()
			if dec.syntaxErr != nil {
				return ""
			}
			i = dec.pos
		case c < ' ':
			dec.pos = i
			dec.failSyntax("a control character in a string")
			return ""
		default:
			dec.scratch = append(dec.scratch, c)
			i++
		}
	}

	dec.pos = len(dec.src)
	dec.failSyntax("an unterminated string")
	return ""
}

// readEscape decodes one escape into scratch.
func (dec *Decoder) readEscape() {
	if dec.pos+1 >= len(dec.src) {
		dec.failSyntax("an unterminated string")
		return
	}

	c := dec.src[dec.pos+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		dec.readUnicodeEscape()
		return
	default:
		dec.failSyntax("an unknown escape in a string")
		return
	}

	dec.scratch = append(dec.scratch, c)
	dec.pos += 2
}

func (dec *Decoder) readUnicodeEscape() {
	r, ok := dec.readHex4(dec.pos)
	if !ok {
		dec.failSyntax(`\u needs four hex digits`)
		return
	}

	size := 6
	if utf16.IsSurrogate(r) {
		low, ok := dec.readHex4(dec.pos + 6)
		r = utf16.DecodeRune(r, low)
		if !ok || r == utf8.RuneError {
			dec.failSyntax("a lone surrogate in a string")
			return
		}
		size = 12
	}

	dec.scratch = utf8.AppendRune(dec.scratch, r)
	dec.pos += size
}

// readHex4 decodes the \u escape at i.
func (dec *Decoder) readHex4(i int) (rune, bool) {
	if i+6 > len(dec.src) || dec.src[i] != '\\' || dec.src[i+1] != 'u' {
		return 0, false
	}

	var r rune
	for _, c := range dec.src[i+2 : i+6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}

		r = r<<4 | rune(c)
	}

	return r, true
}

// readNumber reads a number at the current position and returns its text.
func (dec *Decoder) readNumber() string {
	from := dec.pos
	if dec.peek() == '-' {
		dec.pos++
	}

	if dec.peek() == '0' {
		dec.pos++
	} else if dec.skipDigits() == 0 {
		dec.failSyntax("not a number")
		return ""
	}

	if dec.peek() == '.' {
		dec.pos++
		if dec.skipDigits() == 0 {
			dec.failSyntax("digits are missing after the point")
		}
	}

	if dec.peek()|0x20 == 'e' {
		dec.pos++
		c := dec.peek()
		if c == '+' || c == '-' {
			dec.pos++
		}
		if dec.skipDigits() == 0 {
			dec.failSyntax("digits are missing in the exponent")
		}
	}

	return UnsafeString(dec.src[from:dec.pos])
}

func (dec *Decoder) peek() byte {
	if dec.pos < len(dec.src) {
		return dec.src[dec.pos]
	}
	return 0
}

func (dec *Decoder) skipDigits() int {
	from := dec.pos
	for c := dec.peek(); '0' <= c && c <= '9'; c = dec.peek() {
		dec.pos++
	}
	return dec.pos - from
}

// readLiteral reads one of the words true, false and null.
func (dec *Decoder) readLiteral(word string) {
	if len(dec.src)-dec.pos < len(word) || UnsafeString(dec.src[dec.pos:dec.pos+len(word)]) != word {
		dec.failSyntax("not a JSON value")
		return
	}
	dec.pos += len(word)
}

// skip reads any value and discards it.
func (dec *Decoder) skip() {
	c := dec.skipSpace()
	switch c {
	case '{':
		dec.enter() // bounds the recursion
		for n := 0; dec.hasMore(n, '}'); n++ {
			dec.readName()
			if dec.syntaxErr == nil {
				dec.skip()
			}
		}

	case '[':
		dec.enter()
		for n := 0; dec.hasMore(n, ']'); n++ {
			dec.skip()
		}

	case '"':
		// Skipped strings must not pile up in scratch.
		kept := len(dec.scratch)
		dec.readString()
		dec.scratch = dec.scratch[:kept]

	case 't':
		dec.readLiteral("true")
	case 'f':
		dec.readLiteral("false")
	case 'n':
		dec.readLiteral("null")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		dec.readNumber()
	default:
		dec.failSyntax("a value is missing")
	}
}

// UnsafeString returns b as a string without copying. It is valid until b is written to.
func UnsafeString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
