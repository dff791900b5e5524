package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

var threeRegions = []string{"eu", "ap", "us"}

func TestRegionsFollow(t *testing.T) {
	regionBubble(t, 2, threeRegions, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 3) // the first, and one for each region that has joined
		w.recorded(15*time.Second, 3)
		for _, n := range w.nodes {
			if have := n.c.Load().State().Regions; !slices.Equal(have.Committed,
				[]string{"ap", "eu", "us"}) || have.Primary != "eu" {
				t.Errorf("%s: have primary %q and %v", n.name, have.Primary, have.Committed)
			}
		}
		w.of("eu")[1].mustWrite(7)
		w.agree(5*time.Second, 4)
		w.recorded(10*time.Second, 4)
		for _, n := range w.nodes {
			f := n.c.Load().config.OtherRegions.(*far)
			f.mu.Lock()
			if !f.entry || f.members != 2 {
				t.Errorf("%s: have entry %v, %d members", n.name, f.entry, f.members)
			}
			f.mu.Unlock()
		}
	})
}

// A node that loses the lead while it takes in another region's call answers with
// an error, so that the caller asks the next leader.
func TestFollowWithoutTheLead(t *testing.T) {
	regionBubble(t, 2, []string{"eu", "ap"}, func(t *testing.T, w *world, _ *farNet) {
		w.startAll()
		w.agree(15*time.Second, 2) // the first, and one for the region that has joined

		leader := w.aLeaderOf("eu")
		for _, n := range w.of("eu") {
			sr := n.c.Load().sharedRules
			s := sr.State()
			err := sr.checkFollow(&followRequest{Region: "ap", Level: s.Level}, s)
			if n == leader {
				expect.NoError(t, err)
			} else {
				expect.ErrorIs(t, err, ErrLeaderUnavailable, "the error of %s, which does not lead", n.name)
			}
		}
	})
}

func TestWriteInAnyRegion(t *testing.T) {
	regionBubble(t, 3, threeRegions, func(t *testing.T, w *world, _ *farNet) {
		w.startAll()
		w.agree(15*time.Second, 3)
		for i, n := range w.nodes {
			version := int64(4 + i)
			begun := time.Now()
			if have := n.mustWrite(10 + i); have != version {
				t.Fatalf("write through %s: have version %d, want %d", n.name, have, version)
			}
			if set := n.rules.Load(); set.Version != version {
				t.Errorf("%s goes by version %d after it wrote %d in %v", n.name, set.Version,
					version, time.Since(begun))
			}
		}
		w.agree(5*time.Second, 12)
		last := w.of("us")[2]
		if _, err := last.write(1, 5); !errors.Is(err, rules.ErrConflict) {
			t.Errorf("have %v, want ErrConflict", err)
		}
		if v, err := last.write(1, 12); err != nil || v != 13 {
			t.Errorf("have %d, %v, want version 13", v, err)
		}
		_, err := last.c.Load().Write(t.Context(),
			document.Change{Part: document.RulePart, Name: "nobody", Delete: true}, WriteOptions{})
		if !errors.Is(err, document.ErrNotFound) || !strings.Contains(err.Error(), "nobody") {
			t.Errorf("have %v, want ErrNotFound", err)
		}
		_, err = last.c.Load().Write(t.Context(),
			document.Change{Part: document.RulePart, Name: "a",
				Body: []byte("key: [ip]\nlimits:\n  - limit: -1\n    per: 1m\n")},
			WriteOptions{})
		var places document.Errors
		if !errors.As(err, &places) || places[0].Line != 3 {
			t.Errorf("have %v, want a place in line 3", err)
		}
	})
}

// TestThePrimaryIsAway: a write fails soon and with a clear error, whether or
// not a node has noticed the cut. Everything else continues.
func TestThePrimaryIsAway(t *testing.T) {
	regionBubble(t, 2, threeRegions, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 3)
		f.isolate("us")
		for _, n := range w.of("us") {
			for range 3 { // the cut is noticed meanwhile
				begun := time.Now()
				_, err := n.write(9, 0)
				if took := time.Since(begun); !errors.Is(err, ErrNoPrimary) || took > 2*time.Second {
					t.Errorf("%s: have %v after %v, want ErrNoPrimary within 2 s", n.name, err, took)
				}
				if err == nil || !strings.Contains(err.Error(), `"eu"`) {
					t.Errorf("%s: have %v, want the primary's name in it", n.name, err)
				}
			}
			if err := n.c.Load().CatchUp(t.Context()); err != nil {
				t.Errorf("%s: have %v, want reads as before", n.name, err)
			}
			if !n.c.Load().Authority() || n.c.Load().ReadyError() != nil {
				t.Errorf("%s does not go on", n.name)
			}
		}
		for i := range 5 {
			w.of([]string{"eu", "ap"}[i%2])[i%2].mustWrite(i + 20)
		}
		if v := recordedVersion(w.leaderOf("eu").c.Load().State()); v > 3 {
			t.Errorf("version %d is recorded, and region us has not heard of it", v)
		}
		time.Sleep(10 * time.Second)
		f.heal()
		w.agree(5*time.Second, 8)
		w.recorded(10*time.Second, 8)
	})
}

