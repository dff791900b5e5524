package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// scanner reads the JSON text of one line: objects, strings and numbers, which
// is all that a record has. The text must be valid UTF-8.
type scanner struct {
	text string
	at   int
}

func (s *scanner) skipSpace() {
	for s.at < len(s.text) && isSpace(s.text[s.at]) {
		s.at++
	}
}

// peek returns the next byte that is not a space, or 0 at the end.
func (s *scanner) peek() byte {
	s.skipSpace()
	if s.at == len(s.text) {
		return 0
	}
	return s.text[s.at]
}

func (s *scanner) expect(c byte) error {
	got := s.peek()
	switch {
	case got == c:
		s.at++
		return nil
	case got == 0:
		return fmt.Errorf("expected %q, but the line ends", c)
	}
	return fmt.Errorf("expected %q at byte %d", c, s.at+1)
}

// readObject reads an object. It calls value for each name; value must read the value that follows.
func (s *scanner) readObject(value func(name string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.peek() == '}' {
		s.at++
		return nil
	}

	for {
		name, err := s.readString()
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

// readString reads a string. Without escapes, the result shares the line's memory.
func (s *scanner) readString() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}

	start := s.at
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return s.text[start : s.at-1], nil
		case c == '\\':
			return s.readEscaped(start)
		case c < ' ':
			return "", fmt.Errorf("control character in a string, at byte %d", s.at+1)
		}
	}

	return "", errors.New("unterminated string")
}

// readEscaped reads the rest of a string that began at start, from its first
// backslash on. It rejects half a surrogate pair, which encoding/json would
// read as U+FFFD.
func (s *scanner) readEscaped(start int) (string, error) {
	for ; s.at < len(s.text) && s.text[s.at] != '"'; s.at++ {
		switch c := s.text[s.at]; {
		case c == '\\':
			s.at++
		case c < ' ':
			return "", fmt.Errorf("control character in a string, at byte %d", s.at+1)
		}
	}

	if s.at >= len(s.text) {
		return "", errors.New("unterminated string")
	}

	s.at++
	raw, text := s.text[start-1:s.at], ""
	err := json.Unmarshal([]byte(raw), &text)
	const odd = "\ufffd"
	if err != nil || strings.Count(text, odd) > strings.Count(raw, odd)+strings.Count(strings.ToLower(raw), `\ufffd`) {
		return "", fmt.Errorf("invalid escape in the string at byte %d", start)
	}

	return text, nil
}

// readNumber returns the text of a number: digits, perhaps with sign, fraction
// or exponent. The caller validates it. As in JSON, no integer but 0 begins
// with a 0.
func (s *scanner) readNumber() (string, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return "", fmt.Errorf("expected a number at byte %d", s.at+1)
	}
	start := s.at
	for s.at < len(s.text) && strings.IndexByte("+-.0123456789eE", s.text[s.at]) >= 0 {
		s.at++
	}
	number := s.text[start:s.at]
	if len(number) > 1 && number[0] == '0' && number[1] != '.' {
		return "", fmt.Errorf("%.40s is not a number", number)
	}
	return number, nil
}
