package regions

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestRegionsFindEachOther(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		began := time.Now()
		w.startRegions(2)
		if have := time.Since(began); have > 5*time.Second {
			t.Errorf("found after %v", have)
		}
		for _, n := range w.nodes {
			var want []Region
			for r := range 3 {
				if r != n.region {
					want = append(want,
						Region{Name: regionName(r), Primary: r == 1, Follows: "eu", Reachable: true, Members: 2})
				}
			}
			w.until(10*time.Second, "all know all of the others", func() bool {
				have := n.pool.Load().Regions()
				for i := range have {
					if have[i].Address == "" {
						return false
					}
					have[i].Address = "" // of whichever entry node
				}
				return slices.Equal(have, want)
			})
			for r := range 3 {
				if r == n.region {
					continue
				}
				first, err := n.call(r, "x", time.Second)
				if err != nil {
					t.Fatalf("%v calls %s: %v", n, regionName(r), err)
				}
				for range 5 {
					if by, err := n.call(r, "x", time.Second); err != nil || by != first {
						t.Errorf("%v calls %s: have %s, %v, want %s again", n, regionName(r), by, err, first)
					}
				}
			}
			if _, err := n.call(n.region, "own", time.Second); !isAway(err) {
				t.Errorf("a call to the own region: have %v", err)
			}
		}
		n := w.node(0, 1)
		if _, err := n.pool.Load().Call(t.Context(), "eu", methodFail, []byte("no")); err == nil ||
			err.Error() != (&peer.RemoteError{Code: 7, Detail: "no"}).Error() {
			t.Errorf("have %v", err)
		}
		if _, err := n.pool.Load().Call(t.Context(), "eu", methodEcho,
			make([]byte, 17<<20)); !errors.Is(err, peer.ErrTooLarge) {
			t.Errorf("have %v, want %v", err, peer.ErrTooLarge)
		}
		if _, err := n.call(3, "nobody", time.Second); !isAway(err) {
			t.Errorf("an unknown region: have %v", err)
		}
	})
}

// TestPassedOn: nodes that are not entry nodes also call other regions and get answers.
func TestPassedOn(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		for r := range 3 {
			for i := 2; i <= 3; i++ {
				w.start(r, i)
			}
		}
		w.until(5*time.Second, "those that are no entry nodes know", w.allReachable)
		for _, n := range w.nodes {
			for r := range 3 {
				if r == n.region {
					continue
				}
				body := fmt.Sprintf("%v to %d", n, r)
				if by, err := n.call(r, body, time.Second); err != nil ||
					by != regionName(r)+"-1" || w.timesServed(body) != 1 {
					t.Errorf("%s: have %s, %v, served %d times", body, by, err, w.timesServed(body))
				}
			}
		}
		n, entry := w.node(2, 3), w.node(2, 1)
		w.until(15*time.Second, "both see the same", func() bool {
			have, want := n.pool.Load().Regions(), entry.pool.Load().Regions()
			return len(want) == 2 && want[0].Members == 3 && slices.Equal(have, want)
		})
		if _, err := n.pool.Load().Call(t.Context(), "eu", methodFail, []byte("no")); err == nil ||
			err.Error() != (&peer.RemoteError{Code: 7, Detail: "no"}).Error() {
			t.Errorf("have %v", err)
		}
		if _, err := n.pool.Load().Call(t.Context(), "eu", methodEcho,
			make([]byte, 17<<20)); !errors.Is(err, peer.ErrTooLarge) {
			t.Errorf("have %v, want %v", err, peer.ErrTooLarge)
		}
		if reply, err := n.pool.Load().Call(t.Context(), "eu", methodEcho,
			make([]byte, 9<<20)); err != nil || len(reply) < 9<<20 {
			t.Errorf("have %d bytes, %v", len(reply), err)
		}
		began := time.Now()
		ended := make(chan error, 1)
		n.pool.Load().Go("eu", methodNever, nil, 700*time.Millisecond, func(_ []byte, err error) { ended <- err })
		if err := <-ended; !errors.Is(err, peer.ErrTimeout) || time.Since(began) > 800*time.Millisecond {
			t.Errorf("have %v after %v", err, time.Since(began))
		}
		if _, err := n.call(3, "nobody", time.Second); !isAway(err) {
			t.Errorf("an unknown region: have %v", err)
		}
		w.kill(entry)
		if _, err := n.call(1, "nobody passes it on", time.Second); !isAway(err) {
			t.Errorf("have %v", err)
		}
		w.until(4*time.Second, "it says so", func() bool { return !n.pool.Load().Reachable("eu") })
		// Another node takes its place.
		w.node(2, 2).setEntry(true)
		have := w.until(5*time.Second, "calls go on",
			func() bool { _, err := n.call(1, "again", time.Second); return err == nil })
		t.Logf("calls work again after %v", have)
	})
}

