package replay

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner walks over the JSON text of one line: objects, strings and numbers, all that a record is made of.
// The text is valid UTF-8.
type scanner struct {
	s  string
	at int
}

func (s *scanner) space() {
	for s.at < len(s.s) && isSpace(s.s[s.at]) {
		s.at++
	}
}

// peek is the next byte that is no space, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.at == len(s.s) {
		return 0
	}
	return s.s[s.at]
}

func (s *scanner) expect(c byte) error {
	got := s.peek()
	switch {
	case got == c:
		s.at++
		return nil
	case got == 0:
		return fmt.Errorf("the line ends where %q is expected", c)
	}
	return fmt.Errorf("%q is expected at byte %d", c, s.at+1)
}

// object reads an object and calls value for each name, to read what stands after it.
func (s *scanner) object(value func(name string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.peek() == '}' {
		s.at++
		return nil
	}
	for {
		name, err := s.string()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := value(name); err != nil {
			return err
		}
		if s.peek() == '}' {
			s.at++
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// string reads a string; without escapes it is a part of the line.
func (s *scanner) string() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start := s.at
	for ; s.at < len(s.s); s.at++ {
		switch c := s.s[s.at]; {
		case c == '"':
			s.at++
			return s.s[start : s.at-1], nil
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			return "", fmt.Errorf("a control character in a string, at byte %d", s.at+1)
		}
	}
	return "", errors.New("a string has no end")
}

// escaped reads the rest of a string that began at start, from its first backslash on.
func (s *scanner) escaped(start int) (string, error) {
	b := []byte(s.s[start:s.at])
	for s.at < len(s.s) {
		c := s.s[s.at]
		s.at++
		switch {
		case c == '"':
			return string(b), nil
		case c < ' ':
			return "", fmt.Errorf("a control character in a string, at byte %d", s.at)
		case c != '\\':
			b = append(b, c)
		default:
			r, ok := s.escape()
			if !ok {
				return "", fmt.Errorf("a wrong escape in a string, at byte %d", s.at)
			}
			b = utf8.AppendRune(b, r)
		}
	}
	return "", errors.New("a string has no end")
}

// escape reads what follows a backslash. Half a surrogate pair is wrong.
func (s *scanner) escape() (rune, bool) {
	if s.at == len(s.s) {
		return 0, false
	}
	c := s.s[s.at]
	s.at++
	if c != 'u' {
		const from, to = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
		i := strings.IndexByte(from, c)
		if i < 0 {
			return 0, false
		}
		return rune(to[i]), true
	}
	r, ok := s.hex4()
	if !ok || !utf16.IsSurrogate(r) {
		return r, ok
	}
	if !strings.HasPrefix(s.s[s.at:], `\u`) {
		return 0, false
	}
	s.at += 2
	low, ok := s.hex4()
	r = utf16.DecodeRune(r, low)
	return r, ok && r != utf8.RuneError
}

func (s *scanner) hex4() (rune, bool) {
	if len(s.s)-s.at < 4 {
		return 0, false
	}
	var r rune
	for range 4 {
		d := hexDigit(s.s[s.at])
		if d < 0 {
			return 0, false
		}
		r = r<<4 | rune(d)
		s.at++
	}
	return r, true
}

// number returns the text of a number: digits, perhaps with a sign, a fraction or an exponent, which the caller
// judges. As in JSON, none but 0 itself begins with a 0.
func (s *scanner) number() (string, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return "", fmt.Errorf("a number is expected at byte %d", s.at+1)
	}
	start := s.at
	for s.at < len(s.s) && strings.IndexByte("+-.0123456789eE", s.s[s.at]) >= 0 {
		s.at++
	}
	number := s.s[start:s.at]
	if len(number) > 1 && number[0] == '0' && number[1] != '.' {
		return "", fmt.Errorf("%.40s is no number", number)
	}
	return number, nil
}
