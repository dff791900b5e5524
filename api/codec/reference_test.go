package codec

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// member is a member of an object, in text order.
type member struct {
	name  string
	value json.RawMessage
}

// referenceMembers returns the members of a valid JSON object.
func referenceMembers(t testing.TB, raw []byte) []member {
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		t.Fatalf("reference: %v", err)
	}
	var list []member
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatalf("reference: %v", err)
		}
		var m member
		m.name = name.(string)
		if err := d.Decode(&m.value); err != nil {
			t.Fatalf("reference: %v", err)
		}
		list = append(list, m)
	}
	return list
}

// referenceSyntax reports whether a body is JSON as strictly as this package requires.
func referenceSyntax(body []byte) bool {
	if !utf8.Valid(body) || !json.Valid(body) {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
			if body[i] != 'u' {
				continue
			}
			r := referenceHex(body[i+1:])
			i += 4
			if !utf16.IsSurrogate(r) {
				continue
			}
			if len(body) < i+7 || body[i+1] != '\\' || body[i+2] != 'u' ||
				utf16.DecodeRune(r, referenceHex(body[i+3:])) == utf8.RuneError {
				return false
			}
			i += 6
		case c == '"':
			inString = !inString
		case !inString && (c == '{' || c == '['):
			depth++
			if depth > maxDepth {
				return false
			}
		case !inString && (c == '}' || c == ']'):
			depth--
		}
	}
	return true
}

func referenceHex(b []byte) rune {
	v, err := strconv.ParseUint(string(b[:4]), 16, 32)
	if err != nil {
		return 0
	}
	return rune(v)
}

func referenceText(raw []byte) (string, bool) {
	if raw[0] != '"' {
		return "", false
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", false
	}
	return s, true
}

