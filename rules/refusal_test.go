package rules

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/rules/document"
)

func TestParse_refusal(t *testing.T) {
	const rule = "rules:\n  - name: a\n    key: [user]\n    limits: [{limit: 1, per: 1m}]\n    refusal: "
	headers := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString("X-A" + strings.Repeat("a", i) + ": x, ")
		}
		return "{headers: {" + b.String() + "}}"
	}
	for _, tt := range []struct{ refusal, want string }{
		{"{status: 402, type: 'https://example.com/p', title: Pay, detail: '{limit} per {window} of {rule}, in {retry_after} s', code: pay-first}", ""},
		{"{status: 503, body: 'Busy. Come back in {retry_after} s.'}", ""},
		{"{body: {error: {message: 'wait {retry_after} s', list: [1, true, null]}}}", ""},
		{`{body: '{"error":"wait {retry_after} s"}'}`, ""},
		{"{body: '{limit} is all you get'}", ""},
		{"{body: '{ not json }'}", ""},
		{"{headers: {X-Why: '{rule}', link: '<https://example.com>; rel=help', Cache-Control: no-store, Content-Language: en, WWW-Authenticate: Basic}}", ""},
		{headers(8), ""},
		{"{}", "5:14: rules[0].refusal: expected at least one of status, type"},
		{"{status: 200}", "rules[0].refusal.status: 200 is not in 400…503"},
		{"{status: 500}", "500 is neither in 400…499 nor 503"},
		{"{title: '{limits} a minute'}",
			"rules[0].refusal.title: {limits} is not one of {limit}, {window}, {retry_after}, {rule}; did you mean limit?"},
		{"{body: 'for {user}'}", "{user} is not one of"},
		{"{body: {a: ['{user}']}}", "rules[0].refusal.body.a[0]: {user} is not one of"},
		{`{body: '{"limit":{limit}}'}`,
			"rules[0].refusal.body: in an object, placeholders may stand only within texts"},
		{`{title: "a\nb"}`, "a text can't contain control characters here"},
		{`{headers: {X-A: "a\r\nX-B: c"}}`,
			"rules[0].refusal.headers.X-A: a text can't contain control characters here"},
		{`{body: "a\u0001"}`, "control characters"},
		{`{body: {a: "a\u0001"}}`, "rules[0].refusal.body.a: a text can't contain control characters here"},
		{"{title: ''}", "expected text"},
		{"{title: " + strings.Repeat("x", 1025) + "}", "can't be longer than 1024 bytes"},
		{"{body: " + strings.Repeat("x", 4097) + "}", "can't be longer than 4096 bytes"},
		{"{body: {a: " + strings.Repeat("x", 4090) + "}}", "a body can't be longer than 4096 bytes"},
		{"{body: [1]}", "expected text, not a list"},
		{"{code: denied}", `rules[0].refusal.code: "denied" is a code of rlnode's own answers`},
		{"{code: 'a b'}", "a code has 1 to 128 letters"},
		{"{headers: {Set-Cookie: x}}", "rules[0].refusal.headers.Set-Cookie: only X-…, Link, Cache-Control"},
		{"{headers: {Location: x}}", "only X-…"},
		{"{headers: {X-: x}}", "only X-…"},
		{"{headers: {X-RateLimit-Limit: x}}", "nodes set this header themselves"},
		{"{headers: {X-A: x, x-a: y}}", "duplicate header"},
		{"{headers: {X-A: 'é'}}", "a header's value is printable ASCII"},
		{headers(9), "expected 1 to 8 headers"},
	} {
		doc, err := document.Parse([]byte(rule + tt.refusal + "\n"))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\ngot %v\nwant %q", tt.refusal, err, tt.want)
		}
		if err == nil {
			checkRoundTrip(t, doc)
		}
	}
}

// Values are escaped as the text around them requires.
func TestRefusal_placeholders(t *testing.T) {
	s := mustCompile(t, `
rules:
  - name: '"{x}" é'
    key: [user]
    limits: [{limit: 1, per: 1m}]
    refusal:
      title: 'no "{rule}"'
      headers: {X-Why: '{rule}; {limit}/{window}'}
      body: {why: '{rule}', in: '{retry_after} s', keep: '{ {} {1} {'}
`)
	r := s.Rules[0].Refusal
	v := Values{Limit: 5, Window: "1m", RetryAfter: 7, Rule: s.Rules[0].Name}
	if got, want := string(r.Member.Append(nil,
		&v)), `{"title":"no \"\"{x}\" é\"","headers":{"X-Why":"\"{x}\" é; 5/1m"},"body":{"why":"\"{x}\" é","in":"7 s","keep":"{ {} {1} {"}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got, want := string(r.Body.Append(nil, &v)), `{"why":"\"{x}\" é","in":"7 s","keep":"{ {} {1} {"}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got, want := string(r.HeaderValue(nil, 0, &v)), `"{x}" ??; 5/1m`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
