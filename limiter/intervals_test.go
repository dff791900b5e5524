package limiter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/limiter/top"
)

// TestTopRecent: Top reports the refusals of the last five minutes beside those
// since the process started.
func TestTopRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1440h}]}")
		refuse := func(key string, times int) {
			for i := range times {
				w.nodes[i%3].check(byKey("r", key))
			}
		}
		expect := func(what string, want ...top.Subject) {
			t.Helper()
			have, nodes := w.nodes[0].Top(top.Options{Recent: true, N: 5})
			ok := len(have) == len(want) && len(nodes) == 3 && nodes[0] == w.nodes[0].id
			for i := range want {
				ok = ok && have[i].Key[0] == want[i].Key[0] && have[i].Recent == want[i].Recent &&
					have[i].Count == want[i].Count
			}
			if !ok {
				t.Errorf("%s: have %+v, want %+v", what, have, want)
			}
		}
		old := func(recent, refused int64) top.Subject {
			return top.Subject{Key: []string{"old"}, Recent: recent, Count: refused}
		}
		late := func(recent, refused int64) top.Subject {
			return top.Subject{Key: []string{"late"}, Recent: recent, Count: refused}
		}
		pass := func(d time.Duration) {
			for range d / time.Second {
				time.Sleep(time.Second)
				for _, n := range w.nodes {
					n.Tick()
				}
			}
		}
		pass(time.Second)
		refuse("old", 31)
		expect("at once", old(30, 30))
		pass(4 * time.Minute)
		expect("after four minutes", old(30, 30))
		refuse("late", 10)
		expect("and of another one", old(30, 30), late(9, 9))
		pass(90 * time.Second)
		refuse("old", 2)
		expect("after five and a half", late(9, 9), old(2, 32))
		pass(6 * time.Minute)
		expect("later", old(0, 32), late(0, 9))
		if list := w.nodes[0].mostRefused(1); len(list) != 1 || list[0].Count != 32 || list[0].Recent != 0 {
			t.Errorf("have %+v", list)
		}
	})
}