func referenceAmount(raw []byte, least int64) (int64, bool) {
	if strings.ContainsAny(string(raw), ".eE") || string(raw) == "-0" || raw[0] != '-' &&
		(raw[0] < '0' || raw[0] > '9') {
		return 0, false
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	return v, err == nil && v >= least && v <= algorithms.MaxAmount
}

// referenceValue decodes a value of a key or of an attribute. The code is empty
// if it is one; MissingKey: it is null.
func referenceValue(raw []byte) (string, api.Code) {
	text, ok := referenceText(raw)
	switch {
	case string(raw) == "null":
		return "", api.MissingKey
	case wholeNumber.Match(raw) && string(raw) != "-0":
		text = string(raw)
	case !ok:
		return "", api.BadValue
	}
	if len(text) > MaxValue {
		return text, api.BadValue
	}
	return text, ""
}

var wholeNumber = regexp.MustCompile(`^-?[0-9]+$`)

// referenceCheck parses a check in a slow and plain way. The code is empty if the check is valid.
func referenceCheck(t testing.TB, body []byte) (*Request, api.Code) {
	trimmed := bytes.Trim(body, " \t\r\n")
	if !referenceSyntax(body) || trimmed[0] != '{' {
		return nil, api.BadJSON
	}
	return referenceObject(t, trimmed)
}

func referenceObject(t testing.TB, object []byte) (*Request, api.Code) {
	r := &Request{}
	var first api.Code
	note := func(ok bool, code api.Code) {
		if !ok && first == "" {
			first = code
		}
	}
	seen := map[string]bool{}
	for _, m := range referenceMembers(t, object) {
		ok, twice := r.reference(t, m, note)
		if twice || ok && seen[m.name] {
			return nil, api.BadJSON
		}
		seen[m.name] = seen[m.name] || ok
	}
	if first == "" {
		first = referenceSettle(r, seen)
	}
	r.ByKey = !seen["attributes"]
	return r, first
}

func referenceSettle(r *Request, seen map[string]bool) api.Code {
	switch {
	case len(seen) == 0:
		return api.MissingKey
	case seen["key"] && seen["attributes"]:
		return api.BadValue
	case !seen["rule"] && !seen["attributes"]:
		return api.MissingKey
	}
	if seen["cost"] {
		for _, c := range r.Costs {
			if c.Unit == document.Requests {
				return api.BadValue
			}
		}
		r.Costs = append(r.Costs, limiter.UnitCost{Unit: document.Requests, Cost: r.Cost})
	}
	return ""
}

// reference decodes one field. known is false for an unknown field; twice is
// true if a name appears twice within the field's value.
func (q *Request) reference(t testing.TB, m member, note func(bool, api.Code)) (known, twice bool) {
	flag := func() bool {
		note(string(m.value) == "true" || string(m.value) == "false", api.BadValue)
		return string(m.value) == "true"
	}
	var ok bool
	switch m.name {
	case "rule":
		q.Rule, ok = referenceText(m.value)
		note(ok && q.Rule != "" && len(q.Rule) <= MaxValue, api.BadValue)
	case "key":
		values := []json.RawMessage{m.value}
		if m.value[0] == '[' {
			if err := json.Unmarshal(m.value, &values); err != nil {
				t.Fatalf("reference: %v", err)
			}
		}
		note(len(values) <= document.MaxAttributes, api.BadValue)
		for _, raw := range values[:min(len(values), document.MaxAttributes)] {
			v, code := referenceValue(raw)
			note(code == "", code)
			q.Key = append(q.Key, v)
		}
	case "attributes", "costs":
		if m.value[0] != '{' {
			note(false, api.BadValue)
			break
		}
		for i, one := range referenceMembers(t, m.value) {
			twice = twice || q.referenceInner(m.name, i, one, note)
			if twice {
				break
			}
		}
	case "cost":
		q.Cost, ok = referenceAmount(m.value, 0)
		note(ok, api.BadValue)
	case "peek":
		if flag() {
			q.Mode = counters.PeekMode
		}
	case "wait":
		q.Wait = flag()
	case "detail":
		q.Detail = flag()
	default:
		note(false, api.UnknownField)
		return false, false
	}
	return true, twice
}

func (q *Request) referenceInner(field string, i int, m member, note func(bool, api.Code)) (twice bool) {
	note(len(m.name) <= MaxValue, api.BadValue)
	if field == "costs" {
		for _, c := range q.Costs {
			twice = twice || c.Unit == m.name
		}
		if note(i < limiter.MaxCosts, api.BadValue); i < limiter.MaxCosts {
			v, ok := referenceAmount(m.value, 0)
			note(ok, api.BadValue)
			q.Costs = append(q.Costs, limiter.UnitCost{Unit: m.name, Cost: v})
		}
		return twice
	}
	for _, a := range q.Attributes {
		twice = twice || a.Name == m.name
	}
	if note(i < document.MaxAttributes, api.BadValue); i < document.MaxAttributes {
		v, code := referenceValue(m.value)
		note(code == "" || code == api.MissingKey, code)
		q.Attributes = append(q.Attributes, rules.Attribute{Name: m.name, Value: v})
	}
	return twice
}

// sameQuery compares the two parsers' results for a check.
func sameQuery(t *testing.T, body []byte, have, want *Request) {
	t.Helper()
	text := func(r *Request) string {
		b, err := json.Marshal([]any{r.Rule, r.ByKey, r.Mode, r.Wait, r.Detail, append([]string{}, r.Key...),
			append([]rules.Attribute{}, r.Attributes...), append([]limiter.UnitCost{}, r.Costs...)})
		expect.NoError(t, err)
		return string(b)
	}
	if h, w := text(have), text(want); h != w {
		t.Fatalf("%q:\nhave %s\nwant %s", body, h, w)
	}
}

func compareCheck(t *testing.T, s *Decoder, r *Request, body []byte) {
	if inlineNamed(body) {
		return // see FuzzInlineRequest
	}
	r.Reset()
	e := s.Read(bytes.Clone(body), CheckForm, r)
	want, code := referenceCheck(t, body)
	if (e == nil) != (code == "") || e != nil && e.Code != code {
		t.Fatalf("%q: have %v, want %q", body, e, code)
	}
	if e == nil {
		sameQuery(t, body, r, want)
	}
}

var checkSeeds = []string{
	`{"rule":"login","key":"198.51.100.7","cost":1}`,
	`{"attributes":{"ip":"198.51.100.7","tenant":"acme"},"costs":{"tokens":900},"detail":true}`,
	`{"rule":"r","key":["a","b\u00e9\ud83d\ude00\n\"\\\/\b\f\r\t"],"peek":true,"wait":false}`,
	` {"rule" : "r" , "attributes" : { } , "cost" : 9007199254740991 } `,
	`{}`, `{ }`, ``, ` `, `null`, `[]`, `5`, `"x"`, `{`, `{"rule"`, `{"rule":`, `{"rule":"r`,
	`{"rule":"r"`, `{"rule":"r",}`, `{,}`,
	`{"rule":"r","key":"k"}x`, `{"rule":"r","key":"k"}{}`, `{"rule":"r","rule":"r"}`, `{"x":1}`,
	`{"x":1,"x":2}`, `{"x":[[{}]]} x`,
	`{"rule":"","key":"k"}`, `{"rule":null,"key":"k"}`, `{"rule":5,"key":"k"}`,
	`{"rule":"r","key":null}`, `{"rule":"r","key":[1]}`,
	`{"rule":"r","key":[]}`, `{"rule":"r"}`, `{"key":"k"}`, `{"cost":1}`, `{"rule":"r","key":"k","attributes":{}}`,
	`{"key":"k","attributes":{}}`, `{"attributes":[]}`, `{"attributes":{"a":1}}`, `{"attributes":{"a":"1","a":"2"}}`,
	`{"attributes":{"a":"1","\u0061":"2"}}`, `{"\u0072ule":"r","key":"k"}`,
	`{"rule":"r","key":"k","cost":1.0}`, `{"rule":"r","key":"k","cost":1e3}`,
	`{"rule":"r","key":"k","cost":-1}`, `{"rule":"r","key":"k","cost":-0}`,
	`{"rule":"r","key":"k","cost":01}`, `{"rule":"r","key":"k","cost":9007199254740992}`,
	`{"rule":"r","key":"k","cost":99999999999999999999999999}`, `{"rule":"r","key":"k","cost":"1"}`,
	`{"rule":"r","key":"k","cost":1.}`, `{"rule":"r","key":"k","cost":-}`,
	`{"rule":"r","key":"k","cost":1,"costs":{"requests":1}}`,
	`{"rule":"r","key":"k","costs":{"a":1,"a":1}}`, `{"rule":"r","key":"k","costs":{"a":null}}`,
	`{"rule":"r","key":"k","costs":[]}`, `{"rule":"r","key":"k","peek":1}`,
	`{"rule":"r","key":"k","peek":null}`, `{"rule":"r","key":"k","peek":tru}`,
	`{"rule":"r","key":"\ud800"}`, `{"rule":"r","key":"\udc00\ud800"}`,
	`{"rule":"r","key":"\ud800\u0041"}`, `{"rule":"r","key":"\u12"}`, `{"rule":"r","key":"\x"}`,
	"{\"rule\":\"r\",\"key\":\"\xff\"}", "{\"rule\":\"r\",\"key\":\"a\nb\"}",
	"{\"rule\":\"r\",\"key\":\"\x00\"}", "\xef\xbb\xbf{}",
	`{"x":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`,
	`{"x":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`,
	strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000),
	`{"rule":"r","key":"` + strings.Repeat("k", 1024) + `"}`, `{"rule":"r","key":"` + strings.Repeat("k", 1025) + `"}`,
	`{"attributes":{` + manyMembers(32, `"v"`) + `}}`, `{"attributes":{` + manyMembers(33, `"v"`) + `}}`,
	`{"rule":"r","key":"k","costs":{` + manyMembers(16, `1`) + `}}`,
	`{"rule":"r","key":"k","costs":{` + manyMembers(17, `1`) + `}}`,
	`{"rule":"r","key":[` + strings.Repeat(`"k",`, 31) + `"k"]}`,
	`{"rule":"r","key":[` + strings.Repeat(`"k",`, 32) + `"k"]}`,
}

