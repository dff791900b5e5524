package rules

import (
	"strconv"

	"github.com/rlnode/rlnode/internal/yaml"
	"github.com/rlnode/rlnode/rules/document"
)

// Refusal is a compiled document.RefusalSpec.
type Refusal struct {
	Status  int // 400…499 or document.UnavailableStatus; 0 if the rule gives none
	Headers []document.RefusalHeader
	// Member is the refusal as a JSON object. It goes into answers to callers that
	// make a response of it for the end user.
	Member Template
	// Body is the body for the end user, of type BodyType; empty if the rule gives
	// none.
	Body     Template
	BodyType string
	// Type, Title, Detail and Code are members of a problem, as JSON strings. Each
	// is empty if the rule gives none.
	Type, Title, Detail, Code Template

	values []Template // of Headers
}

// Template is a text with placeholders, in which values are escaped as its syntax requires.
type Template struct {
	parts  []document.TemplatePart
	asJSON bool
}

// Values are what placeholders stand for.
type Values struct {
	Limit      int64
	Window     string // as written: 1m, day
	RetryAfter int64  // seconds; negative if waiting does not help
	Rule       string
}

// quotedTemplate returns text as a JSON string; an empty Template if it is empty.
func quotedTemplate(text string) Template {
	if text == "" {
		return Template{}
	}
	return Template{document.SplitTemplate(string(appendJSON(nil, text))), true}
}

// IsEmpty reports whether t is no text at all.
func (t *Template) IsEmpty() bool { return t.parts == nil }

// Append appends the text with values in place of the placeholders.
func (t *Template) Append(b []byte, v *Values) []byte {
	for _, p := range t.parts {
		b = append(b, p.Text...)
		switch p.Hole {
		case "limit":
			b = strconv.AppendInt(b, v.Limit, 10)
		case "window":
			b = t.appendText(b, v.Window)
		case "retry_after":
			b = strconv.AppendInt(b, max(v.RetryAfter, 0), 10)
		case "rule":
			b = t.appendText(b, v.Rule)
		}
	}

	return b
}

func (t *Template) appendText(b []byte, s string) []byte {
	if !t.asJSON {
		return append(b, s...)
	}
	quoted := appendJSON(nil, s)
	return append(b, quoted[1:len(quoted)-1]...)
}

// appendJSON appends a JSON string.
func appendJSON(b []byte, s string) []byte { return yaml.Text(s).AppendJSON(b) }

// HeaderValue appends the value of the i-th header. A question mark replaces
// each byte that a header can't have.
func (r *Refusal) HeaderValue(b []byte, i int, v *Values) []byte {
	from := len(b)
	b = r.values[i].Append(b, v)
	for j := from; j < len(b); j++ {
		if b[j] < ' ' || b[j] > '~' {
			b[j] = '?'
		}
	}
	return b
}

// compileRefusal compiles a rule's refusal; nil if it has none.
func compileRefusal(spec *document.RefusalSpec) *Refusal {
	if spec == nil {
		return nil
	}

	r := &Refusal{
		Status: spec.Status, Headers: spec.Headers,
		Type: quotedTemplate(spec.Type), Title: quotedTemplate(spec.Title),
		Detail: quotedTemplate(spec.Detail), Code: quotedTemplate(spec.Code),
		Member: Template{document.SplitTemplate(string(spec.JSON())), true},
	}
	for _, h := range spec.Headers {
		r.values = append(r.values, Template{document.SplitTemplate(h.Value), false})
	}

	switch {
	case spec.BodyIsJSON:
		r.Body = Template{document.SplitTemplate(spec.Body), true}
		r.BodyType = "application/json"
	case spec.Body != "":
		r.Body = Template{document.SplitTemplate(spec.Body), false}
		r.BodyType = "text/plain; charset=utf-8"
	}

	return r
}
