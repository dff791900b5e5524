package codec

import (
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/rlnode/rlnode/api"
)

// maxDepth bounds the nesting of arrays and objects in a body.
const maxDepth = 32

// Decoder parses one JSON text strictly. It tells two kinds of errors apart. It stops at an error of syntax. It keeps
// the first error of meaning and goes on, so that a body that is not JSON is always reported as such.
//
// The strings that it returns point into src or scratch and are valid until the next reset.
type Decoder struct {
	src     []byte
	pos     int
	depth   int
	scratch []byte     // strings that had escapes
	syntax  *api.Error // why the scanner stopped
	meaning *api.Error // the first wrong value
}

// Reset forgets the body.
func (s *Decoder) Reset() {
	s.reset(nil)
	s.scratch = api.Kept(s.scratch)
}

// Forget releases the strings of the checks that Next has read so far.
func (s *Decoder) Forget() { s.scratch = s.scratch[:0] }

// Size returns how many bytes s holds besides the body.
func (s *Decoder) Size() int { return cap(s.scratch) }

func (s *Decoder) reset(src []byte) {
	*s = Decoder{src: src, scratch: s.scratch[:0]}
}

// Read reads a body of form f into r.
func (s *Decoder) Read(body []byte, f *Form, r *Request) *api.Error {
	if s.reset(body); s.object() {
		r.read(s, f)
		s.end()
	}
	return s.err()
}

// object starts a body that must be one JSON object.
func (s *Decoder) object() bool {
	if !s.utf8() {
		return false
	}
	if s.next() == '{' {
		return true
	}
	if s.pos == len(s.src) {
		s.fail("the body is empty")
	} else if s.skip(); s.syntax == nil {
		s.fail("the body is not an object")
	}
	return false
}

// err returns the error found so far, if any.
func (s *Decoder) err() *api.Error {
	if s.syntax != nil {
		return s.syntax
	}
	return s.meaning
}

// fail ends the scan.
func (s *Decoder) fail(what string) {
	if s.syntax == nil {
		s.syntax = api.Errorf(api.BadJSON, "%s at byte %d of %d", what, s.pos, len(s.src))
	}
}

// mean records a value that is valid JSON but wrong.
func (s *Decoder) mean(code api.Code, format string, args ...any) {
	if s.meaning == nil {
		s.meaning = api.Errorf(code, format, args...)
	}
}

// utf8 validates the whole source at once.
func (s *Decoder) utf8() bool {
	if !utf8.Valid(s.src) {
		s.fail("the body is not UTF-8")
	}
	return s.syntax == nil
}

