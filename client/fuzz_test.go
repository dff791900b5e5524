package client

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzAnswer: any answer becomes a decision within bounds, or an error.
func FuzzAnswer(f *testing.F) {
	f.Add(200, []byte(allowed))
	f.Add(429, []byte(refused))
	f.Add(403, []byte(denied))
	f.Add(404, []byte(`{"code":"unknown-rule"}`))
	f.Add(200, []byte(`{"allowed":true,"decided_by":"none","limits":[{}]}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		r := &reply{node: &node{baseURL: "http://x"}, status: status, body: body}
		var a answer
		d, err := r.decision(&a, status%2 == 0 && len(body)%2 == 0)
		var answered *Error
		switch {
		case err != nil:
			if !errors.Is(err, ErrBadAnswer) && !errors.As(err, &answered) {
				t.Errorf("have error %v", err)
			}
		case (d.Allowed || d.Counted) != (status == 200), d.Allowed && d.Counted, d.Used < 0,
			d.DecidedBy == "", d.DecidedBy == ByError, d.Remaining < 0, d.Window < 0, d.Delay < 0,
			d.ResetAfter < 0, d.RetryAfter < Never:
			t.Errorf("have %+v", d)
		}
		d.SetHeaders(http.Header{})
		ietfHeaders(d.Limits, d.RetryAfter)
	})
}

// FuzzRequest: every request is sent as JSON with values that a node accepts.
func FuzzRequest(f *testing.F) {
	f.Add("login", "198.51.100.7", int64(1))
	f.Add("", "\xff\"\\\u2028\x00", int64(1<<62))
	f.Fuzz(func(t *testing.T, rule, value string, cost int64) {
		q := Request{Rule: rule, Attributes: map[string]string{"ip": value}, Cost: cost}
		body, err := q.append(nil, 0)
		if err != nil {
			return
		}
		var have struct {
			Attributes map[string]string
			Cost       int64
		}
		if err := json.Unmarshal(body, &have); err != nil || !utf8.Valid(body) {
			t.Fatalf("have %q, %v", body, err)
		}
		if v := have.Attributes["ip"]; v != Fit(value) || len(v) > maxValue || have.Cost > maxAmount {
			t.Errorf("have %q, %d", v, have.Cost)
		}
	})
}

// Of many texts, valid or not, each is sent as itself; only one that no node
// accepts is changed, to one that it does.
func TestTextsAreSentApart(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "B", "0", " ", "\x00", "\"", "\\", "é", "\u2028", "\uFFFD",
		"\U0001F600", "\xff", "\xc3", strings.Repeat("x", 300)}
	sent := map[string]string{}
	for range 100_000 {
		var text strings.Builder
		for range random.IntN(6) {
			text.WriteString(pieces[random.IntN(len(pieces))])
		}
		value := text.String()
		body, err := (&Request{Rule: "r", Key: []string{value, "b"}, Attributes: nil}).append(nil, 0)
		var have struct{ Key []string }
		if err != nil || json.Unmarshal(body, &have) != nil || len(have.Key) != 2 || have.Key[1] != "b" {
			t.Fatalf("%q: have %q, %v", value, body, err)
		}
		as, fits := have.Key[0], utf8.ValidString(value) && len(value) <= maxValue
		if !utf8.ValidString(as) || len(as) > maxValue || fits && as != value {
			t.Fatalf("%q is sent as %q", value, as)
		}
		if other, ok := sent[as]; fits && ok && other != value {
			t.Fatalf("%q and %q are sent as %q", value, other, as)
		}
		if fits {
			sent[as] = value
		}
	}
}
