package apitest

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// Item is a member of a List of structured fields (RFC 9651) whose value is a String.
type Item struct {
	Value  string
	Params map[string]any // int64, string or []byte
}

// ParseItems parses a List of Items as strictly as RFC 9651 requires senders to
// write them. It knows the types that draft-ietf-httpapi-ratelimit-headers
// uses: Strings, Integers and Byte Sequences.
func ParseItems(text string) (items []Item, err error) {
	p := &fieldParser{rest: text}
	for p.err == nil {
		item := Item{Params: map[string]any{}}
		item.Value, _ = p.bare().(string)
		if p.err == nil && item.Value == "" {
			p.fail("a String that is not empty")
		}

		for p.err == nil && p.accept(";") {
			key := p.key()
			if _, twice := item.Params[key]; twice {
				p.fail("a key other than %s", key)
			}
			if !p.accept("=") {
				p.fail("=")
			}
			item.Params[key] = p.bare()
		}

		items = append(items, item)
		if p.rest == "" {
			break
		}

		if !p.accept(", ") {
			p.fail("a comma and a blank")
		}
	}

	return items, p.err
}

type fieldParser struct {
	rest string
	err  error
}

func (p *fieldParser) fail(want string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("at %q: want %s", p.rest, fmt.Sprintf(want, args...))
	}
}

func (p *fieldParser) accept(text string) (ok bool) {
	p.rest, ok = strings.CutPrefix(p.rest, text)
	return ok
}

// span consumes and returns the leading bytes that are in set.
func (p *fieldParser) span(set string) string {
	n := len(p.rest) - len(strings.TrimLeft(p.rest, set))
	text := p.rest[:n]
	p.rest = p.rest[n:]
	return text
}

func (p *fieldParser) key() string {
	const first = "abcdefghijklmnopqrstuvwxyz*"
	if p.rest == "" || !strings.ContainsRune(first, rune(p.rest[0])) {
		p.fail("a key")
	}
	return p.span(first + "0123456789_-.")
}

func (p *fieldParser) bare() any {
	switch {
	case p.accept(`"`):
		return p.text()
	case p.accept(":"):
		encoded, rest, ok := strings.Cut(p.rest, ":")
		b, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil {
			p.fail("a Byte Sequence")
		}
		p.rest = rest
		return b
	}

	sign := ""
	if p.accept("-") {
		sign = "-"
	}

	digits := p.span("0123456789")
	n, err := strconv.ParseInt(sign+digits, 10, 64)
	if err != nil || len(digits) > 15 || strings.HasPrefix(p.rest, ".") {
		p.fail("an Integer of at most 15 digits")
	}

	return n
}

// text reads a String after its opening quote.
func (p *fieldParser) text() string {
	var b strings.Builder
	for i := 0; i < len(p.rest); i++ {
		c := p.rest[i]
		switch {
		case c == '"':
			p.rest = p.rest[i+1:]
			return b.String()
		case c == '\\' && i+1 < len(p.rest) && (p.rest[i+1] == '"' || p.rest[i+1] == '\\'):
			i++
			c = p.rest[i]
		case c == '\\' || c < ' ' || c > '~':
			p.fail("printable ASCII, with \\ only before \\ and a quote")
			return ""
		}

		b.WriteByte(c)
	}

	p.fail("the end of a String")
	return ""
}
