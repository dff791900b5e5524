package document

import (
	"encoding/json"
	"net/textproto"
	"slices"
	"strings"
	"unicode"

	"github.com/rlnode/rlnode/internal/yaml"
)

// Bounds of a rule's refusal.
const (
	maxRefusalText    = 1024 // bytes of a text, other than the body
	maxRefusalBody    = 4096 // bytes
	maxRefusalHeaders = 8
	maxRefusalDepth   = 16 // of a body that is an object
)

// UnavailableStatus is the only status of a refusal outside 400…499. Only
// middlewares answer with it.
const UnavailableStatus = 503

// RefusalSpec is what the end user gets when a rule refuses. Texts may have placeholders.
type RefusalSpec struct {
	Status                    int // 400…499 or UnavailableStatus; 0 if left out, as with the texts
	Type, Title, Detail, Code string
	Headers                   []RefusalHeader
	Body                      string // plain text, or JSON if BodyIsJSON
	BodyIsJSON                bool
}

// RefusalHeader is a header of a refusal.
type RefusalHeader struct {
	Name  string // in canonical form
	Value string
}

// ReservedCodes are the codes that answers of nodes use. A refusal's code may not be one of them.
var ReservedCodes = []string{
	"bad-json", "unknown-field", "bad-value", "missing-key", "bad-request", "unauthorized",
	"forbidden", "denied", "blocked",
	"cross-origin", "wrong-host", "unknown-rule", "unknown-reservation", "not-found",
	"method-not-allowed", "timeout", "conflict",
	"too-large", "too-much-work", "invalid-rules", "headers-too-large", "internal", "not-ready",
	"draining", "no-leader",
	"no-owner", "member-there", "only-member", "level-refused", "no-primary", "write-failed", "overloaded",
	"too-many-reservations", "too-many-slots", "unknown-slot", "try-again", "request-id-reused",
	"incomplete", "in-document", "too-many-entries", "unknown", "rate-limited",
	"reduced", "cost-above-limit", "unknown-limit",
}

var refusalFields = fieldsOf(
	of("status", codec[int]{(*decoder).refusalStatus, unlessZero(integer[int])},
		func(r *RefusalSpec) *int { return &r.Status }),
	of("type", refusalText, func(r *RefusalSpec) *string { return &r.Type }),
	of("title", refusalText, func(r *RefusalSpec) *string { return &r.Title }),
	of("detail", refusalText, func(r *RefusalSpec) *string { return &r.Detail }),
	of("code", codec[string]{(*decoder).refusalCode, text}, func(r *RefusalSpec) *string { return &r.Code }),
	of("headers", codec[[]RefusalHeader]{(*decoder).refusalHeaders, unlessEmpty(func(list []RefusalHeader) *yaml.Node {
		return mapNode(list, func(h RefusalHeader) string { return h.Name },
			func(h RefusalHeader) *yaml.Node { return yaml.Text(h.Value) })
	})}, func(r *RefusalSpec) *[]RefusalHeader { return &r.Headers }),
	field[RefusalSpec]{"body", (*decoder).refusalBody, (*RefusalSpec).bodyNode},
)

var refusalText = codec[string]{func(d *decoder,
	n *yaml.Node) string {
	return d.template(n, maxRefusalText, "")
}, text}

func (dec *decoder) refusal(n *yaml.Node) *RefusalSpec {
	r := &RefusalSpec{}
	if refusalFields.read(dec, n, r, nil) && len(n.Items) == 0 {
		dec.fail(n, "expected at least one of %s", strings.Join(refusalFields.keys, ", "))
	}
	return r
}

func (dec *decoder) refusalStatus(n *yaml.Node) int {
	mistakes := len(dec.errs)
	status := int(dec.integer(n, 400, UnavailableStatus))
	if len(dec.errs) == mistakes && status > 499 && status != UnavailableStatus {
		dec.fail(n, "%d is neither in 400…499 nor %d", status, UnavailableStatus)
	}
	return status
}

func (dec *decoder) refusalCode(n *yaml.Node) string {
	s, ok := dec.text(n)
	switch {
	case !ok:
		return ""
	case s == "" || len(s) > maxNameBytes ||
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "":
		dec.fail(n, "a code has 1 to %d letters, digits, -, _ and .", maxNameBytes)
	case slices.Contains(ReservedCodes, s):
		dec.fail(n, "%q is a code of rlnode's own answers", s)
	}
	return s
}

// refusalHeaders reads the headers of a refusal. They may not change what
// proxies and clients do with the answer.
func (dec *decoder) refusalHeaders(n *yaml.Node) (list []RefusalHeader) {
	dec.eachEntry(n, func(key, v *yaml.Node) {
		h := RefusalHeader{Name: textproto.CanonicalMIMEHeaderKey(key.Text)}
		switch {
		case strings.HasPrefix(h.Name, "X-Ratelimit-"):
			dec.fail(key, "nodes set this header themselves")
		case !isRefusalHeader(h.Name):
			dec.fail(key, "only X-…, Link, Cache-Control, Content-Language and WWW-Authenticate may be set")
		case slices.ContainsFunc(list, func(o RefusalHeader) bool { return o.Name == h.Name }):
			dec.fail(key, "duplicate header")
		}

		h.Value = dec.template(v, maxRefusalText, "")
		if strings.Trim(h.Value, " ") != h.Value ||
			strings.ContainsFunc(h.Value, func(r rune) bool { return r > '~' }) {
			dec.fail(v, "a header's value is printable ASCII without blanks around it")
		}

		list = append(list, h)
	})
	if n.Kind == yaml.Map && (len(list) == 0 || len(list) > maxRefusalHeaders) {
		dec.fail(n, "expected 1 to %d headers", maxRefusalHeaders)
	}

	return list
}

