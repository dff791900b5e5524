package limiter

import (
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// A subject that was keyed by one of several attributes is counted, shown and reset as such.
func TestAlternatives(t *testing.T) {
	l := open(t, `
attributes: {user: {fold: [lower]}, ip: {}}
rules: [{name: caller, key: [[user, ip]], limits: [{limit: 2, per: 365d, algorithm: token-bucket}]}]`)
	refused := 0
	for _, list := range [][]string{{"user", "Ann", "ip", "192.0.2.7"}, {"user", "ANN"},
		{"user", "ann", "ip", "192.0.2.9"}, {"ip", "192.0.2.7"}, {"other", "x"}} {
		var a Answer
		expect.NoError(t, l.Check(&Query{Attributes: attrs(list...)}, &a))
		if !a.Allowed {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("got %d refusals, want 1: the three spellings of ann are one subject, and the address is another", refused)
	}
	for key, want := range map[string]int64{"user=ann": 2, "user=Ann": 2, "Ann": 2,
		"ip=192.0.2.7": 1, "192.0.2.7": 1, "user=192.0.2.7": 0} {
		q := byKey("caller", key)
		if u, err := l.Usage(&q); err != nil || u.Limits[0].Used != want || !strings.Contains(u.Key[0], "=") {
			t.Errorf("usage of %s: got %+v %v, want %d used", key, u, err, want)
		}
	}
	if top := l.mostRefused(10); len(top) != 1 || !slices.Equal(top[0].Key, []string{"user=ann"}) {
		t.Errorf("top: got %+v, want user=ann", top)
	}
}

func TestUnknownNamesAreCounted(t *testing.T) {
	l := open(t, "attributes: [user]\nrules: [{name: a, key: [user], limits: [{limit: 2, per: 1h}]}]")
	var a Answer
	for _, q := range []Query{byKey("b", "x"), {Rule: "b", Attributes: attrs("user", "x")}} {
		if err := l.Check(&q, &a); err == nil {
			t.Errorf("a check of %q: got no error", q.Rule)
		}
	}
	q := byKey("b", "x")
	if _, err := l.Usage(&q); err == nil {
		t.Error("usage of b: got no error")
	}
	check(t, l, epoch, Query{Attributes: attrs("user", "x", "usre", "x")})
	if unknown, undeclared := l.figure("unknown_rule_total"), l.figure("undeclared_attributes_total"); unknown != 3 || undeclared != 1 {
		t.Errorf("got %d unknown rules and %d undeclared attributes, want 3 and 1", unknown, undeclared)
	}
}
