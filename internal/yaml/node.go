package yaml

import (
	"fmt"
	"regexp"
)

// Kind is the type of a node; scalars follow the core schema of YAML 1.2.
type Kind uint8

// The kinds of nodes.
const (
	Null Kind = iota
	Bool
	Int
	Float
	String
	Map
	List
)

// String names the kind for messages such as "X expected, Y found".
func (k Kind) String() string {
	return [...]string{"nothing", "true or false", "an integer", "a number with a fraction", "text",
		"a mapping", "a list"}[k]
}

// Bounds of a document.
const (
	MaxDepth = 64        // levels of nested collections
	MaxNodes = 2_000_000 // nodes, with aliases expanded
)

// Pos is a position in the text. Both numbers count from 1, the column in
// characters. The zero Pos means unknown.
type Pos struct{ Line, Column int32 }

// Node is a scalar, a map or a list.
type Node struct {
	Kind Kind
	Flow bool // for writing: on one line
	Pos
	Text string // of a scalar: a String's value; for other kinds the text as written
	// Items holds a List's elements, or a Map's alternating keys and values.
	// Invariant: a Map's has even length, and its keys are scalars.
	Items []*Node
	size  int32 // nodes in this tree, aliases expanded
	bytes int64 // of the scalars' text in this tree, aliases expanded
}

// SyntaxError reports text that is not YAML, or that this package refuses.
type SyntaxError struct {
	Pos
	Message string
}

// Error returns the position and the message.
func (e *SyntaxError) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message) }

// Pairs yields the keys and values of a map.
func (n *Node) Pairs(yield func(key, value *Node) bool) {
	for i := 0; i+1 < len(n.Items); i += 2 {
		if !yield(n.Items[i], n.Items[i+1]) {
			return
		}
	}
}

// Get returns the value of a key of a map, nil if there is none. If the key
// appears twice, it returns the first value.
func (n *Node) Get(key string) *Node {
	for k, v := range n.Pairs {
		if k.Text == key {
			return v
		}
	}
	return nil
}

// plainKind returns the kind of a plain scalar.
func plainKind(s string) Kind {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return Null
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return Bool
	case ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "-.inf", "-.Inf", "-.INF", "+.inf", "+.Inf", "+.INF":
		return Float
	}

	c := s[0]
	switch {
	case c != '-' && c != '+' && c != '.' && (c < '0' || c > '9'):
		return String
	case integer.MatchString(s):
		return Int
	case float.MatchString(s):
		return Float
	}

	return String
}

// Numbers of the core schema.
var (
	integer = regexp.MustCompile(`^([-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+)$`)
	float   = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
)