func isRefusalHeader(name string) bool {
	switch name {
	case "Link", "Cache-Control", "Content-Language", "Www-Authenticate":
		return true
	}
	rest, ok := strings.CutPrefix(name, "X-")
	return ok && rest != "" && len(name) <= maxNameBytes && isToken(rest)
}

// isToken reports whether a text has only the characters that a header's name may have.
func isToken(s string) bool {
	return strings.Trim(s, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// refusalBody reads a body: an object, the text of an object, or plain text.
func (dec *decoder) refusalBody(n *yaml.Node, r *RefusalSpec) {
	if n.Kind != yaml.Map {
		r.Body = dec.template(n, maxRefusalBody, "\n\t")
		object, isObject := readObject(r.Body)
		if isObject && object == nil {
			dec.fail(n, "in an object, placeholders may stand only within texts")
		}
		if object == nil {
			return
		}
		n = &yaml.Node{Kind: yaml.Map, Pos: n.Pos, Items: object.Items}
	}

	if dec.isAny(n) {
		return
	}
	dec.checkTemplates(n, 1)
	r.Body = string(n.AppendJSON(nil))
	r.BodyIsJSON = true
	if len(r.Body) > maxRefusalBody {
		dec.fail(n, "a body can't be longer than %d bytes", maxRefusalBody)
	}
}

// readObject reads body as a JSON object; object is nil if it is none. meant is
// true if body is an object, or would be one with a number in place of each
// placeholder.
func readObject(body string) (object *yaml.Node, meant bool) {
	if json.Valid([]byte(body)) {
		n, err := yaml.Parse(body)
		if err != nil || n.Kind != yaml.Map {
			return nil, false
		}
		return n, true
	}

	var filled strings.Builder
	for _, p := range SplitTemplate(body) {
		filled.WriteString(p.Text)
		if p.Hole != "" {
			filled.WriteByte('0')
		}
	}

	text := strings.TrimSpace(filled.String())
	return nil, strings.HasPrefix(text, "{") && json.Valid([]byte(text))
}

// looksLikeAnObject reports whether the body is text that was probably meant as a JSON object.
func (spec *RefusalSpec) looksLikeAnObject() bool {
	if spec.BodyIsJSON || spec.Body == "" {
		return false
	}
	begin := SplitTemplate(spec.Body)[0].Text // up to the first placeholder
	return strings.HasPrefix(strings.TrimSpace(begin), "{")
}

// checkTemplates checks all texts in n, which is at a depth of a body.
func (dec *decoder) checkTemplates(n *yaml.Node, depth int) {
	switch {
	case depth > maxRefusalDepth:
		dec.fail(n, "more than %d levels", maxRefusalDepth)
	case n.Kind == yaml.List:
		dec.eachItem(n, func(n *yaml.Node) { dec.checkTemplates(n, depth+1) })
	case n.Kind == yaml.Map:
		dec.eachEntry(n, func(key, v *yaml.Node) {
			dec.checkTemplate(key, key.Text, maxRefusalBody, "")
			dec.checkTemplates(v, depth+1)
		})
	case n.Kind == yaml.String:
		dec.checkTemplate(n, n.Text, maxRefusalBody, "\n\t")
	}
}

func (spec *RefusalSpec) bodyNode() *yaml.Node {
	if !spec.BodyIsJSON {
		return text(spec.Body)
	}
	n, err := yaml.Parse(spec.Body)
	if err != nil {
		return nil // can't happen: it was written from a node
	}
	return n.OnOneLine()
}

// JSON renders the refusal as a JSON object, as in the document.
func (spec *RefusalSpec) JSON() []byte { return refusalFields.node(spec).AppendJSON(nil) }

// template reads a text with placeholders. It may contain the control characters allowed.
func (dec *decoder) template(n *yaml.Node, most int, allowed string) string {
	s, ok := dec.text(n)
	if ok && s == "" {
		dec.fail(n, "expected text")
	}
	if ok {
		dec.checkTemplate(n, s, most, allowed)
	}
	return s
}

func (dec *decoder) checkTemplate(n *yaml.Node, s string, most int, allowed string) {
	switch {
	case len(s) > most:
		dec.fail(n, "a text can't be longer than %d bytes here", most)
	case strings.ContainsFunc(s,
		func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune(allowed, r) }):
		dec.fail(n, "a text can't contain control characters here")
	}
	for _, p := range SplitTemplate(s) {
		if p.Hole != "" && !slices.Contains(placeholders[:], p.Hole) {
			dec.fail(n, "{%s} is not one of {%s}%s", Shorten(p.Hole),
				strings.Join(placeholders[:], "}, {"), suggest(p.Hole, placeholders[:]))
		}
	}
}

// placeholders are the names that may stand in braces in a refusal.
var placeholders = [...]string{"limit", "window", "retry_after", "rule"}

// TemplatePart is a text, and the placeholder that follows it; empty at the end.
type TemplatePart struct{ Text, Hole string }

// SplitTemplate splits a text at its placeholders: names in braces.
func SplitTemplate(s string) (parts []TemplatePart) {
	from := 0
	for i := 0; i < len(s); i++ {
		if s[i] != '{' {
			continue
		}

		end := i + 1
		for end < len(s) && (s[end] == '_' || 'a' <= s[end]|0x20 && s[end]|0x20 <= 'z') {
			end++
		}

		if end > i+1 && end < len(s) && s[end] == '}' {
			parts = append(parts, TemplatePart{s[from:i], s[i+1 : end]})
			from, i = end+1, end
		}
	}

	return append(parts, TemplatePart{Text: s[from:]})
}
