package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// ErrNotFound is what [Document.Apply] and [Document.Piece] return for a piece that is not there.
var ErrNotFound = errors.New("no such piece of the rules")

// ErrConflict is what [History.Write] returns when the version in force is not the one that a write was made for.
var ErrConflict = errors.New("rules have changed meanwhile")

// maxErrors bounds how many mistakes of one document are told; of the others only the number.
const maxErrors = 1000

// Error is a mistake in a document, or something that is worth a warning.
type Error struct {
	Line    int    `json:"line"`   // from 1; 0 where there is no text to point at
	Column  int    `json:"column"` // in characters, from 1; 0 likewise
	Path    string `json:"path"`   // such as rules[2].limits[0].per; empty: the document
	Message string `json:"message"`
}

// Error gives place, path and message.
func (e Error) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "%d:%d: ", e.Line, e.Column)
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// Errors are all mistakes of one document, in the order of the text, at most 1,000 and one that counts the rest.
// It is never empty.
type Errors []Error

// Error gives one mistake a line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// collector gathers mistakes.
type collector struct {
	errs Errors
	more int // beyond maxErrors
}

func (c *collector) add(at yaml.Pos, path, format string, args ...any) {
	if len(c.errs) >= maxErrors {
		c.more++
		return
	}
	c.errs = append(c.errs, Error{Line: int(at.Line), Column: int(at.Column), Path: path, Message: fmt.Sprintf(format, args...)})
}

// err is nil, or Errors in the order of the text.
func (c *collector) err() error {
	if len(c.errs) == 0 {
		return nil
	}
	c.sort()
	c.errs = slices.Compact(c.errs) // a tier may be wrong for several rules
	if c.more > 0 {
		return append(c.errs, Error{Message: fmt.Sprintf("and %d more", c.more)})
	}
	return c.errs
}

func (c *collector) sort() {
	slices.SortStableFunc(c.errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
