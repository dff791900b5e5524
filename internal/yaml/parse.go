package yaml

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Bounds far above what rules need. They protect against short but expensive texts.
const (
	// maxItems bounds the characters that begin or end an item: commas, opening
	// brackets, line ends. The library takes seconds and gigabytes for millions of
	// empty values, and would finish parsing before this package could count them.
	maxItems = 1_000_000
	// maxBytes bounds the text of all scalars, with aliases expanded.
	maxBytes = 16 << 20
)

// Parse parses the single document in src. The error is a *SyntaxError. If src
// has no content, Parse returns a Null node.
func Parse(src string) (*Node, error) {
	if err := checkCharacters(src); err != nil {
		return nil, err
	}
	if strings.Count(src, ",")+strings.Count(src, "[")+strings.Count(src, "{")+strings.Count(src, "\n") > maxItems {
		return nil, &SyntaxError{Pos{1, 1}, fmt.Sprintf("more than %d commas, brackets and lines", maxItems)}
	}

	loader, err := yaml.NewLoader(strings.NewReader(src), yaml.WithV4Defaults())
	if err != nil {
		return nil, fmt.Errorf("begin to read: %w", err)
	}

	var document, second yaml.Node
	if err := load(loader, &document); err != nil {
		if errors.Is(err, io.EOF) {
			return &Node{Kind: Null, Pos: Pos{1, 1}, size: 1}, nil
		}
		return nil, clampPosition(src, err)
	}

	if err := load(loader, &second); err == nil {
		return nil, &SyntaxError{positionOf(&second), "only one document is expected"}
	} else if !errors.Is(err, io.EOF) {
		return nil, clampPosition(src, err)
	}

	c := converter{done: make(map[*yaml.Node]*Node)}
	return c.node(&document, 0)
}

// load reads the next document. Any error but io.EOF is a *SyntaxError, even
// after a panic of the library: rules come over the network, and no text may
// crash a node.
func load(loader *yaml.Loader, into *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &SyntaxError{Pos{1, 1}, fmt.Sprintf("the text can't be read as YAML: %v", r)}
		}
	}()

	err = loader.Load(into)
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}

	le, ok := errors.AsType[*yaml.LoadError](err)
	switch {
	case !ok:
		return &SyntaxError{Pos{1, 1}, err.Error()}
	case le.Mark.Line > 0:
		return &SyntaxError{Pos{int32(le.Mark.Line), int32(le.Mark.Column)}, le.Message}
	}

	return &SyntaxError{Pos{1, 1}, le.Message}
}

// clampPosition moves an error that is reported past the end of the text to its
// end: the library reports a missing token there.
func clampPosition(src string, err error) error {
	lines := strings.Split(strings.TrimRight(src, "\n"), "\n")
	if e, ok := errors.AsType[*SyntaxError](err); ok && int(e.Line) > len(lines) {
		last := lines[len(lines)-1]
		e.Pos = Pos{int32(len(lines)), int32(utf8.RuneCountInString(last)) + 1}
	}
	return err
}

// checkCharacters refuses invalid UTF-8 and control characters, whose position
// the library does not report.
func checkCharacters(src string) error {
	line, start := int32(1), 0
	for i := 0; i < len(src); {
		r, size := utf8.DecodeRuneInString(src[i:])
		message := ""
		switch {
		case r == '\n':
			line, start = line+1, i+1
		case r == utf8.RuneError && size == 1:
			message = "the text is not valid UTF-8"
		case r < ' ' && r != '\t' && r != '\r' || r == 0x7f:
			message = "control characters must be written as escapes in double quotes"
		}

		if message != "" {
			return &SyntaxError{Pos{line, int32(utf8.RuneCountInString(src[start:i])) + 1}, message}
		}

		i += size
	}

	return nil
}

// converter converts the library's nodes to ours. An alias shares its anchor's
// node, so that a small text makes a small tree; its size counts each time.
type converter struct {
	done  map[*yaml.Node]*Node // nodes with an anchor; nil while they are being converted
	nodes int
}

