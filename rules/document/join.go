package document

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/internal/yaml"
)

// File is a part of a document.
type File struct {
	Name string // for messages
	Text []byte
}

// Join reads one document from several files: lists are joined, and no name may
// stand in two of them. The error is of type [Errors], whose positions are in
// Error.File.
func Join(files []File) (*Document, error) {
	j := &joiner{whole: yaml.NewMap()}
	j.whole.Pos = yaml.Pos{Line: 1, Column: 1}
	for _, f := range files {
		j.read(f)
	}

	if len(j.errs) > 0 {
		return nil, j.inFiles(j.errs)
	}

	d := &decoder{}
	doc := &Document{positions: positions{}}
	documentFields.read(d, j.whole, doc, doc.positions)
	validate(doc, &d.collector)
	if err := d.err(); err != nil {
		return nil, j.inFiles(err.(Errors))
	}

	// The document's own text differs from that of the files. So it is parsed
	// again for its positions.
	text, err := doc.Text()
	if err != nil {
		return nil, err
	}
	return Parse([]byte(text))
}

// joiner is a Join in progress. Line numbers continue from file to file, so
// that a position also tells the file.
type joiner struct {
	whole *yaml.Node
	files []joinedFile
	errs  Errors
}

type joinedFile struct {
	name   string
	before int // lines of the files before it
	lines  int
}

// read adds a file.
func (j *joiner) read(f File) {
	file := joinedFile{name: f.Name, lines: bytes.Count(f.Text, []byte("\n")) + 2}
	if n := len(j.files); n > 0 {
		file.before = j.files[n-1].before + j.files[n-1].lines
	}
	j.files = append(j.files, file)

	root, err := parseText(f.Text)
	if mistakes, ok := errors.AsType[Errors](err); ok {
		for _, m := range mistakes {
			if m.Line > 0 {
				m.Line += file.before
			} else {
				m.Line = file.before + 1
			}
			j.errs = append(j.errs, m)
		}
		return
	}

	if err != nil || root.Kind != yaml.Map {
		j.errs = append(j.errs,
			Error{Line: file.before + 1, Column: 1,
				Message: "a part of a document must be a mapping, such as rules: […]; this file has none"})
		return
	}

	shift(root, int32(file.before), map[*yaml.Node]bool{})
	j.join(j.whole, root, "")
}

// shift adds to the lines of all positions in n. Aliases share nodes.
func shift(n *yaml.Node, by int32, done map[*yaml.Node]bool) {
	if done[n] {
		return
	}
	done[n] = true
	n.Line += by
	for _, item := range n.Items {
		shift(item, by, done)
	}
}

// join adds the keys of a mapping at path to those of another.
func (j *joiner) join(into, from *yaml.Node, path string) {
	for key, value := range from.Pairs {
		at := -1
		for i := 0; i < len(into.Items); i += 2 {
			if into.Items[i].Text == key.Text {
				at = i
			}
		}

		if at < 0 {
			into.Items = append(into.Items, key, copyOf(value))
			continue
		}

		j.joinValue(into.Items[at], into.Items[at+1], key, value, string(appendKey([]byte(path), key.Text)))
	}
}

// copyOf returns a copy of n to which items can be added.
func copyOf(n *yaml.Node) *yaml.Node {
	c := *n
	c.Items = slices.Clone(n.Items)
	if n.Kind == yaml.Map {
		for i := 1; i < len(c.Items); i += 2 {
			c.Items[i] = copyOf(c.Items[i])
		}
	}
	return &c
}

// joinValue adds a value to that of the same key in an earlier file.
func (j *joiner) joinValue(oldKey, old, key, value *yaml.Node, path string) {
	switch {
	case path == "version" && old.Text == value.Text:
	case (path == "rules" || path == "envoy") && old.Kind == yaml.List && value.Kind == yaml.List:
		j.joinNamed(old, value, map[string]string{"rules": "name", "envoy": "domain"}[path])
	case (path == "lists.deny" || path == "lists.allow") && old.Kind == yaml.List && value.Kind == yaml.List:
		old.Items = append(old.Items, value.Items...)
	case (path == "lists" || path == "tiers" || path == "subjects" || path == "profiles" || isSubjectGroup(path)) &&
		old.Kind == yaml.Map && value.Kind == yaml.Map:
		j.join(old, value, path)
	default:
		j.twice(path, oldKey, key)
	}
}

// isSubjectGroup reports whether a path is that of an attribute under `subjects`.
func isSubjectGroup(path string) bool {
	const section = "subjects"
	rest, ok := bytes.CutPrefix([]byte(path), []byte(section))
	return ok && len(rest) > 0 && !bytes.Contains(rest[1:], []byte(".")) && !bytes.Contains(rest[1:], []byte("["))
}

// joinNamed appends mappings to a list. name is the key whose values must
// differ.
func (j *joiner) joinNamed(old, value *yaml.Node, name string) {
	known := map[string]*yaml.Node{}
	for _, item := range old.Items {
		if n := item.Get(name); n != nil {
			known[n.Text] = n
		}
	}

	for _, item := range value.Items {
		if n := item.Get(name); n != nil && known[n.Text] != nil {
			j.twice(map[string]string{"name": "rule ", "domain": "domain "}[name]+fmt.Sprintf("%q",
				Shorten(n.Text)), known[n.Text], n)
			continue
		}
		old.Items = append(old.Items, item)
	}
}

// twice reports that two files have the same key or name.
func (j *joiner) twice(what string, first, second *yaml.Node) {
	a, lineA := j.place(int(first.Line))
	b, lineB := j.place(int(second.Line))
	j.errs = append(j.errs, Error{
		Line: int(second.Line), Column: int(second.Column),
		Message: fmt.Sprintf("%s is in %s:%d and in %s:%d", what, a, lineA, b, lineB),
	})
}

// place returns the file that a line is in, and the line's number in that file.
func (j *joiner) place(line int) (name string, _ int) {
	for i := len(j.files) - 1; i >= 0; i-- {
		f := &j.files[i]
		if line > f.before {
			return f.name, line - f.before
		}
	}
	return "", line
}

// inFiles gives mistakes their positions in the files.
func (j *joiner) inFiles(list Errors) Errors {
	out := slices.Clone(list)
	for i := range out {
		if out[i].Line > 0 {
			out[i].File, out[i].Line = j.place(out[i].Line)
		}
	}
	return out
}