// TestEntryNodeKilled kills the called entry node repeatedly. Another one
// serves the calls within 2 s.
func TestEntryNodeKilled(t *testing.T) {
	for name, end := range map[string]func(w *world, n *node){
		"killed": func(w *world, n *node) { w.kill(n) },
		"power": func(w *world, n *node) {
			w.net.Isolate(n.ip)
			w.forget(n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				w.startRegions(2)
				plain := w.start(0, 3)
				w.until(5*time.Second, "all know all", w.allReachable)
				for _, caller := range []*node{w.node(0, 1), plain} {
					by, err := caller.call(1, "first", time.Second)
					expect.NoError(t, err)
					var dead *node
					for _, n := range w.nodes {
						if n.String() == by {
							dead = n
						}
					}
					end(w, dead)
					began := time.Now()
					for i := 0; ; i++ {
						body := fmt.Sprintf("%v-%d", caller, i)
						if _, err = caller.call(1, body, 500*time.Millisecond); err == nil {
							break
						}
						if n := w.timesServed(body); n > 1 {
							t.Errorf("%s was served %d times", body, n)
						}
						if time.Since(began) > 3*time.Second {
							t.Fatalf("%v: have %v after %v", caller, err, time.Since(began))
						}
						time.Sleep(20 * time.Millisecond)
					}
					have := time.Since(began)
					if have > 1200*time.Millisecond {
						t.Errorf("%v is answered again after %v", caller, have)
					}
					t.Logf("%v is answered again after %v", caller, have)
					if name == "power" { // a node without power notifies no other node
						w.net.Crash(dead.ip)
						dead.close()
					}
					w.net.Rejoin(dead.ip)
					again := w.start(1, dead.i)
					again.setEntry(true)
					time.Sleep(20 * time.Second)
					w.until(10*time.Second, "all know all again", w.allReachable)
				}
			})
		})
	}
}

// TestAllCutAndHealed: calls work again within 2 s after a cut heals, however long it was.
func TestAllCutAndHealed(t *testing.T) {
	cuts := []time.Duration{500 * time.Millisecond, 1900 * time.Millisecond,
		2100 * time.Millisecond, 10 * time.Second, time.Minute}
	if testing.Short() {
		cuts = cuts[1:4]
	}
	for _, long := range cuts {
		t.Run(long.String(), func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				w.startRegions(2)
				w.start(0, 3)
				w.until(5*time.Second, "all know all", w.allReachable)
				w.cutRegions(0, 1)
				w.cutRegions(1, 2)
				w.cutRegions(0, 2)
				time.Sleep(long)
				if long > 3*time.Second {
					for _, n := range w.nodes {
						for _, r := range n.pool.Load().Regions() {
							if r.Reachable {
								t.Errorf("%v still reaches %s", n, r.Name)
							}
						}
						expect.Equal(t, len(n.pool.Load().Regions()), 2, "%v knows other regions", n)
						if _, err := n.call((n.region+1)%3, "cut", time.Second); !isAway(err) {
							t.Errorf("%v: have %v", n, err)
						}
					}
				}
				w.net.HealAll()
				began := time.Now()
				for _, n := range w.nodes {
					for r := range 3 {
						if r == n.region {
							continue
						}
						w.until(2*time.Second-time.Since(began),
							fmt.Sprintf("%v calls %s", n, regionName(r)), func() bool {
								_, err := n.call(r, "healed", 200*time.Millisecond)
								return err == nil
							})
					}
				}
				w.until(3*time.Second, "and says so", w.allReachable)
				t.Logf("after %v", time.Since(began))
			})
		})
	}
}
