//go:build browser

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

const formIsThere = `document.getElementById('token')?.hidden === false && document.getElementById('main').hidden && document.activeElement.id === 'token-text'`

// asksForToken types in tokens until one permits everything.
func asksForToken(t *testing.T, s *site) {
	const expected = "status of 40" // the browser logs each 401 and 403 as an error
	s.until("the page asks for a token", formIsThere)
	if have := s.text("body"); strings.Contains(have, "login") || strings.Contains(have, "n2") {
		t.Errorf("without a token the page shows %q", have)
	}
	before := len(s.sent())
	s.inspect("token")
	s.eval(longerThanAPace)
	if more := s.sent()[before:]; len(more) > 0 {
		t.Errorf("it waits for a token and asks %q", more)
	}

	enter := func(text string) {
		t.Helper()
		s.fill("#token-text", text)
		s.press("Enter")
	}
	enter("not the token")
	s.until("it says what a token is", `/no blanks/.test(document.getElementById('token-error').textContent)`)
	enter("wrong")
	s.until("it says that the token is wrong",
		formIsThere+` && /does not know/.test(document.getElementById('token-error').textContent)`)
	s.keepsOnly(t, "")
	s.inspect("token-wrong")

	enter(gatewayToken)
	s.until("it says which scope is missing",
		`/scope read; gateway has check/.test(document.getElementById('notices').innerText)`)
	s.inspectPages("token-scope")
	s.visit("#/document")
	s.fill("#try-attributes", "ip=198.18.0.9")
	s.click("#try button")
	s.until("a check can be tried all the same", `/^Allowed/.test(document.getElementById('try-result').innerText)`)
	s.keepsOnly(t, gatewayToken)
	s.load(func() { s.click("#token-forget") }) // it loads the page anew
	s.until("it is forgotten", formIsThere)
	s.keepsOnly(t, "")

	enter(viewerToken)
	s.visit("#/document")
	s.until("the page is there", `document.getElementById('text').value.includes('per-address')`)
	s.fill("#try-attributes", "ip=198.18.0.9")
	s.click("#try-take")
	s.click("#try button")
	s.until("what the token may not do is said",
		`/scope check; viewer has read/.test(document.getElementById('try-result').innerText)`)
	if have := s.eval(`document.getElementById('reads').hidden && document.getElementById('token').hidden`); have != true {
		t.Error("there are links that lead to refusals, or the form")
	}
	s.visit("#/nodes")
	s.reload()
	s.until("the tab has kept it",
		`document.querySelectorAll('#members tr').length === 3 && document.getElementById('token').hidden`)
	s.keepsOnly(t, viewerToken)
	s.load(func() { s.click("#token-forget") }) // it loads the page anew
	s.until("it is forgotten", formIsThere)

	enter(adminToken)
	s.until("the page is there", `document.querySelectorAll('#members tr').length === 3 && `+live)
	s.keepsOnly(t, adminToken)
	s.visit("#/overview")
	s.calm(t, expected)
}

// keepsOnly fails if the page stores anything but the token (if it is empty,
// anything at all), or if any token ever was part of a request's address or
// body.
func (s *site) keepsOnly(t *testing.T, token string) {
	t.Helper()
	want := fmt.Sprintf(`[[],["rlnode-token",%q],""]`, token)
	if token == "" {
		want = `[[],[],""]`
	}
	if have := s.eval(`JSON.stringify([Object.entries(localStorage).flat(), Object.entries(sessionStorage).flat(), document.cookie])`); have != want {
		t.Errorf("the page keeps %v, want %s", have, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, asked := range s.asked {
		for _, text := range []string{adminToken, viewerToken, gatewayToken, "wrong"} {
			if strings.Contains(asked, text) {
				t.Errorf("%s has a token in it", asked)
			}
		}
	}
}
