package document

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/rlnode/rlnode/internal/yaml"
)

const maxZones = 1000 // different names of time zones; about 600 exist

// decoder turns nodes into the parts of a Document. It continues after a
// mistake, so that all are reported at once, and returns a zero value for a
// faulty node.
type decoder struct {
	collector
	shapes   *shapes                   // not nil: read no values, but note which would be accepted; see Schema
	path     []byte                    // of the current node
	days     bool                      // some duration was written in days
	loose    collector                 // values that are written as neither text nor plain integers
	declared map[string]*AttributeSpec // the attributes that the document declares; nil if it declares none
	zones    map[string]bool           // time zones looked up so far, at most maxZones, and whether each exists

	envoyNodes, envoyLevel int // number of Envoy descriptors so far, and the level of the current ones
}

// positions records the positions of keys in the text.
type positions map[string]yaml.Pos

func (dec *decoder) fail(n *yaml.Node, format string, args ...any) {
	if dec.shapes != nil {
		dec.shapes.refuse(n)
		return
	}
	dec.add(n.Pos, string(dec.path), format, args...)
}

// failAt reports a mistake in the value of a key of n.
func (dec *decoder) failAt(n *yaml.Node, key, format string, args ...any) {
	mark := dec.push(key)
	dec.fail(n.Get(key), format, args...)
	dec.path = dec.path[:mark]
}

// push extends the path by a key. The caller cuts it back to the returned length.
func (dec *decoder) push(key string) int {
	n := len(dec.path)
	dec.path = appendKey(dec.path, key)
	return n
}

func (dec *decoder) pushIndex(i int) int {
	n := len(dec.path)
	dec.path = fmt.Appendf(dec.path, "[%d]", i)
	return n
}

// eachField calls field for each key of a mapping, with the key's index in
// keys, which lists the allowed ones.
func (dec *decoder) eachField(n *yaml.Node, keys []string, field func(i int, key, value *yaml.Node)) bool {
	if dec.shapes != nil {
		return dec.shapes.describeFields(n, keys, field)
	}
	if !dec.expectKind(n, yaml.Map) {
		return false
	}

	var seen uint32 // bit set, by index in keys
	for key, value := range n.Pairs {
		i := slices.Index(keys, key.Text)
		mark := dec.push(key.Text)

		switch {
		case i < 0:
			dec.fail(key, "unknown key%s", suggest(key.Text, keys))
		case seen&(1<<i) != 0:
			dec.fail(key, "duplicate key")
		default:
			seen |= 1 << i
			field(i, key, value)
		}

		dec.path = dec.path[:mark]
	}

	return true
}

// eachEntry calls entry for each key of a mapping whose keys the user chooses.
func (dec *decoder) eachEntry(n *yaml.Node, entry func(key, value *yaml.Node)) bool {
	if dec.shapes != nil {
		return dec.shapes.describeEntries(n, entry)
	}
	if !dec.expectKind(n, yaml.Map) {
		return false
	}

	seen := make(map[string]struct{}, len(n.Items)/2)
	for key, value := range n.Pairs {
		mark := dec.push(key.Text)
		if _, twice := seen[key.Text]; twice {
			dec.fail(key, "duplicate key")
		} else {
			seen[key.Text] = struct{}{}
			entry(key, value)
		}
		dec.path = dec.path[:mark]
	}

	return true
}

// eachItem calls item for each item of a list.
func (dec *decoder) eachItem(n *yaml.Node, item func(n *yaml.Node)) bool {
	if dec.shapes != nil {
		return dec.shapes.describeItems(n, item)
	}
	if !dec.expectKind(n, yaml.List) {
		return false
	}
	for i, it := range n.Items {
		mark := dec.pushIndex(i)
		item(it)
		dec.path = dec.path[:mark]
	}
	return true
}

func (dec *decoder) expectKind(n *yaml.Node, want yaml.Kind) bool {
	if dec.shapes != nil {
		return dec.shapes.acceptKind(n, want, nil)
	}
	if n.Kind != want {
		dec.fail(n, "expected %s, not %s", want, n.Kind)
	}
	return n.Kind == want
}

// text reads any scalar as written, because a tenant may be called 123.
func (dec *decoder) text(n *yaml.Node) (string, bool) {
	if dec.shapes != nil {
		return dec.shapes.describeText(n)
	}
	switch n.Kind {
	case yaml.Null, yaml.Map, yaml.List:
		dec.fail(n, "expected text, not %s", n.Kind)
		return "", false
	}
	return n.Text, true
}

// name reads a name.
func (dec *decoder) name(n *yaml.Node) string {
	s, ok := dec.text(n)
	if !ok {
		return ""
	}
	return dec.checkName(n, s)
}

func (dec *decoder) checkName(n *yaml.Node, s string) string {
	switch {
	case s == "":
		dec.fail(n, "a name can't be empty")
	case len(s) > maxNameBytes:
		dec.fail(n, "a name can't be longer than %d bytes", maxNameBytes)
	case strings.IndexFunc(s, unicode.IsControl) >= 0:
		dec.fail(n, "a name can't contain control characters")
	default:
		return s
	}
	return ""
}

