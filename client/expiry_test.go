package client

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// What a reservation says of its end, and which modes a request may have, as a node reads it.
func TestRequest_OnExpiry(t *testing.T) {
	for _, tt := range []struct {
		end  OnExpiry
		want string // "": an error
	}{
		{OnExpiry{}, `{"rule":"r","ttl_ms":1000}`},
		{OnExpiry{Refund: true}, `{"rule":"r","on_expiry":"refund","ttl_ms":1000}`},
		{OnExpiry{Refund: true, Costs: map[string]int64{"tokens": 5}},
			`{"rule":"r","on_expiry":{"costs":{"tokens":5}},"ttl_ms":1000}`},
		{OnExpiry{Costs: map[string]int64{"tokens": 5}}, ""},
		{OnExpiry{Refund: true, Costs: map[string]int64{"tokens": -5}}, ""},
	} {
		q := Request{Rule: "r", OnExpiry: tt.end}
		b, err := q.append(nil, time.Second)
		if string(b) != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%+v: got %s, %v, want %s", tt.end, b, err, tt.want)
		}
	}

	q := Request{Rule: "r", Mode: AtMostMode, Costs: map[string]int64{"tokens": 9}}
	if b, err := q.append(nil, 0); err != nil || !strings.Contains(string(b), `"mode":"at_most"`) ||
		q.GrantedUnasked() != 9 {
		t.Errorf("got %s, %v, %d granted", b, err, q.GrantedUnasked())
	}

	q.Limits, q.Rule, q.Key = []Limit{{Limit: 9, Per: "1h", Unit: "tokens"}}, "", []string{"u"}
	for _, options := range []Options{{}, {OnError: Local, Local: q.Limits}} {
		options.Nodes, options.Timeout = []string{"http://127.0.0.1:1"}, 5*time.Second
		c, err := New(options)
		expect.NoError(t, err)
		defer c.Close()
		if d, _ := c.Check(t.Context(), q); !d.Allowed || d.Granted != 9 {
			t.Errorf("no node, %v: got %+v, want 9 granted", options.OnError, d)
		}
	}
}
