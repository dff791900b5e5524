package main

import (
	"io"
	"strings"
	"testing"
)

// TestDeniedIsADecision: commands treat 403 with the code denied as a refusal,
// and any other 403 as an error.
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

// TestFlagsTakeDays: flags with durations accept days, and say so in errors.
func TestFlagsTakeDays(t *testing.T) {
	for value, want := range map[string]string{"2d": "48h0m0s is not above 0 and at most 1h",
		"1w": "such as 500ms, 15m, 24h or 7d", "1d-1h": "7d", "": "7d"} {
		var stderr strings.Builder
		if code := run(t.Context(), []string{"bench", "--duration=" + value}, nil, io.Discard,
			&stderr); code != exitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: have %d, %s, want %s", value, code, stderr.String(), want)
		}
	}
}
