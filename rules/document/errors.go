package document

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/rlnode/rlnode/internal/yaml"
)

const maxNameBytes = 128 // of a rule, limit, unit, tier, attribute, region, profile

// ErrNotFound means that the document has no such part, or the history no such version.
var ErrNotFound = errors.New("no such part of the rules")

// maxErrors bounds the mistakes reported for one document. Further ones are only counted.
const maxErrors = 1000

// Error is a mistake in a document, or a warning.
type Error struct {
	Line    int    `json:"line"`   // from 1; 0 without a position
	Column  int    `json:"column"` // in characters, from 1; 0 without a position
	Path    string `json:"path"`   // such as rules[2].limits[0].per; empty for the document
	Message string `json:"message"`
	// File is the name of the file that Line is in, if the document was joined from
	// several.
	File string `json:"file,omitempty"`
}

// Error returns the position, the path and the message.
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

// Errors are the mistakes in one document, in the order of the text: at most
// 1,000, and one more that counts the rest. It is never empty.
type Errors []Error

// Error returns the mistakes, one per line.
func (list Errors) Error() string {
	lines := make([]string, len(list))
	for i := range list {
		lines[i] = list[i].Error()
	}
	return strings.Join(lines, "\n")
}

// collector gathers mistakes.
type collector struct {
	errs    Errors
	dropped int // beyond maxErrors
}

func (c *collector) add(at yaml.Pos, path, format string, args ...any) {
	if len(c.errs) >= maxErrors {
		c.dropped++
		return
	}
	c.errs = append(c.errs,
		Error{Line: int(at.Line), Column: int(at.Column), Path: path, Message: fmt.Sprintf(format, args...)})
}

// err returns nil, or Errors in the order of the text.
func (c *collector) err() error {
	if len(c.errs) == 0 {
		return nil
	}
	c.sort()
	c.errs = slices.Compact(c.errs) // several rules may report the same mistake in a tier
	if c.dropped > 0 {
		return append(c.errs, Error{Message: fmt.Sprintf("and %d more", c.dropped)})
	}
	return c.errs
}

func (c *collector) sort() {
	slices.SortStableFunc(c.errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// appendKey extends a path by a key. Keys with other than name characters are
// put in brackets and quotes.
func appendKey(path []byte, key string) []byte {
	simple := key != "" && len(key) <= maxNameBytes && strings.IndexFunc(key, func(r rune) bool {
		return r != '_' && r != '-' && r != '/' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) < 0
	switch {
	case !simple:
		if len(key) > maxNameBytes {
			key = strings.ToValidUTF8(key[:maxNameBytes], "") + "…"
		}
		return fmt.Appendf(path, "[%q]", key)
	case len(path) > 0:
		path = append(path, '.')
	}

	return append(path, key...)
}

func keyPath(path, key string) string { return string(appendKey([]byte(path), key)) }

// Shorten cuts s to 64 bytes, so that messages stay readable whatever the document contains.
func Shorten(s string) string {
	if len(s) <= 64 {
		return s
	}
	return strings.ToValidUTF8(s[:64], "") + "…"
}

// suggest returns "; did you mean …?" if s is close to one of words.
func suggest(s string, words []string) string {
	best, distance := "", 3
	if len(s) > maxNameBytes {
		return ""
	}

	for _, w := range words {
		n := editDistance(strings.ToLower(s), w)
		if n < distance && n < len(w) {
			best, distance = w, n
		}
	}

	if best == "" {
		return ""
	}

	return "; did you mean " + best + "?"
}

// editDistance counts the insertions, deletions and replacements between two short words.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1

		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}

	return row[len(b)]
}
