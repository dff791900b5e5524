package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// scanner reads the JSON text of one line: objects, strings and numbers, all that a record consists of. The text is
// valid UTF-8.
type scanner struct {
	s  string
	at int
}

func (s *scanner) space() {
	for s.at < len(s.s) && isSpace(s.s[s.at]) {
		s.at++
	}
}

// peek returns the next byte that is not a space; 0 at the end.
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

// object reads an object. It calls value for each name, to read what follows it.
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

// string reads a string. Without escapes, the result is a part of the line.
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

// escaped reads the rest of a string that began at start, from its first backslash on. It refuses half a surrogate
// pair, which the library would read as U+FFFD.
func (s *scanner) escaped(start int) (string, error) {
	for ; s.at < len(s.s) && s.s[s.at] != '"'; s.at++ {
		switch c := s.s[s.at]; {
		case c == '\\':
			s.at++
		case c < ' ':
			return "", fmt.Errorf("a control character in a string, at byte %d", s.at+1)
		}
	}
	if s.at >= len(s.s) {
		return "", errors.New("a string has no end")
	}
	s.at++
	raw, text := s.s[start-1:s.at], ""
	err := json.Unmarshal([]byte(raw), &text)
	const odd = "\ufffd"
	if err != nil || strings.Count(text, odd) > strings.Count(raw, odd)+strings.Count(strings.ToLower(raw), `\ufffd`) {
		return "", fmt.Errorf("a wrong escape in the string at byte %d", start)
	}
	return text, nil
}

// number returns the text of a number: digits, with an optional sign, fraction or exponent, which the caller validates.
// As in JSON, only 0 itself begins with a 0.
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