func positionOf(n *yaml.Node) Pos {
	for n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	return Pos{int32(max(1, n.Line)), int32(max(1, n.Column))}
}

func (c *converter) node(n *yaml.Node, depth int) (*Node, error) {
	fail := func(format string, args ...any) (*Node, error) {
		return nil, &SyntaxError{positionOf(n), fmt.Sprintf(format, args...)}
	}
	if depth > MaxDepth {
		return fail("more than %d levels of nesting", MaxDepth)
	}

	switch n.Kind {
	case yaml.DocumentNode:
		if len(n.Content) == 0 {
			return &Node{Kind: Null, Pos: positionOf(n), size: 1}, nil
		}
		return c.node(n.Content[0], depth)
	case yaml.AliasNode:
		return c.alias(n, depth)
	}

	out := &Node{Pos: positionOf(n), size: 1}
	if n.Anchor != "" {
		c.done[n] = nil
		defer func() { c.done[n] = out }()
	}

	c.nodes++
	if c.nodes > MaxNodes {
		return fail("more than %d values", MaxNodes)
	}

	switch n.Kind {
	case yaml.ScalarNode:
		return c.scalar(n, out)
	case yaml.MappingNode:
		out.Kind = Map
	case yaml.SequenceNode:
		out.Kind = List
	default:
		return fail("a value is expected")
	}

	if n.Style&yaml.TaggedStyle != 0 && n.ShortTag() != "!!map" && n.ShortTag() != "!!seq" {
		return fail("the tag %s is not supported", n.Tag)
	}

	out.Items = make([]*Node, 0, len(n.Content))
	return out, c.items(n, out, depth)
}

func (c *converter) items(n *yaml.Node, out *Node, depth int) error {
	for i, item := range n.Content {
		if out.Kind == Map && i%2 == 0 && item.Kind != yaml.ScalarNode {
			return &SyntaxError{positionOf(item), "a key must be plain text"}
		}
		if out.Kind == Map && i%2 == 0 && item.Value == "<<" && item.ShortTag() == "!!merge" {
			return &SyntaxError{positionOf(item), "merge keys are not supported"}
		}

		child, err := c.node(item, depth+1)
		if err != nil {
			return err
		}

		if item.Anchor == "" {
			n.Content[i] = nil // the library's tree is three times as large as ours: let it go as ours grows
		}

		out.Items = append(out.Items, child)
		out.size += child.size
		if out.size > MaxNodes {
			return &SyntaxError{positionOf(item),
				fmt.Sprintf("more than %d values, aliases counted each time", MaxNodes)}
		}
		out.bytes += child.bytes
		if out.bytes > maxBytes {
			return &SyntaxError{positionOf(item),
				fmt.Sprintf("more than %d bytes, aliases counted each time", maxBytes)}
		}
	}

	return nil
}

func (c *converter) alias(n *yaml.Node, depth int) (*Node, error) {
	target, begun := c.done[n.Alias]
	switch {
	case target != nil:
		shared := *target
		shared.Pos = positionOf(n)
		return &shared, nil
	case begun:
		return nil, &SyntaxError{positionOf(n), fmt.Sprintf("the alias *%s stands inside what it stands for", n.Value)}
	}
	return c.node(n.Alias, depth)
}

func (c *converter) scalar(n *yaml.Node, out *Node) (*Node, error) {
	out.Text = n.Value
	out.bytes = int64(len(n.Value))
	tagged := n.Style&yaml.TaggedStyle != 0
	switch {
	case tagged && n.ShortTag() == "!!str":
		out.Kind = String
	case tagged:
		return nil, &SyntaxError{positionOf(n), fmt.Sprintf("the tag %s is not supported", n.Tag)}
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		out.Kind = String
	default:
		out.Kind = plainKind(n.Value)
	}

	return out, nil
}
