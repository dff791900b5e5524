package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
)

const policyRules = `version: 1
rules:
  - {name: login, key: [k], limits: [{limit: 5, per: 5s, algorithm: sliding-window-log}], block: 40s}
  - {name: slow, key: [k], on_limit: delay, max_delay: 2h, limits: [{limit: 4, per: 1h, algorithm: token-bucket, burst: 1}]}
  - {name: log, key: [k], on_limit: delay, max_delay: 2h, limits: [{limit: 4, per: 1h, algorithm: sliding-window-log}]}
  - {name: window, key: [k], on_limit: delay, max_delay: 24h, limits: [{limit: 4, per: 1h, algorithm: sliding-window}]}
`

// checkBlocked checks how long each node reports a subject as blocked.
func (p *testCluster) checkBlocked(what, key string, least, most time.Duration) {
	p.t.Helper()
	for _, v := range p.nodes {
		if !v.ready.Load() {
			continue
		}
		var a limiter.Answer
		if ok, err := v.check("login", key, &a); ok || err != nil || !a.Limits[0].Blocked ||
			a.Limits[0].RetryAfter < least || a.Limits[0].RetryAfter > most {
			p.t.Errorf("%s: %s: %v, %v, %+v", what, v.settings.Name, ok, err, a.Limits)
		}
		if u, err := v.node.limiter.Usage(&limiter.Query{Rule: "login",
			Key: []string{key}}); err != nil || u.Blocked < least || u.Blocked > most {
			p.t.Errorf("%s: %s: usage %+v, %v", what, v.settings.Name, u, err)
		}
	}
}

// queueTimes returns how long each rule's next check would wait.
func (p *testCluster) queueTimes(v *testNode, key string) map[string]time.Duration {
	p.t.Helper()
	have := map[string]time.Duration{}
	for _, rule := range []string{"slow", "log", "window"} {
		var a limiter.Answer
		q := limiter.Query{Rule: rule, Key: []string{key}, ByKey: true, Mode: counters.PeekMode}
		if err := v.node.limiter.Check(&q, &a); err != nil || !a.Allowed {
			p.t.Errorf("%s: %v, %+v", rule, err, a.Limits)
		}
		have[rule] = a.Delay()
	}
	return have
}

// A block, and queues ahead of the clock, survive their owner's death, its
// return and restarts of all nodes.
func TestG5_PoliciesInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, policyRules)
		owner, asked := p.nodes[1], p.nodes[0]
		keys := map[string]string{"login": p.keyOwnedBy("login", owner, nil, 0)}
		for _, rule := range []string{"slow", "log", "window"} {
			keys[rule] = p.keyOwnedBy(rule, owner, nil, 0)
		}
		begun := time.Now()
		if n, by, _ := asked.ask("login", keys["login"], 6); n != 5 || by[limiter.ByForward] != 6 {
			t.Errorf("%d admitted, by %v", n, by)
		}
		waits := map[string]time.Duration{}
		for _, rule := range []string{"slow", "log", "window"} {
			for range 7 {
				var a limiter.Answer
				if ok, err := asked.check(rule, keys[rule], &a); !ok || err != nil {
					t.Errorf("%s: %v, %+v", rule, err, a.Limits)
				}
			}
			waits[rule] = p.queueTimes(asked, keys[rule])[rule]
			if waits[rule] < 20*time.Minute {
				t.Errorf("%s: the next waits %s", rule, waits[rule])
			}
		}
		same := func(what string) {
			t.Helper()
			gone := time.Since(begun)
			p.checkBlocked(what, keys["login"], 40*time.Second-gone-2*time.Second, 40*time.Second-gone+2*time.Second)
			for rule, wait := range waits {
				for _, v := range p.nodes {
					if have := p.queueTimes(v, keys[rule])[rule]; v.ready.Load() &&
						(have-(wait-gone)).Abs() > 2*time.Second {
						t.Errorf("%s: %s at %s waits %s, want %s", what, rule, v.settings.Name, have, wait-gone)
					}
				}
			}
		}
		same("before any fault")
		time.Sleep(time.Second) // until the standby has it
		owner.endProcess(false)
		time.Sleep(6 * time.Second)
		p.checkBlocked("killed", keys["login"], 25*time.Second, 40*time.Second)
		owner.startProcess()
		p.awaitWhole()
		same("back")
		p.restartAll()
		same("restarted")
		if n, _, _ := asked.ask("login", keys["login"], 1); n != 0 {
			t.Error("admitted while blocked")
		}
		time.Sleep(40*time.Second - time.Since(begun) + time.Second)
		for i, v := range p.nodes {
			if n, _, _ := v.ask("login", keys["login"], 1); n != 1 {
				t.Errorf("node %d: refused after the end of the block", i)
			}
		}
	})
}
