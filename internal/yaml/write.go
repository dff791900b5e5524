package yaml

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// Text returns a String.
func Text(s string) *Node { return &Node{Kind: String, Text: s} }

// Scalar returns a scalar of another kind, with the text to write.
func Scalar(kind Kind, text string) *Node { return &Node{Kind: kind, Text: text} }

// NewMap returns an empty map.
func NewMap() *Node { return &Node{Kind: Map} }

// NewList returns a list of items.
func NewList(items ...*Node) *Node { return &Node{Kind: List, Items: items} }

// OnOneLine sets that n is written in brackets, on one line.
func (n *Node) OnOneLine() *Node {
	n.Flow = true
	return n
}

// Set appends a pair to a map unless the value is nil.
func (n *Node) Set(key string, value *Node) {
	if value != nil {
		n.Items = append(n.Items, Text(key), value)
	}
}

// AppendJSON appends n as JSON. The only scalars other than text that it can
// write are null, booleans and plain numbers.
func (n *Node) AppendJSON(b []byte) []byte { return n.appendLine(b, ",", ":", appendQuoted) }

// AppendYAML appends n as a document.
func (n *Node) AppendYAML(b []byte) []byte {
	if n.isInline() {
		return append(n.appendFlow(b), '\n')
	}
	return n.appendBlock(b, 0)
}

func (n *Node) isInline() bool {
	return n.Flow || n.Kind != Map && n.Kind != List || len(n.Items) == 0
}

// appendBlock appends a collection in lines indented by indent; the first line is already indented.
func (n *Node) appendBlock(b []byte, indent int) []byte {
	step := 1
	if n.Kind == Map {
		step = 2
	}

	for i := 0; i+step-1 < len(n.Items); i += step {
		if i > 0 {
			b = appendIndent(b, indent)
		}

		value := n.Items[i+step-1]
		if n.Kind == List {
			b = append(b, "- "...)
			if value.isInline() {
				b = append(value.appendFlow(b), '\n')
			} else {
				b = value.appendBlock(b, indent+2)
			}
			continue
		}

		b = append(appendText(b, n.Items[i].Text), ':')
		if value.isInline() {
			b = append(value.appendFlow(append(b, ' ')), '\n')
		} else {
			b = append(b, '\n')
			b = value.appendBlock(appendIndent(b, indent+2), indent+2)
		}
	}

	return b
}

func appendIndent(b []byte, n int) []byte { return append(b, bytes.Repeat([]byte{' '}, n)...) }

func (n *Node) appendFlow(b []byte) []byte { return n.appendLine(b, ", ", ": ", appendText) }

// appendLine appends n on one line, with collections in brackets.
func (n *Node) appendLine(b []byte, comma, colon string, text func(b []byte, s string) []byte) []byte {
	brackets, step := "[]", 1
	switch n.Kind {
	case String:
		return text(b, n.Text)
	case List:
	case Map:
		brackets, step = "{}", 2
	default:
		return append(b, n.Text...)
	}

	b = append(b, brackets[0])
	for i := 0; i+step-1 < len(n.Items); i += step {
		if i > 0 {
			b = append(b, comma...)
		}
		if n.Kind == Map {
			b = append(text(b, n.Items[i].Text), colon...)
		}
		b = n.Items[i+step-1].appendLine(b, comma, colon, text)
	}

	return append(b, brackets[1])
}

// appendText appends s plain if every YAML parser reads it as the same text, else in double quotes.
func appendText(b []byte, s string) []byte {
	if plainSafe(s) {
		return append(b, s...)
	}
	return appendQuoted(b, s)
}

// plainSafe reports whether s needs no quotes. It is stricter than necessary,
// and excludes the booleans and numbers of YAML 1.1.
func plainSafe(s string) bool {
	if s == "" || len(s) > 200 || plainKind(s) != String {
		return false
	}

	switch s {
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false
	}

	plain, number := s[0] == '/' || s[0] == '_' || isAlphanumeric(s[0]), true
	for i := 0; plain && i < len(s); i++ {
		plain = isAlphanumeric(s[i]) || strings.IndexByte("/_-.*+@", s[i]) >= 0
		number = number && (s[i] == '_' || '0' <= s[i] && s[i] <= '9')
	}

	return plain && !number
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// appendQuoted appends s in double quotes, with escapes that YAML and JSON share.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff ||
			r == 0xfffe || r == 0xffff:
			b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}

	return append(b, '"')
}
