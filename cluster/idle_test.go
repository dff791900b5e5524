package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestIdleFollowersAreLeftAlone: an idle leader sends its followers little but
// heartbeats, and writes nothing. But it sends a new entry at once.
func TestIdleFollowersAreLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		time.Sleep(20 * time.Second)
		leader := w.aLeader()
		index, writes := leader.c.Load().State().Index, w.writes()
		beats := leader.c.Load().transport.Confirmations.NextNumber()
		time.Sleep(time.Minute)
		if w.aLeader() != leader {
			t.Skip("another node leads now")
		}
		if have := leader.c.Load().State().Index; have != index {
			t.Errorf("%d entries in a minute in which nothing happened", have-index)
		}
		expect.Equal(t, w.writes()-writes, 0, "writes of logs in a minute in which nothing happened")
		if have := leader.c.Load().transport.Confirmations.NextNumber() - beats; have < 2*60*8 || have > 2*60*11 {
			t.Errorf("%d heartbeats in a minute to two followers, want some ten a second to each", have)
		}
		for i := range 20 {
			began := time.Now()
			leader.mustWrite(10 + i)
			for _, n := range nodes {
				w.until(time.Second, "the write at "+n.name,
					func() bool { return rulesVersion(n.c.Load().State()) == int64(i+2) })
			}
			if took := time.Since(began); took > 200*time.Millisecond {
				t.Errorf("write %d was applied everywhere after %v", i, took)
			}
			synctest.Wait()
			time.Sleep(1300 * time.Millisecond)
		}
	})
}

// writes counts how many times all nodes have written to their logs.
func (w *world) writes() (n int64) {
	for _, one := range w.nodes {
		one.store.mu.Lock()
		n += one.store.writes
		one.store.mu.Unlock()
	}
	return n
}