func manyMembers(n int, value string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = `"a` + strconv.Itoa(i) + `":` + value
	}
	return strings.Join(list, ",")
}

func FuzzCheckRequest(f *testing.F) {
	for _, s := range checkSeeds {
		f.Add([]byte(s))
	}
	var s Decoder
	var r Request
	f.Fuzz(func(t *testing.T, body []byte) { compareCheck(t, &s, &r, body) })
}

// referenceBatch returns the checks of a batch and the code of each; whole is
// the code of the entire batch.
func referenceBatch(t testing.TB, body []byte) (checks []*Request, codes []api.Code, whole api.Code) {
	trimmed := bytes.Trim(body, " \t\r\n")
	if !referenceSyntax(body) || trimmed[0] != '{' {
		return nil, nil, api.BadJSON
	}
	var items []json.RawMessage
	given := false
	for _, m := range referenceMembers(t, trimmed) {
		switch {
		case m.name != "checks":
			whole = firstCode(whole, api.UnknownField)
		case given:
			return nil, nil, api.BadJSON
		case m.value[0] != '[':
			given, whole = true, firstCode(whole, api.BadValue)
		default:
			given = true
			if err := json.Unmarshal(m.value, &items); err != nil {
				t.Fatalf("reference: %v", err)
			}
			if len(items) > maxBatch {
				whole = firstCode(whole, api.BadValue)
			}
		}
	}
	if !given {
		whole = firstCode(whole, api.MissingKey)
	}
	for _, raw := range items {
		if raw[0] != '{' {
			checks, codes = append(checks, nil), append(codes, api.BadValue)
			continue
		}
		c, code := referenceObject(t, raw)
		checks, codes = append(checks, c), append(codes, code)
	}
	return checks, codes, whole
}