// TestAWriteCutInTheMiddle: a write that may have been made is not reported as failed.
func TestAWriteCutInTheMiddle(t *testing.T) {
	regionBubble(t, 1, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 2)
		us := w.of("us")[0]
		f.mu.Lock()
		f.lose = func(m peer.Method) bool {
			if m == MethodWriteRules {
				for _, d := range [][2]string{{"us", "eu"}, {"eu", "us"}} {
					f.cut[d] = time.Now()
				}
			}
			return false
		}
		f.mu.Unlock()
		if _, err := us.write(9, 0); !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("have %v, want ErrOutcomeUnknown", err)
		}
		f.mu.Lock()
		f.lose = nil
		f.mu.Unlock()
		f.heal()
		w.agree(5*time.Second, 3)
	})
}

// TestALostAnswerIsNotASecondWrite: a write whose answer is lost is retried, and made once.
func TestALostAnswerIsNotASecondWrite(t *testing.T) {
	regionBubble(t, 1, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 2)
		lost := 0
		f.mu.Lock()
		f.lose = func(m peer.Method) bool {
			if m == MethodWriteRules && lost < 3 {
				lost++
				return true
			}
			return false
		}
		f.mu.Unlock()
		if v := w.of("us")[0].mustWrite(9); v != 3 || lost != 3 {
			t.Errorf("have version %d after %d lost answers, want 3 and 3", v, lost)
		}
		w.agree(5*time.Second, 3)
	})
}

// TestOneWayCuts: a link that is cut in one direction counts as cut, and no promise is broken.
func TestOneWayCuts(t *testing.T) {
	for _, d := range [][2]string{{"eu", "us"}, {"us", "eu"}} {
		t.Run(d[0]+" to "+d[1], func(t *testing.T) {
			regionBubble(t, 1, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
				w.startAll()
				w.agree(15*time.Second, 2)
				f.sever(d[0], d[1])
				begun := time.Now()
				if _, err := w.of("us")[0].write(9, 0); !errors.Is(err, ErrNoPrimary) ||
					time.Since(begun) > 2*time.Second {
					t.Errorf("have %v after %v, want ErrNoPrimary within 2 s", err, time.Since(begun))
				}
				v := w.of("eu")[0].mustWrite(8)
				time.Sleep(20 * time.Second)
				f.heal()
				w.agree(5*time.Second, v)
			})
		})
	}
}

// TestLeadersDieWhileTheRegionsWrite: each acknowledged write is there exactly
// once, and in the end all regions agree.
func TestLeadersDieWhileTheRegionsWrite(t *testing.T) {
	for _, victim := range []string{"eu", "us"} {
		t.Run("in "+victim, func(t *testing.T) {
			regionBubble(t, 3, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
				w.startAll()
				w.agree(15*time.Second, 2)
				w.recorded(15*time.Second, 2)
				stop := make(chan struct{})
				var mu sync.Mutex // guards acknowledged
				acknowledged := map[int64]int{}
				var writers sync.WaitGroup
				for i, n := range append(w.of("us"), w.of("eu")[0]) {
					writers.Go(func() {
						for limit := 1000*i + 1; ; limit++ {
							select {
							case <-stop:
								return
							case <-time.After(50 * time.Millisecond):
							}
							c := n.c.Load()
							if c == nil {
								continue
							}
							ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
							v, err := c.Write(ctx, worldWide(limit), WriteOptions{By: n.name})
							cancel()
							if err != nil {
								continue
							}
							mu.Lock()
							if other, twice := acknowledged[v]; twice {
								t.Errorf("version %d was acknowledged to two writes, of %d and of %d", v, other, limit)
							}
							acknowledged[v] = limit
							mu.Unlock()
						}
					})
				}
				for range cases(4) {
					time.Sleep(3 * time.Second)
					leader := w.aLeaderOf(victim)
					leader.crash()
					time.Sleep(3 * time.Second)
					leader.run()
					w.ready(leader)
				}
				close(stop)
				writers.Wait()
				w.sameVersion(5 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				if len(acknowledged) < 10 {
					t.Errorf("only %d writes were made", len(acknowledged))
				}
				for v, limit := range acknowledged {
					doc, err := w.leaderOf("eu").c.Load().State().History.DocumentAt(v)
					if errors.Is(err, document.ErrNotFound) {
						continue // older than what is kept
					}
					if err != nil || doc.Rules[0].Limits[0].Limit != int64(limit) {
						t.Errorf("version %d was acknowledged for a limit of %d: have %v, %v", v, limit, doc, err)
					}
				}
			})
		})
	}
}

