package peer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// setClock is an option: the wall clock is ahead by what *by says.
func setClock(by *atomic.Int64) option {
	return func(c *Config, _ *node) {
		c.Wall = func() int64 { return time.Now().UnixNano() + by.Load() }
	}
}

// Nodes know how far the clocks of others are ahead, also in another region,
// and soon notice when one is set, their own included.
func TestClocks(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		var shifts [3]atomic.Int64 // in nanoseconds; nodes read them while the test goes on
		a := w.node(1, inRegion("eu", 1, nil), setClock(&shifts[0]))
		b := w.node(2, inRegion("eu", 1, nil), setClock(&shifts[1]))
		c := w.node(3, inRegion("us", 2, nil), setClock(&shifts[2]))
		a.knows(b)
		b.knows(a)
		a.knowsFar(c)
		w.connected(a, b)
		w.connected(a, c)
		expect := func(what string, ofB, ofC time.Duration) {
			t.Helper()
			time.Sleep(12 * time.Second)
			synctest.Wait()
			clocks := a.Clocks()
			if len(clocks) != 2 || clocks[0].Region != "" || clocks[1].Region != "us" {
				t.Fatalf("%s: got %+v", what, clocks)
			}
			if (clocks[0].Ahead-ofB).Abs() > 50*time.Millisecond || (clocks[1].Ahead-ofC).Abs() > 50*time.Millisecond {
				t.Errorf("%s: got %v and %v ahead, want %v and %v", what, clocks[0].Ahead, clocks[1].Ahead, ofB, ofC)
			}
		}
		expect("all agree", 0, 0)
		shifts[1].Store(int64(10 * time.Minute))
		shifts[2].Store(-int64(3 * time.Second))
		expect("others are set", 10*time.Minute, -3*time.Second)
		shifts[0].Store(int64(time.Hour))
		expect("this one is set", 10*time.Minute-time.Hour, -3*time.Second-time.Hour)
		b.close(t)
		time.Sleep(time.Minute)
		if clocks := a.Clocks(); len(clocks) != 1 {
			t.Errorf("a node has gone: got %+v", clocks)
		}
	})
}

// A round trip that took long, or in which this node's clock was set or its
// process did not run, proves nothing. The shortest of the last eight counts.
func TestClockSamples(t *testing.T) {
	var c clocks
	at := func(boot, shift time.Duration) bothClocks {
		return bothClocks{wall: time.Hour + boot + shift, boot: boot}
	}
	c.begin(at(0, 0), nil)
	id := nodeID(1)
	took := func(boot, roundTrip, remoteAhead time.Duration) {
		received := at(boot+roundTrip, 0)
		c.note(id, "", at(boot, 0), received, received.wall-roundTrip/2+remoteAhead)
	}
	expect := func(what string, want time.Duration) {
		t.Helper()
		expect.Equal(t, c.remotes[id].best().ahead, want, "%s", what)
	}
	took(time.Second, 80*time.Millisecond, 40*time.Millisecond)
	expect("one", 40*time.Millisecond)
	took(2*time.Second, 2*time.Millisecond, time.Millisecond)
	expect("a shorter one", time.Millisecond)
	took(3*time.Second, 101*time.Millisecond, time.Hour)                    // slow
	took(4*time.Second, -time.Millisecond, time.Hour)                       // impossible
	c.note(id, "", at(5*time.Second, 0), at(5*time.Second, time.Minute), 0) // the clock was set in between
	expect("what proves nothing", time.Millisecond)
	for i := range clockSamples {
		took(time.Duration(6+i)*time.Second, 5*time.Millisecond, 3*time.Millisecond)
	}
	expect("after eight others", 3*time.Millisecond)
	c.begin(at(20*time.Second, time.Minute), nil)
	if len(c.remotes) != 0 {
		t.Errorf("this node's clock was set: got %v", c.remotes)
	}
}