func firstCode(a, b api.Code) api.Code {
	if a != "" {
		return a
	}
	return b
}

func FuzzBatchRequest(f *testing.F) {
	f.Add([]byte(`{"checks":[{"rule":"r","key":"k"},{},5,{"rule":"r","rule":"r"},{"attributes":{"a":"b"}}]}`))
	f.Add([]byte(`{"checks":[{"rule":"r","key":"k","key":[{"a":[]}]},[[[]]],{"rule":"\u0041","key":"k"} , null ]}`))
	f.Add([]byte(`{"checks":[]}`))
	f.Add([]byte(`{"checks":{}}`))
	f.Add([]byte(`{"checks":[],"checks":[]}`))
	f.Add([]byte(`{"x":1,"checks":[{}]}`))
	f.Add([]byte(`{"checks":[{"rule":"r"]}`))
	f.Add([]byte(`{}`))
	for _, s := range checkSeeds {
		if len(s) < 5000 {
			f.Add([]byte(`{"checks":[` + s + `,{"rule":"last","key":"k"}]}`))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if inlineNamed(body) {
			return
		}
		var s Decoder
		checks, codes, whole := referenceBatch(t, body)
		count, e := s.StartBatch(bytes.Clone(body))
		if (e == nil) != (whole == "") || e != nil && e.Code != whole {
			t.Fatalf("%q: have %v, want %q", body, e, whole)
		}
		if e != nil {
			return
		}
		if count != len(codes) {
			t.Fatalf("%q: have %d checks, want %d", body, count, len(codes))
		}
		for i, want := range codes {
			if !s.MoreChecks(i) {
				t.Fatalf("%q: have %d checks, want %d", body, i, count)
			}
			r := &Request{}
			var have api.Code
			if e := s.NextCheck(r, &rules.Set{}); e != nil {
				have = e.Code
			}
			if want == "" && checks[i].ByKey && checks[i].Key == nil && have == api.MissingKey {
				continue // a rule named without a key
			}
			if have != want {
				t.Fatalf("%q: check %d: have %q, want %q", body, i, have, want)
			}
			if want == "" {
				sameQuery(t, body, r, checks[i])
			}
		}
		if s.MoreChecks(count) {
			t.Fatalf("%q: have more than %d checks", body, count)
		}
	})
}
