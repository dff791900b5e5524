package document

import (
	"bytes"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// WithChange returns d with one piece changed. In the new document's text only
// this piece is replaced: the order and the comments outside the piece stay,
// but comments right above a removed piece go with it. If the piece has no
// lines of its own, as in a mapping on one line, the whole text is written
// anew. The error is as for [Document.Apply], and also of type [Errors] if the
// new text would exceed [MaxDocument].
func (d *Document) WithChange(c Change) (*Document, error) {
	next, err := d.Apply(c)
	if err != nil || c.Part == WholeDocument {
		return next, err
	}

	// editText guesses where the piece is. Its text counts only if it parses to
	// exactly the changed document.
	edited := d.editText(c, next)
	if edited != "" && len(edited) <= MaxDocument {
		if doc, err := Parse([]byte(edited)); err == nil && bytes.Equal(doc.JSON(), next.JSON()) {
			return doc, nil
		}
	}

	text := next.fittingText()
	if len(text) > MaxDocument {
		return nil, Errors{{Message: "the document would be larger than 8 MiB"}}
	}

	return Parse(text)
}

// editText returns d's text with the change, or "" if it does not know where in
// the text the change belongs. next is the changed document.
func (d *Document) editText(c Change, next *Document) string {
	if d.source == "" || d.asJSON {
		return ""
	}

	root, err := yaml.Parse(d.source)
	if err != nil || root.Kind != yaml.Map {
		return ""
	}

	t := &textEdit{lines: strings.SplitAfter(strings.TrimSuffix(d.source, "\n")+"\n", "\n")}
	t.lines = t.lines[:len(t.lines)-1] // nothing follows the last line break
	t.end = len(t.lines)

	section := "tiers"
	name := c.Name
	piece := next.pieceNode(c)
	switch c.Part {
	case RulePart:
		section = "rules"
	case ListPart:
		section = "lists"
	}

	key, value := t.enter(root, section)
	switch {
	case key == nil && piece == nil:
		return ""
	case key == nil:
		return t.join(t.end, t.end, block(0, section+":")+t.render(c, "  ", piece))
	}

	if value.Kind == yaml.Null || len(value.Items) == 0 || value.Items[0].Pos.Line <= key.Pos.Line {
		return "" // written on one line
	}

	return t.change(c, name, value, piece)
}

// textEdit changes a range of lines in a text.
type textEdit struct {
	lines []string // each with its line break
	end   int      // the line after the last one of the section being changed
}

// enter looks for a section of the root, and returns its key and value, or nil.
// It makes t.end the end of the section.
func (t *textEdit) enter(root *yaml.Node, section string) (key, value *yaml.Node) {
	for k, v := range root.Pairs {
		switch {
		case key != nil:
			t.end = t.before(int(k.Pos.Line)-1, int(key.Pos.Line))
			return key, value
		case k.Text == section:
			key, value = k, v
		}
	}
	return key, value
}

// before goes up from line i over the comments and empty lines right above it,
// and returns the first of these, but no line above least. Such lines belong to
// what follows them.
func (t *textEdit) before(i, least int) int {
	for i > least {
		text := strings.TrimSpace(t.lines[i-1])
		if text != "" && !strings.HasPrefix(text, "#") {
			break
		}
		i--
	}
	return i
}

// change replaces, adds or removes the piece in its section.
func (t *textEdit) change(c Change, name string, section, piece *yaml.Node) string {
	starts := []int{} // the first line of each piece of the section
	at := -1
	if section.Kind == yaml.List {
		for i, item := range section.Items {
			starts = append(starts, int(item.Pos.Line)-1)
			if n := item.Get("name"); n != nil && n.Text == name {
				at = i
			}
		}
	} else {
		i := 0
		for k := range section.Pairs {
			starts = append(starts, int(k.Pos.Line)-1)
			if k.Text == name {
				at = i
			}
			i++
		}
	}

	first := t.lines[starts[0]]
	indent := first[:len(first)-len(strings.TrimLeft(first, " "))]
	if at < 0 {
		end := t.before(t.end, starts[len(starts)-1]+1)
		return t.join(end, end, t.render(c, indent, piece))
	}

	end := t.end
	if at+1 < len(starts) {
		end = starts[at+1]
	}

	end = t.before(end, starts[at]+1)
	if piece != nil {
		return t.join(starts[at], end, t.render(c, indent, piece))
	}

	if len(starts) == 1 {
		return "" // nothing is left of the section, so its key must go, too
	}

	return t.join(t.before(starts[at], 0), end, "")
}

// join returns the text with lines from to end replaced.
func (t *textEdit) join(from, end int, by string) string {
	return strings.Join(t.lines[:from], "") + by + strings.Join(t.lines[end:], "")
}

// render writes a piece as lines, indented.
func (t *textEdit) render(c Change, indent string, piece *yaml.Node) string {
	n := yaml.NewList(piece)
	if c.Part != RulePart {
		n = yaml.NewMap()
		n.Set(c.Name, piece)
	}
	return block(len(indent), strings.TrimSuffix(string(n.AppendYAML(nil)), "\n"))
}

// block indents the lines of text by n blanks.
func block(n int, text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Repeat(" ", n))
		b.WriteString(strings.TrimSuffix(line, "\n"))
		b.WriteByte('\n')
	}
	return b.String()
}