// value reads an attribute's value. A value that is written as something that
// no check could send, such as true or 7.0, counts as its text, and is noted in
// loose: see typed.
func (dec *decoder) value(n *yaml.Node) (string, bool) {
	s, ok := dec.text(n)
	if ok && len(s) > MaxValueBytes {
		dec.fail(n, "a value can't be longer than %d bytes", MaxValueBytes)
		return "", false
	}

	if ok && dec.shapes == nil && n.Kind != yaml.String && !isPlainInteger(n) {
		dec.loose.add(n.Pos, string(dec.path),
			"%s is neither text nor an integer in plain digits; for the text, write %q", Shorten(s),
			Shorten(s))
	}
	return s, ok
}

// isPlainInteger reports whether n is an integer in plain decimal digits.
// Neither -0 nor an integer with leading zeros is one.
func isPlainInteger(n *yaml.Node) bool {
	digits := strings.TrimPrefix(n.Text, "-")
	isPadded := len(digits) > 1 && digits[0] == '0'
	return n.Kind == yaml.Int && strings.Trim(digits, "0123456789") == "" && !isPadded && n.Text != "-0"
}

// integer reads plain decimal digits.
func (dec *decoder) integer(n *yaml.Node, low, high int64) int64 {
	if dec.shapes != nil {
		dec.shapes.describeNumber(n, yaml.Int, integer(low), integer(high))
		return 0
	}
	if n.Kind != yaml.Int {
		dec.fail(n, "expected an integer, not %s", n.Kind)
		return 0
	}
	if !isPlainInteger(n) {
		dec.fail(n, "expected an integer in plain decimal digits")
		return 0
	}

	v, err := strconv.ParseInt(n.Text, 10, 64)
	if err != nil || v < low || v > high {
		dec.fail(n, "%s is not in %d…%d", Shorten(n.Text), low, high)
		return 0
	}

	return v
}

// fraction reads a number in low…high.
func (dec *decoder) fraction(n *yaml.Node, low, high float64) float64 {
	if dec.shapes != nil {
		dec.shapes.describeNumber(n, yaml.Float, fraction(low), fraction(high))
		return 0
	}
	if n.Kind != yaml.Int && n.Kind != yaml.Float {
		dec.fail(n, "expected a number, not %s", n.Kind)
		return 0
	}

	v, err := strconv.ParseFloat(n.Text, 64)
	if err != nil || math.IsNaN(v) || v < low || v > high {
		dec.fail(n, "%s is not in %v…%v", Shorten(n.Text), low, high)
		return 0
	}

	return v
}

func (dec *decoder) boolean(n *yaml.Node) bool {
	return dec.expectKind(n, yaml.Bool) && (n.Text[0] == 't' || n.Text[0] == 'T')
}

// word reads one of the given words.
func (dec *decoder) word(n *yaml.Node, words ...string) string {
	if dec.shapes != nil {
		dec.shapes.describeWords(n, words)
		return ""
	}
	if slices.Contains(words, n.Text) && n.Kind == yaml.String {
		return n.Text
	}
	if s, ok := dec.text(n); ok {
		dec.fail(n, "%q is not one of %s%s", Shorten(s), strings.Join(words, ", "), suggest(s, words))
	}
	return ""
}

// span reads a duration in low…high.
func (dec *decoder) span(n *yaml.Node, low, high time.Duration) Span {
	if dec.shapes != nil {
		dec.shapes.acceptKind(n, yaml.String,
			object("type", yaml.Text("string"), "pattern", yaml.Text(durationPattern)))
		return Span{}
	}
	if n.Kind == yaml.Int || n.Kind == yaml.Float {
		dec.fail(n, "a duration needs a unit, as in %ss", Shorten(n.Text))
		return Span{}
	}

	s, ok := dec.text(n)
	if !ok {
		return Span{}
	}

	dec.days = dec.days || strings.Contains(s, "d")
	v, err := ParseDuration(s)
	switch {
	case errors.Is(err, errDuration):
		dec.fail(n, "%q is not a duration such as 500ms, 15m, 24h or 7d", Shorten(s))
	case err != nil || v < low || v > high: // any other error is that it is too long
		dec.fail(n, "%s is not in %s…%s", Shorten(s), FormatDuration(low), FormatDuration(high))
	default:
		return Span{s, v}
	}

	return Span{}
}

// need returns false if n lacks a key, and reports message as the mistake.
func (dec *decoder) need(n *yaml.Node, key, message string) bool {
	if dec.shapes != nil {
		if f := dec.shapes.byNode[n]; f != nil && !slices.Contains(f.required, key) {
			f.required = append(f.required, key)
		}
		return true
	}
	if n.Get(key) == nil {
		dec.fail(n, "%s", message)
		return false
	}
	return true
}

// needEither notes that n needs all keys of one of these lists. It has no
// effect while a document is read.
func (dec *decoder) needEither(n *yaml.Node, lists ...[]string) {
	if dec.shapes == nil {
		return
	}
	if f := dec.shapes.byNode[n]; f != nil {
		f.either = lists
	}
}

// alsoWords notes words that n may be besides what a primitive accepts. It has
// no effect while a document is read.
func (dec *decoder) alsoWords(n *yaml.Node, words ...string) {
	if dec.shapes != nil && n.Kind == yaml.String {
		dec.shapes.accept(n, object("enum", textsNode(words)))
	}
}

// isAny notes that n may be any mapping. It returns true if it has: then a
// schema is being made, and the caller must not read n.
func (dec *decoder) isAny(n *yaml.Node) bool {
	return dec.shapes != nil && dec.shapes.acceptKind(n, yaml.Map, object("type", yaml.Text("object")))
}
