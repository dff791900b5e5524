package limiter

import (
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// unread returns what a limiter has reported to its log and nobody has read yet.
func unread(list <-chan *Refusal) (all []*Refusal) {
	for len(list) > 0 {
		all = append(all, <-list)
	}
	return all
}

func TestRefusals(t *testing.T) { synctest.Test(t, testRefusals) }

func testRefusals(t *testing.T) {
	l := open(t, `
default: deny
lists: {deny: [{ip: 192.0.2.0/24}]}
rules:
  - {name: two, key: [user, path], limits: [{limit: 5, per: 1m, algorithm: fixed-window}, {limit: 3, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: s, key: [quiet], shadow: true, limits: [{limit: 1, per: 1m}]}`)
	list := l.FollowRefusals(time.Minute)
	user := Query{Attributes: attrs("user", "a", "path", "/x", "other", "secret")}
	for range 5 {
		check(t, l, epoch, user)
	}
	check(t, l, epoch, Query{Attributes: attrs("quiet", "q"), Costs: []UnitCost{{"requests", 9}}})
	peek := user
	peek.Mode = counters.PeekMode
	check(t, l, epoch, peek)
	if have := unread(list); len(have) != 0 {
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
	have := unread(list)
	want := []Refusal{
		{DecidedBy: ByOwner, Rule: "two", Subject: "a, /x", Limit: 5, Used: 5, Unit: "requests",
			RetryAfter: time.Minute},
		{DecidedBy: ByList, Subject: "ip=192.0.2.9, user=u"},
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
	if have := unread(list); len(have) != 0 {
		t.Errorf("once more: have %+v", have[0])
	}
	// A new version of the rules keeps the count. A Refusal names the tightest limit.
	l.SetRules(compile(t, 2, "version: 1\n"+`
rules: [{name: two, key: [user, path], limits: [{limit: 5, per: 1m, algorithm: fixed-window}, {limit: 3, per: 1h, algorithm: fixed-window, unit: tokens}]}]`))
	time.Sleep(time.Minute)
	for range 2 {
		check(t, l, epoch, Query{Rule: "two", Key: []string{"c", "/"}, ByKey: true, Costs: []UnitCost{{"tokens", 4}}})
	}
	have = unread(list)
	if len(have) != 1 || have[0].Subject != "c, /" || have[0].Unit != "tokens" ||
		have[0].RetryAfter != algorithms.Never || have[0].Used != 0 || have[0].More != 99 {
		t.Errorf("got %d: %+v", len(have), have[0])
	}
}

// TestRefusalsAreBounded: whatever a caller sends, the text is short, printable
// and on one line, and a refusal that is not logged allocates nothing.
func TestRefusalsAreBounded(t *testing.T) {
	l := open(t, `
default: deny
rules: [{name: r, key: [a, b, c, d, e, f], limits: [{limit: 1, per: 1m, algorithm: fixed-window}]}]`)
	list := l.FollowRefusals(time.Nanosecond)
	for _, value := range []string{
		strings.Repeat("é", 512), strings.Repeat("\n", 1024), strings.Repeat("\xff", 1024),
		"\x1b[31m\r\n\u202e\u2028", strings.Repeat(`"\`, 500), strings.Repeat("𐍈", 256),
	} {
		q := Query{Rule: "r", Key: []string{value, value, value, value, value, value}, ByKey: true}
		byDefault := Query{Attributes: attrs("a", value, "b", value, "c", value, "d", value, "e", value)}
		check(t, l, epoch, q) // admitted
		check(t, l, epoch, q)
		check(t, l, epoch, byDefault)
		all := unread(list)
		if len(all) != 2 {
			t.Fatalf("got %d, want 2", len(all))
		}
		for _, r := range all {
			if len(r.Subject) > 2<<10 || !utf8.ValidString(r.Subject) ||
				strings.ContainsAny(r.Subject, "\n\r\x1b\u202e\u2028") || r.Subject == "" {
				t.Errorf("%.20q: have %d bytes: %q", value, len(r.Subject), r.Subject)
			}
		}
	}
	l.FollowRefusals(time.Hour)
	q, a := Query{Rule: "r", Key: []string{"1", "2", "3", "4", "5", "6"}, ByKey: true}, &Answer{}
	for _, q := range []Query{q, {Attributes: attrs("a", "x")}} {
		if n := testing.AllocsPerRun(1000, func() { _ = l.CheckAt(epoch, &q, a) }); n > 0 || a.Allowed {
			t.Errorf("have %v allocations, allowed %t", n, a.Allowed)
		}
	}
}

// A log of every refusal takes each one, whatever another check did meanwhile.
func TestEveryRefusalIsLogged(t *testing.T) {
	l := open(t, `rules: [{name: r, key: [k], limits: [{limit: 1, per: 1m, algorithm: fixed-window}]}]`)
	l.FollowRefusals(0)
	var f refusalThrottle
	f.next.Store(math.MaxInt64)
	if !l.refusalLog.admits(&f) || f.more.Load() != 0 {
		t.Errorf("a refusal is only counted (%d)", f.more.Load())
	}
}

// No refusal is lost while the log is slower than checks.
func TestRefusalsAreAllCounted(t *testing.T) {
	l := open(t, `rules: [{name: r, key: [k], limits: [{limit: 1, per: 1m, algorithm: fixed-window}]}]`)
	list := l.FollowRefusals(0)
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
	all.Wait()

	counted := int64(0)
	for _, r := range unread(list) {
		counted += 1 + r.More
	}
	check(t, l, epoch, Query{Rule: "r", Key: []string{"k"}, ByKey: true})
	counted += 1 + (<-list).More
	if counted != workers*each { // the first check was allowed
		t.Errorf("got %d, want %d", counted, workers*each)
	}
}