// sameVersion waits until all regions use the same version, and know that they all do.
func (w *world) sameVersion(bound time.Duration) {
	w.t.Helper()
	w.agree(bound, rulesVersion(w.aLeaderOf("eu").c.Load().State()))
	w.recorded(3*time.Minute, rulesVersion(w.leaderOf("eu").c.Load().State()))
}

func TestLeadersDieAroundARecord(t *testing.T) {
	regionBubble(t, 3, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 2)
		for i := range cases(12) {
			w.of("eu")[i%3].mustWrite(100 + i)
			// From the write until well after the record, which takes about two seconds.
			time.Sleep(time.Duration(i*i%17) * 200 * time.Millisecond)
			victim := w.aLeaderOf([]string{"eu", "us"}[i%2])
			victim.crash()
			time.Sleep(time.Duration(i%5) * time.Second)
			victim.run()
			w.ready(victim)
		}
		w.sameVersion(5 * time.Second)
	})
}

func TestARegionWithRulesOfItsOwnFollows(t *testing.T) {
	regionBubble(t, 1, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		eu, us := w.of("eu")[0], w.of("us")[0]
		us.adjust = func(c *Config) { c.Primary, c.OtherRegions = "us", nil } // for the first start
		eu.run()
		us.run()
		w.ready(eu, us)
		for i := range 6 {
			us.mustWrite(50 + i)
		}
		world := us.c.Load().State().Regions.World
		us.stop()
		us.adjust = nil
		us.run()
		w.agree(15*time.Second, 2) // less than it had
		if have := us.c.Load().State().Regions.World; have == world {
			t.Error("it is in its own world still")
		}
		w.recorded(15*time.Second, 2)
		expect.Equal(t, us.mustWrite(9), 3, "version")
		w.agree(5*time.Second, 3)
	})
}

// TestASeedIsNotThePrimarysFirst: a secondary serves its own seed until the
// primary's rules arrive, and a write that is conditional on the seed's version
// is refused.
func TestASeedIsNotThePrimarysFirst(t *testing.T) {
	regionBubble(t, 1, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		f.isolate("us")
		eu, us := w.of("eu")[0], w.of("us")[0]
		us.adjust = func(c *Config) {
			c.InitialRules = func() ([]byte, string) { return worldWide(77).Body, "us" }
		}
		w.startAll()
		limit := func(n *node) int64 { return n.rules.Load().Document.Rules[0].Limits[0].Limit }
		if have := limit(us); have != 77 {
			t.Errorf("have a limit of %d, want that of its seed", have)
		}
		if s := us.c.Load().State(); !s.Regions.World.IsZero() || s.Regions.Primary != "" || len(s.Regions.Committed) != 0 {
			t.Errorf("have %+v before it followed anyone", s.Regions)
		}
		if _, err := us.write(9, 1); !errors.Is(err, rules.ErrConflict) {
			t.Errorf("have %v, want ErrConflict: version 1 is not the primary's", err)
		}
		if _, err := us.write(9, 0); !errors.Is(err, ErrNoPrimary) {
			t.Errorf("have %v, want ErrNoPrimary", err)
		}
		f.heal()
		w.agree(15*time.Second, 2)
		if limit(us) != limit(eu) {
			t.Errorf("have limits of %d and %d", limit(us), limit(eu))
		}
	})
}

func TestRemoveARegion(t *testing.T) {
	regionBubble(t, 2, threeRegions, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 3)
		w.recorded(15*time.Second, 3)
		ap := w.of("ap")[1].c.Load()
		for name, want := range map[string]error{"us": ErrRefused, "eu": ErrRefused, "mars": ErrNotFound} {
			if _, err := ap.RemoveRegion(t.Context(), name); !errors.Is(err, want) {
				t.Errorf("remove %s: have %v, want %v", name, err, want)
			}
		}
		for _, n := range w.of("us") {
			n.crash()
		}
		v := w.of("eu")[0].mustWrite(9)
		time.Sleep(20 * time.Second)
		if have := recordedVersion(ap.State()); have >= v {
			t.Errorf("version %d is recorded, and region us has not heard of %d", have, v)
		}
		begun := time.Now()
		if have, err := ap.RemoveRegion(t.Context(), "us"); err != nil || have != v+1 {
			t.Fatalf("have version %d, %v, want %d", have, err, v+1)
		}
		t.Logf("removed after %v", time.Since(begun))
		w.agree(5*time.Second, v+1)
		w.recorded(10*time.Second, v+1)
		expect.EqualSlices(t, ap.State().Regions.Committed, []string{"ap", "eu"}, "ap.State().Regions.Committed")
		for _, n := range w.of("us") {
			n.run()
		}
		w.agree(20*time.Second, v+2) // it is back
	})
}

