package limiter

import (
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

func TestRefusals(t *testing.T) {
	l := open(t, `
default: deny
lists: {deny: [{ip: 192.0.2.0/24}]}
rules:
  - {name: two, key: [user, path], limits: [{limit: 5, per: 1m, algorithm: fixed-window}, {limit: 3, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: s, key: [quiet], shadow: true, limits: [{limit: 1, per: 1m}]}`)
	user := Query{Attributes: attrs("user", "a", "path", "/x", "other", "secret")}
	for range 5 {
		check(t, l, epoch, user)
	}
	check(t, l, epoch, Query{Attributes: attrs("quiet", "q"), Costs: []UnitCost{{"requests", 9}}})
	peek := user
	peek.Mode = counters.PeekMode
	check(t, l, epoch, peek)
	if have := l.Refusals(); len(have) != 0 {
		t.Fatalf("nothing was refused: have %+v", have[0])
	}
	for range 100 {
		check(t, l, epoch, user)
	}
	check(t, l, epoch, Query{Attributes: attrs("user", "b", "path", "/x")}) // allowed
	for range 3 {
		check(t, l, epoch, Query{Attributes: attrs("ip", "192.0.2.9", "user", "u", "other", "secret")})
	}
	check(t, l, epoch, Query{Attributes: attrs("other", "secret", "user", "z")})
	have := l.Refusals()
	want := []Refusal{
		{DecidedBy: ByOwner, Rule: "two", Subject: "a, /x", Limit: 5, Used: 5, Unit: "requests", RetryAfter: time.Minute, More: 99},
		{DecidedBy: ByList, Subject: "ip=192.0.2.9, user=u", More: 2},
		{DecidedBy: ByNone, Subject: "user=z"},
	}
	if len(have) != len(want) {
		t.Fatalf("have %d, want %d", len(have), len(want))
	}
	for i := range want {
		if *have[i] != want[i] {
			t.Errorf("have %+v\nwant %+v", *have[i], want[i])
		}
	}
	if have := l.Refusals(); len(have) != 0 {
		t.Errorf("once more: have %+v", have[0])
	}
	// A new version of the rules keeps the count. A Refusal names the tightest limit.
	check(t, l, epoch, user)
	l.SetRules(compile(t, 2, "version: 1\n"+`
rules: [{name: two, key: [user, path], limits: [{limit: 5, per: 1m, algorithm: fixed-window}, {limit: 3, per: 1h, algorithm: fixed-window, unit: tokens}]}]`))
	check(t, l, epoch, Query{Rule: "two", Key: []string{"c", "/"}, ByKey: true, Costs: []UnitCost{{"tokens", 4}}})
	have = l.Refusals()
	if len(have) != 1 || have[0].Subject != "a, /x" || have[0].More != 1 {
		t.Errorf("have %d: %+v", len(have), have[0])
	}
	check(t, l, epoch, Query{Rule: "two", Key: []string{"c", "/"}, ByKey: true, Costs: []UnitCost{{"tokens", 4}}})
	if have = l.Refusals(); len(have) != 1 || have[0].Subject != "c, /" || have[0].Unit != "tokens" || have[0].RetryAfter != algorithms.Never || have[0].Used != 0 {
		t.Errorf("have %d: %+v", len(have), have[0])
	}
}

// TestRefusalsAreBounded: whatever a caller sends, the text is short, printable and on one line, and only the first refusal
// allocates.
func TestRefusalsAreBounded(t *testing.T) {
	l := open(t, `
default: deny
rules: [{name: r, key: [a, b, c, d, e, f], limits: [{limit: 1, per: 1m, algorithm: fixed-window}]}]`)
	for _, value := range []string{
		strings.Repeat("é", 512), strings.Repeat("\n", 1024), strings.Repeat("\xff", 1024), "\x1b[31m\r\n\u202e\u2028", strings.Repeat(`"\`, 500), strings.Repeat("𐍈", 256),
	} {
		q := Query{Rule: "r", Key: []string{value, value, value, value, value, value}, ByKey: true}
		byDefault := Query{Attributes: attrs("a", value, "b", value, "c", value, "d", value, "e", value)}
		for range 2 {
			check(t, l, epoch, q)
			check(t, l, epoch, byDefault)
		}
		all := l.Refusals()
		if len(all) != 2 {
			t.Fatalf("have %d", len(all))
		}
		for _, r := range all {
			if len(r.Subject) > 2<<10 || !utf8.ValidString(r.Subject) || strings.ContainsAny(r.Subject, "\n\r\x1b\u202e\u2028") || r.Subject == "" {
				t.Errorf("%.20q: have %d bytes: %q", value, len(r.Subject), r.Subject)
			}
		}
	}
	q, a := Query{Rule: "r", Key: []string{"1", "2", "3", "4", "5", "6"}, ByKey: true}, &Answer{}
	for _, q := range []Query{q, {Attributes: attrs("a", "x")}} {
		if n := testing.AllocsPerRun(1000, func() { _ = l.CheckAt(epoch, &q, a) }); n > 0 || a.Allowed {
			t.Errorf("have %v allocations, allowed %t", n, a.Allowed)
		}
	}
}

// TestRefusalsAreAllCounted: no refusal is lost while other goroutines call Refusals.
func TestRefusalsAreAllCounted(t *testing.T) {
	l := open(t, `rules: [{name: r, key: [k], limits: [{limit: 1, per: 1m, algorithm: fixed-window}]}]`)
	const workers, each = 4, 5000
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			q, a := Query{Rule: "r", Key: []string{"k"}, ByKey: true}, &Answer{}
			for range each {
				_ = l.CheckAt(epoch, &q, a)
			}
		})
	}
	counted := int64(0)
	count := func() {
		for _, r := range l.Refusals() {
			counted += 1 + r.More
		}
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for running := true; running; count() {
		select {
		case <-done:
			running = false
		default:
		}
	}
	check(t, l, epoch, Query{Rule: "r", Key: []string{"k"}, ByKey: true})
	count()
	if counted != workers*each { // the first check was allowed
		t.Errorf("have %d, want %d", counted, workers*each)
	}
}