// next skips white space and returns the byte after it, 0 at the end.
func (s *Decoder) next() byte {
	for s.pos < len(s.src) {
		switch c := s.src[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// end requires that nothing follows.
func (s *Decoder) end() {
	if s.syntax == nil {
		if s.next(); s.pos < len(s.src) {
			s.fail("more follows after the object")
		}
	}
}

// open enters the object or array that next has found.
func (s *Decoder) open() {
	s.pos++
	if s.depth++; s.depth > maxDepth {
		s.fail("nested too deep")
	}
}

// more reports whether the open object or array has a further member after the first n. If not, it leaves it.
func (s *Decoder) more(n int, closing byte) bool {
	if s.syntax != nil {
		return false
	}
	c := s.next()
	switch {
	case c == closing:
		s.pos++
		s.depth--
		return false
	case n == 0:
		return true
	case c == ',':
		s.pos++
		return true
	}
	s.fail("a comma or the end is missing")
	return false
}

// name reads a member's name and the colon.
func (s *Decoder) name() string {
	if s.next() != '"' {
		s.fail("a name in quotes is missing")
		return ""
	}
	name := s.text()
	if s.syntax != nil {
		return ""
	}
	if s.next() != ':' {
		s.fail("a colon is missing")
		return ""
	}
	s.pos++
	return name
}

// text reads a string whose quote next has found.
func (s *Decoder) text() string {
	s.pos++
	from := s.pos
	for i := from; i < len(s.src); i++ {
		switch c := s.src[i]; {
		case c == '"':
			s.pos = i + 1
			return View(s.src[from:i])
		case c == '\\':
			return s.escapedText(from, i)
		case c < ' ':
			s.pos = i
			s.fail("a control character in a string")
			return ""
		}
	}
	s.pos = len(s.src)
	s.fail("a string without end")
	return ""
}

// escapedText continues at i, the first escape of a string that began at from.
func (s *Decoder) escapedText(from, i int) string {
	start := len(s.scratch)
	s.scratch = append(s.scratch, s.src[from:i]...)
	for i < len(s.src) {
		switch c := s.src[i]; {
		case c == '"':
			s.pos = i + 1
			return View(s.scratch[start:])
		case c == '\\':
			s.pos = i
			if s.escape(); s.syntax != nil {
				return ""
			}
			i = s.pos
		case c < ' ':
			s.pos = i
			s.fail("a control character in a string")
			return ""
		default:
			s.scratch = append(s.scratch, c)
			i++
		}
	}
	s.pos = len(s.src)
	s.fail("a string without end")
	return ""
}

// escape decodes one escape into scratch.
func (s *Decoder) escape() {
	if s.pos+1 >= len(s.src) {
		s.fail("a string without end")
		return
	}
	c := s.src[s.pos+1]
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
		s.unicodeEscape()
		return
	default:
		s.fail("an unknown escape in a string")
		return
	}
	s.scratch = append(s.scratch, c)
	s.pos += 2
}

func (s *Decoder) unicodeEscape() {
	r, ok := s.hex4(s.pos)
	if !ok {
		s.fail(`\u needs four hex digits`)
		return
	}
	size := 6
	if utf16.IsSurrogate(r) {
		low, ok := s.hex4(s.pos + 6)
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			s.fail("a lone surrogate in a string")
			return
		}
		size = 12
	}
	s.scratch = utf8.AppendRune(s.scratch, r)
	s.pos += size
}

// hex4 reads an escape of four hex digits at i.
func (s *Decoder) hex4(i int) (rune, bool) {
	if i+6 > len(s.src) || s.src[i] != '\\' || s.src[i+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range s.src[i+2 : i+6] {
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

// number reads a number whose first byte next has found, and returns its text.
func (s *Decoder) number() string {
	from := s.pos
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if s.digits() == 0 {
		s.fail("not a number")
		return ""
	}
	if s.peek() == '.' {
		s.pos++
		if s.digits() == 0 {
			s.fail("digits are missing after the point")
		}
	}
	if s.peek()|0x20 == 'e' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if s.digits() == 0 {
			s.fail("digits are missing in the exponent")
		}
	}
	return View(s.src[from:s.pos])
}

func (s *Decoder) peek() byte {
	if s.pos < len(s.src) {
		return s.src[s.pos]
	}
	return 0
}

func (s *Decoder) digits() int {
	from := s.pos
	for c := s.peek(); '0' <= c && c <= '9'; c = s.peek() {
		s.pos++
	}
	return s.pos - from
}

// literal reads one of the words true, false and null.
func (s *Decoder) literal(word string) {
	if len(s.src)-s.pos < len(word) || View(s.src[s.pos:s.pos+len(word)]) != word {
		s.fail("not a JSON value")
		return
	}
	s.pos += len(word)
}

// skip reads any value and discards it.
func (s *Decoder) skip() {
	switch c := s.next(); c {
	case '{':
		s.open()
		for n := 0; s.more(n, '}'); n++ {
			if s.name(); s.syntax == nil {
				s.skip()
			}
		}
	case '[':
		s.open()
		for n := 0; s.more(n, ']'); n++ {
			s.skip()
		}
	case '"':
		// A skipped string must not stay in scratch: there may be very many.
		kept := len(s.scratch)
		s.text()
		s.scratch = s.scratch[:kept]
	case 't':
		s.literal("true")
	case 'f':
		s.literal("false")
	case 'n':
		s.literal("null")
	default:
		if c == '-' || '0' <= c && c <= '9' {
			s.number()
			return
		}
		s.fail("a value is missing")
	}
}

// View returns b as a string without copying. It is valid until b is written to.
func View(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