// TestAnotherPrimary: the nodes of all regions are restarted with another
// --primary-region, one after another.
func TestAnotherPrimary(t *testing.T) {
	for _, order := range [][]string{{"eu", "us", "ap"}, {"us", "eu", "ap"}, {"ap", "us", "eu"}} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			regionBubble(t, 3, threeRegions, func(t *testing.T, w *world, f *farNet) {
				w.startAll()
				w.agree(15*time.Second, 3)
				w.recorded(15*time.Second, 3)
				for _, region := range order {
					for _, n := range w.of(region) {
						n.adjust = func(c *Config) { c.Primary = "us" }
						n.stop()
						time.Sleep(2 * time.Second)
						n.run()
						w.ready(n)
					}
					f.takeForPrimary(region, "us")
				}
				w.until(20*time.Second, "one primary", func() bool {
					for _, n := range w.nodes {
						if r := n.c.Load().State().Regions; r.Primary != "us" ||
							r.World != w.nodes[0].c.Load().State().Regions.World {
							return false
						}
					}
					return true
				})
				v := w.of("ap")[1].mustWrite(9)
				w.agree(5*time.Second, v)
				w.recorded(15*time.Second, v)
			})
		})
	}
}

func TestTwoPrimariesAreWarnedOf(t *testing.T) {
	regionBubble(t, 1, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		said := &process.Output{}
		w.log = slog.New(slog.NewTextHandler(said, nil))
		f.takeForPrimary("us", "us")
		w.startAll()
		w.until(10*time.Second, "warning", func() bool { return said.Count("two regions claim to be the primary") > 0 })
		for _, n := range w.nodes {
			if s := n.c.Load().State(); s.Regions.Primary != n.region ||
				!slices.Equal(s.Regions.Committed, []string{n.region}) {
				t.Errorf("%s: have %+v", n.name, s.Regions)
			}
		}
	})
}

// TestThePrimaryLosesItsMemory: the regions follow something newer than what
// the primary has, and the primary wins.
func TestThePrimaryLosesItsMemory(t *testing.T) {
	regionBubble(t, 1, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 2)
		eu := w.of("eu")[0]
		old := eu.disk.clone()
		eu.mustWrite(7)
		eu.mustWrite(8)
		w.agree(5*time.Second, 4)
		eu.crash()
		eu.disk = old
		eu.run()
		w.ready(eu)
		w.agree(10*time.Second, 2)
		expect.Equal(t, eu.c.Load().State().Regions.PrimaryEpoch, 2, "primary epoch")
		expect.Equal(t, w.of("us")[0].mustWrite(9), 3, "version")
		w.agree(5*time.Second, 3)
		w.recorded(10*time.Second, 3)
	})
}

// cases returns how many of n similar cases to run: all with many seeds, one in
// short mode, and half otherwise.
func cases(n int) int {
	switch {
	case testing.Short():
		return 1
	case *seeds > fewSeeds:
		return n
	}
	return n / 2
}

// silent is a Far whose calls never reach another region.
type silent struct{ OtherRegions }

func (silent) Call(context.Context, string, peer.Method, []byte) ([]byte, error) {
	return nil, regions.ErrNoRoute
}

// TestAWriteIsSharedWithWhoIsThere: a write is shared with the regions that are
// reachable at that time, even if they do not follow yet. Otherwise they would
// have to wait for the next window.
func TestAWriteIsSharedWithWhoIsThere(t *testing.T) {
	regionBubble(t, 1, threeRegions, func(t *testing.T, w *world, f *farNet) {
		for _, n := range w.nodes {
			n.adjust = func(c *Config) { c.OtherRegions = silent{c.OtherRegions} }
			n.run()
		}
		w.ready(w.nodes...)
		eu := w.of("eu")[0]
		// A write that requires a version does not add a region, because it is meant
		// for that version's regions.
		if v, err := eu.write(6, 1); err != nil || v != 2 || len(eu.c.Load().State().Regions.Committed) != 1 {
			t.Errorf("have version %d, %v, want 2, of one region", v, err)
		}
		eu.mustWrite(7)
		expect.EqualSlices(t, eu.c.Load().State().Regions.Committed, []string{"ap", "eu", "us"},
			"eu.c.Load().State().Regions.Committed")
		version := rulesVersion(eu.c.Load().State())
		expect.Equal(t, eu.mustWrite(8), version+1, "the version that another write made")
	})
}
