package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

const addressRules = `
version: 1
lists: {deny: [{ip: 192.0.2.0/24}]}
rules:
  - {name: year, key: [ip], limits: [{limit: 1000, per: 8760h, algorithm: fixed-window}]}
profiles: {web: {ip: header:X-Forwarded-For}}
`

// All notations of an address are one subject on every path into the node:
// another port gives no fresh limit.
func TestOneAddressByEveryWayIn(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", addressRules))
	call := func(want int, method, target, body string) string {
		t.Helper()
		status, text, err := s.call(method, target, "", body)
		if err != nil || status != want {
			t.Errorf("%s %s %s: have %d %s, %v, want %d", method, target, body, status, text, err, want)
		}
		return text
	}
	writings := []string{"198.51.100.7", "198.51.100.7:1234", " 198.51.100.7 ",
		"[::ffff:198.51.100.7]:80", "::ffff:c633:6407%eth0", "64:ff9b::c633:6407",
		"[2002:c633:6407:1::5]:80"}
	asks := []struct{ path, body string }{
		{"/v1/check", `{"attributes": {"ip": %q}}`},
		{"/v1/check", `{"rule": "year", "key": %q}`},
		{"/v1/check/batch", `{"checks": [{"attributes": {"ip": %q}}]}`},
		{"/v1/reserve", `{"attributes": {"ip": %q}, "ttl_ms": 60000}`},
		{"/v1/adjust", `{"rule": "year", "key": %q, "cost": 1}`},
	}
	used := int64(0)
	for _, w := range writings {
		for _, ask := range asks {
			call(200, "POST", s.data+ask.path, fmt.Sprintf(ask.body, w))
			used++
		}
		r, err := http.NewRequest("GET", s.data+"/v1/auth/web", nil)
		expect.NoError(t, err)
		r.Header.Set("X-Forwarded-For", w)
		resp, err := s.client.Do(r)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("X-Forwarded-For %q: %v %v", w, resp, err)
		}
		resp.Body.Close()
		used++
	}
	for _, w := range []string{"192.0.2.9", "192.0.2.9:1", " 192.0.2.9", "[::ffff:192.0.2.9]:1",
		"64:ff9b::192.0.2.9", "2002:c000:209::1"} {
		expect.Equal(t, s.check(fmt.Sprintf(`{"attributes": {"ip": %q}}`, w)), 403, "a denied address, as %q", w)
	}
	for _, w := range writings {
		expect.Equal(t, s.used("year", url.QueryEscape(w)), used, "usage of %q", w)
	}
	owner := call(200, "GET", s.admin+"/v1/owner?rule=year&key=198.51.100.7", "")
	if have := call(200, "GET",
		s.admin+"/v1/owner?rule=year&key="+url.QueryEscape("198.51.100.7:1"), ""); partitionIn(t,
		have) != partitionIn(t, owner) {
		t.Errorf("owner: have %s, want %s", have, owner)
	}
	call(200, "DELETE", s.admin+"/v1/usage?rule=year&key="+url.QueryEscape("198.51.100.7:4711"), "")
	expect.Equal(t, s.used("year", "198.51.100.7"), 0, "usage after a reset in another notation")
	// Settings written for any notation apply to the address.
	call(200, "PUT", s.admin+"/v1/subjects/ip/"+url.PathEscape("198.51.100.7:80"),
		`{"limits": {"year": [{"limit": 1, "per": "8760h", "algorithm": "fixed-window"}]}}`)
	if first, second := s.check(oneCheck), s.check(`{"attributes": {"ip": "198.51.100.7:81"}}`); first != 200 || second != 429 {
		t.Errorf("with an override of 1: have %d, then %d, want 200 and 429", first, second)
	}
	call(200, "DELETE", s.admin+"/v1/subjects/ip/198.51.100.7", "")
}

func partitionIn(t *testing.T, text string) int {
	t.Helper()
	var owner struct{ Partition int }
	if err := json.Unmarshal([]byte(text), &owner); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return owner.Partition
}

// Replaying a log with ports yields the same as one without.
func TestReplayReadsAddresses(t *testing.T) {
	t.Parallel()
	log := ""
	for i, w := range []string{"198.51.100.7", "198.51.100.7:1234", "[::ffff:198.51.100.7]:80"} {
		log += fmt.Sprintf("%s - - [17/May/2015:10:05:0%d +0000] \"GET / HTTP/1.1\" 200 1\n", w, i)
	}
	log += `{"time": "2015-05-17T10:05:09Z", "attributes": {"ip": " 198.51.100.7:9"}}` + "\n"
	lines := strings.SplitAfter(log, "\n")
	rules := file(t, "rules.yaml", yearRules(1))
	for name, tt := range map[string]struct {
		text            string
		checks, refused int
	}{
		"access log": {strings.Join(lines[:3], ""), 3, 2},
		"JSON":       {lines[3] + strings.ReplaceAll(lines[3], ":9\"", "\""), 2, 1},
	} {
		code, out, errs := tool(t, tt.text, "replay", "--json", "--rules", rules, "-")
		var have struct{ Checks, Refused, Skipped int }
		if err := json.Unmarshal([]byte(out), &have); code != 0 || err != nil {
			t.Fatalf("%s: %d %v %s", name, code, err, errs)
		}
		if have.Checks != tt.checks || have.Refused != tt.refused || have.Skipped != 0 {
			t.Errorf("%s: have %+v, want %d checks, %d refused", name, have, tt.checks, tt.refused)
		}
	}
}
