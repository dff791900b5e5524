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
	"github.com/rlnode/rlnode/internal/expect"
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

// Refused checks leave no line in the log, unless it is asked for. A sample has
// one in a minute of each rule, the deny list and the default, with the number
// of those left out.
func TestRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		log     RefusalLog
		minutes int
		want    int
	}{{RefusalsOff, 2, 0}, {RefusalsSampled, 2, 2}, {RefusalsAll, 1, 100 + 1 - 3}} {
		t.Run("log="+string(test.log), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { refusalsAreLogged(t, test.log, test.minutes, test.want) })
		})
	}
}

// refusalsAreLogged makes 100 checks of a rule that admits three, spread over minutes.
func refusalsAreLogged(t *testing.T, which RefusalLog, minutes, want int) {
	const refused = `level=INFO msg=refused rule=year subject=a\n\x1b[1mb used=3 limit=3 unit=requests retry=`
	log := &process.Output{}
	n := startReady(t, Config{
		RefusalLog: which,
		Logger:     slog.New(slog.NewTextHandler(log, nil)),
		Rules: []byte("version: 1\ndefault: deny\nlists: {deny: [{ip: 192.0.2.0/24}]}\n" +
			"rules: [{name: year, key: [k], limits: [{limit: 3, per: 366d, algorithm: fixed-window}]}]\n"),
	})
	ask := func(q client.Request) {
		_, err := n.Check(t.Context(), q)
		expect.NoError(t, err)
	}
	for range 100 {
		ask(client.Request{Rule: "year", Key: []string{"a\n\x1b[1mb"}})
		time.Sleep(time.Duration(minutes) * time.Minute / 99)
	}
	ask(client.Request{Attributes: map[string]string{"ip": "192.0.2.7"}})
	ask(client.Request{Attributes: map[string]string{"x": "y"}})
	ask(client.Request{Rule: "year", Key: []string{"a\n\x1b[1mb"}})
	synctest.Wait()

	lines := map[string]int{}
	leftOut := 0
	for line := range strings.Lines(log.String()) {
		for _, with := range []string{
			refused,
			`level=INFO msg="denied by the deny list" subject="ip=192.0.2.7" left_out=0`,
			`level=INFO msg="denied by default" subject="" left_out=0`,
		} {
			if !strings.Contains(line, with) {
				continue
			}
			lines[with]++
			more := 0
			_, err := fmt.Sscanf(line[strings.Index(line, "left_out="):], "left_out=%d", &more)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			leftOut += more
		}
	}
	if which == RefusalsOff {
		if len(lines) > 0 {
			t.Errorf("got %v, want no line", lines)
		}
		return
	}
	if len(lines) != 3 {
		t.Errorf("got %v, want lines by the rule, the list and the default", lines)
	}
	byRule := lines[refused]
	if byRule != want || which == RefusalsAll && leftOut > 0 || which == RefusalsSampled && leftOut == 0 {
		t.Errorf("got %d lines by the rule and %d left out, want %d", byRule, leftOut, want)
	}
}
