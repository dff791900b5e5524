package node

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/limiter"
)

func TestRecent(t *testing.T) {
	stats := []limiter.RuleStats{{Rule: "a"}, {Rule: "b"}}
	r := recent{ruleStats: func() []limiter.RuleStats { return stats }}
	stats[0].Checks[limiter.DecisionAllowed][limiter.ByOwner] = 3
	r.takeReading()
	stats[0].Checks[limiter.DecisionRefused][limiter.ByOwner] = 2
	stats[1].Checks[limiter.DecisionAllowed][limiter.ByLease] = 7
	if have := r.decidedBy(); !maps.Equal(have, map[string]int64{"owner": 5, "lease": 7}) {
		t.Errorf("in the first seconds: have %v", have)
	}
	for range recentSeconds - 1 {
		r.takeReading()
	}
	if have := r.decidedBy(); !maps.Equal(have, map[string]int64{"owner": 2, "lease": 7}) {
		t.Errorf("since the first reading: have %v", have)
	}
	r.takeReading()
	if have := r.decidedBy(); len(have) != 0 {
		t.Errorf("without checks: have %v", have)
	}
	stats = stats[:1]
	if have := r.decidedBy(); len(have) != 0 {
		t.Errorf("after a rule was removed: have %v", have)
	}
}

// TestRefusalsAreLogged: each rule, the deny list and the default log at most one refusal per second, with the number of
// those left out.
func TestRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, refusalsAreLogged)
}

func refusalsAreLogged(t *testing.T) {
	log := &process.Output{}
	n := startReady(t, Config{
		Logger: slog.New(slog.NewTextHandler(log, nil)),
		Rules: []byte("version: 1\ndefault: deny\nlists: {deny: [{ip: 192.0.2.0/24}]}\n" +
			"rules: [{name: year, key: [k], limits: [{limit: 3, per: 366d, algorithm: fixed-window}]}]\n"),
	})
	began, refused := time.Now(), 0
	ask := func(q client.Request) {
		d, err := n.Check(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			refused++
		}
	}
	lines := func(with string) (n int, leftOut int) {
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, with) {
				more := 0
				if _, err := fmt.Sscanf(line[strings.Index(line, "left_out="):], "left_out=%d", &more); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				n, leftOut = n+1, leftOut+more
			}
		}
		return n, leftOut
	}
	const rule = `level=INFO msg=refused rule=year subject=a\n\x1b[1mb used=3 limit=3 unit=requests retry=`
	process.Eventually(t, "the rule has logged three lines", func() bool {
		for range 100 {
			ask(client.Request{Rule: "year", Key: []string{"a\n\x1b[1mb"}})
		}
		have, _ := lines(rule)
		return have == 3
	})
	if took := time.Since(began); took < time.Second { // not two: on a busy machine the first line may be late
		t.Errorf("three lines within %v, want at least 1 s", took)
	}
	process.Eventually(t, "all refusals are logged or counted", func() bool {
		have, leftOut := lines(rule)
		return have+leftOut == refused
	})
	ask(client.Request{Attributes: map[string]string{"ip": "192.0.2.7"}})
	ask(client.Request{Attributes: map[string]string{"x": "y"}})
	process.Eventually(t, "the deny list and the default have logged a line", func() bool {
		list, _ := lines(`level=INFO msg="denied by the deny list" subject="ip=192.0.2.7" left_out=0`)
		byDefault, _ := lines(`level=INFO msg="denied by default" subject="" left_out=0`)
		return list == 1 && byDefault == 1
	})
}
