package main

import (
	"strings"
	"testing"
)

// TestDeniedIsADecision: commands that ask take 403 with the code denied for a refusal, and any other 403 for an error.
func TestDeniedIsADecision(t *testing.T) {
	forbidden := strings.Replace(denialBody, `"denied"`, `"forbidden"`, 1)
	for _, test := range []struct {
		status int
		body   string
		want   bool
	}{
		{200, `{"allowed":true}`, true},
		{429, `{"allowed":false}`, true},
		{403, denialBody, true},
		{403, forbidden, false},
		{403, "<html>", false},
		{401, denialBody, false},
	} {
		r := &reply{status: test.status, body: []byte(test.body)}
		l := &loader{batch: 1}
		err := l.count(test.status, r.body)
		if r.decides() != test.want || (err == nil) != test.want || (l.allowed+l.refused == 1) != test.want {
			t.Errorf("%d %s: have %t, %v, want %t", test.status, test.body, r.decides(), err, test.want)
		}
	}
}
