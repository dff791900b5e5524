package limiter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// What a check has taken in advance can be given back: the queue is then as
// before, at the owner, elsewhere, and without a cluster.
func TestQueuePlacesCanBeGivenBack(t *testing.T) {
	const text = `rules:
  - {name: leaky, key: [k], max_delay: 1h, limits: [{limit: 1, per: 1m, algorithm: leaky-bucket, burst: 1000}]}
  - {name: bucket, key: [k], on_limit: delay, max_delay: 1h, limits: [{limit: 1, per: 1m, algorithm: token-bucket}]}
  - {name: window, key: [k], on_limit: delay, max_delay: 1h, limits: [{limit: 1, per: 1m, algorithm: fixed-window}]}
  - {name: sliding, key: [k], on_limit: delay, max_delay: 1h, limits: [{limit: 1, per: 1m}]}
  - {name: log, key: [k], on_limit: delay, max_delay: 1h, limits: [{limit: 1, per: 1m, algorithm: sliding-window-log}]}
  - {name: blocking, key: [k], on_limit: delay, max_delay: 1h, block: 1h, limits: [{limit: 1, per: 1m, algorithm: token-bucket}]}
`
	for _, rule := range []string{"leaky", "bucket", "window", "sliding", "log", "blocking"} {
		t.Run(rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3, text)
				key := w.keyOf(rule, w.nodes[0], nil)
				alone := open(t, text)
				decide := func(at int, q Query) *Answer {
					if at < len(w.nodes) {
						return w.nodes[at].check(q)
					}
					a := &Answer{}
					expect.NoError(t, alone.Check(&q, a))
					return a
				}
				time.Sleep(time.Minute)
				for at := range 4 {
					q := byKey(rule, key)
					q.Waits = true
					if a := decide(at, q); a.QueuePlace() != nil && a.Delay() == 0 {
						t.Error("a check that is not delayed has a place")
					}
					decide(at, q)
					last := decide(at, q)
					p, delay := last.QueuePlace(), last.Delay()
					if p == nil || p.kind == "" {
						t.Fatalf("at %d: no place in a queue of %v", at, delay)
					}
					if again := decide(at, q).QueuePlace(); again.kind != p.kind {
						t.Errorf("at %d: the places of equal checks differ", at)
					} else {
						again.giveBack()
					}
					p.giveBack()
					synctest.Wait()
					longest := delay
					if rule == "sliding" {
						longest += time.Minute // it knows only how many wait for the last window
					}
					if have := decide(at, q).Delay(); have < delay || have > longest {
						t.Errorf("at %d: have a delay of %v after the last place of %v was given back", at, have, delay)
					}
				}
			})
		})
	}
}
