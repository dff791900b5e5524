package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// denial returns a change that denies a user, or takes that back.
func denial(user string, forMS int64, remove bool) []EntryChange {
	e := &entries.Entry{Kind: entries.Deny, Match: []entries.Condition{{Attribute: "user", Values: []string{user}}}}
	return []EntryChange{{Change: entries.Change{Entry: e, Remove: remove, By: "ann"}, For: forMS}}
}

// TestEntriesReachAllRegions: entries that are written through any region are
// in force in all of them within seconds, leave the rules' version alone, and
// go when their end has come.
func TestEntriesReachAllRegions(t *testing.T) {
	regionBubble(t, 2, threeRegions, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 3)
		write := func(n *node, changes []EntryChange) *entries.Entry {
			t.Helper()
			_, e, err := n.c.Load().WriteEntries(context.Background(), changes)
			if err != nil {
				t.Fatalf("%s: %v", n.name, err)
			}
			return e
		}
		have := func(want ...string) func() bool {
			return func() bool {
				digest := w.nodes[0].c.Load().State().Entries.Digest()
				for _, n := range w.nodes {
					s := n.c.Load().State()
					if s.Entries.Len() != len(want) || s.Entries.Digest() != digest || rulesVersion(s) != 3 {
						return false
					}
				}
				return true
			}
		}
		first := write(w.of("eu")[0], denial("a", 0, false))
		if first.When == 0 || first.By != "ann" {
			t.Errorf("the leader wrote %+v; want its time, and ann", first)
		}
		write(w.of("us")[1], denial("b", 8000, false))
		w.until(5*time.Second, "all regions have both entries", have("a", "b"))
		write(w.of("ap")[0], denial("a", 0, true))
		w.until(5*time.Second, "all regions have one entry", have("b"))
		w.until(15*time.Second, "the other has ended everywhere", have())
		if _, _, err := w.of("us")[0].c.Load().WriteEntries(context.Background(),
			denial("a", 0, true)); !errors.Is(err, entries.ErrNotFound) {
			t.Errorf("removed twice: %v; want %v", err, entries.ErrNotFound)
		}
	})
}

// entriesOf returns what the nodes' entries have in common: their version and
// digest. It is not ok if they differ.
func entriesOf(nodes ...*node) (version int64, digest entries.Digest, ok bool) {
	first := nodes[0].c.Load().State().Entries
	for _, n := range nodes {
		s := n.c.Load().State().Entries
		if s.Version() != first.Version() || s.Digest() != first.Digest() {
			return 0, digest, false
		}
	}
	return first.Version(), first.Digest(), true
}

// TestEntriesSurviveRestartsAndSnapshots: a node that missed entries and
// versions of the rules gets them by a snapshot, and all have them after all
// were killed.
func TestEntriesSurviveRestartsAndSnapshots(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		for _, n := range nodes {
			n.adjust = func(c *Config) { c.SnapshotBytes, c.TrailingEntries = 1<<12, 4 }
			n.run()
		}
		w.oneCluster(nodes...)
		write := func(n *node, changes []EntryChange) {
			t.Helper()
			if _, _, err := n.c.Load().WriteEntries(t.Context(), changes); err != nil {
				t.Fatal(err)
			}
		}
		late := nodes[0]
		if late == w.aLeader() {
			late = nodes[1]
		}
		others := slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n == late })

		late.crash()
		for i := range 60 {
			write(others[i%2], denial(fmt.Sprint("user", i), 0, false))
			if i%20 == 0 {
				_, err := others[i%2].c.Load().Write(t.Context(), changeTo(i+1),
					WriteOptions{By: "ann", Message: fmt.Sprint("change ", i), Via: rules.ViaApply})
				expect.NoError(t, err)
			}
		}
		write(others[0], denial("user7", 0, true))
		taken := func() bool {
			low, _ := w.aLeader().store.FirstIndex()
			return low > 30
		}
		w.until(time.Minute, "the log has lost what the node missed", taken)
		late.run()
		w.ready(nodes...)
		same := func(want int64) func() bool {
			return func() bool { version, _, ok := entriesOf(nodes...); return ok && version == want }
		}
		w.until(20*time.Second, "all have the entries", same(61))
		expect.Equal(t, late.c.Load().State().Entries.Len(), 59, "the late node has entries")
		expect.Equal(t, late.c.Load().State().History.Versions()[0].Message, "change 40",
			"the last version's message at the late node")
		w.sameState(nodes...)
		_, before, _ := entriesOf(nodes...)

		for _, n := range nodes {
			n.crash()
		}
		for _, n := range nodes {
			n.run()
		}
		w.ready(nodes...)
		w.until(20*time.Second, "all have the entries after all were killed", same(61))
		if _, after, _ := entriesOf(nodes...); after != before {
			t.Errorf("after all were killed, the digest is %x, want %x", after, before)
		}
		w.sameState(nodes...)
		write(nodes[2], denial("one more", 0, false))
		w.until(20*time.Second, "the version goes on", same(62))
	})
}

// TestEntriesWhileARegionIsCutOff: a region that is cut off keeps the entries
// that it has and refuses to write others; once it is back it has what changed
// meanwhile, within seconds.
func TestEntriesWhileARegionIsCutOff(t *testing.T) {
	regionBubble(t, 2, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		w.startAll()
		w.agree(15*time.Second, 2)
		eu, us := w.of("eu"), w.of("us")
		write := func(changes []EntryChange) {
			t.Helper()
			if _, _, err := eu[0].c.Load().WriteEntries(t.Context(), changes); err != nil {
				t.Fatal(err)
			}
		}
		write(denial("a", 0, false))
		write(denial("b", 0, false))
		same := func() bool { _, _, ok := entriesOf(w.nodes...); return ok }
		w.until(5*time.Second, "both regions have the entries", same)
		version, digest, _ := entriesOf(us...)

		f.isolate("us")
		_, _, err := us[0].c.Load().WriteEntries(t.Context(), denial("c", 0, false))
		expect.ErrorIs(t, err, ErrNoPrimary, "a write in the region that is cut off")
		write(denial("a", 0, true))
		write(denial("d", 5000, false))
		for i := range 20 {
			write(denial(fmt.Sprint("e", i), 0, false))
		}
		us[1].crash()
		us[1].run()
		w.ready(us...)
		time.Sleep(10 * time.Second)
		if v, d, ok := entriesOf(us...); !ok || v != version || d != digest {
			t.Errorf("meanwhile the region has version %d, same %v, want %d", v, ok, version)
		}

		f.heal()
		w.until(5*time.Second, "the region has what changed meanwhile", same)
		expect.Equal(t, us[1].c.Load().State().Entries.Len(), 21, "entries")
	})
}

// A leader whose clock is set days ahead removes no entry that has not ended by
// the other clocks.
func TestEntriesOutliveAWrongClock(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		time.Sleep(10 * time.Second) // the nodes know each other's clocks
		if _, _, err := nodes[0].c.Load().WriteEntries(t.Context(), denial("a", time.Minute.Milliseconds(), false)); err != nil {
			t.Fatal(err)
		}
		leader := w.leader()
		left := func() int { return leader.c.Load().State().Entries.Len() }

		leader.ahead.Store(int64(48 * time.Hour))
		time.Sleep(30 * time.Second)
		expect.Equal(t, left(), 1, "entries, while the leader's clock is ahead")
		leader.ahead.Store(0)
		time.Sleep(time.Minute)
		expect.Equal(t, left(), 0, "entries, after the end")
	})
}

// Entries are not all looked at again until one has ended, or they change.
func TestEndsAreLookedUpOnce(t *testing.T) {
	var ends endWatch
	until := func(s *entries.State, name string, end int64) *entries.State {
		t.Helper()
		change := denial(name, 0, false)[0].Change
		entry := *change.Entry
		entry.Until = end
		change.Entry = &entry
		next, err := s.With(change)
		expect.NoError(t, err)
		return next
	}

	s := until(until(entries.New(), "a", 50), "b", 90)
	s = until(s, "a", 200) // the state still says that one ends at 50
	if ends.hasExpired(s, 60) || ends.firstEnd != 90 {
		t.Errorf("got the first end %d, want 90, not over at 60", ends.firstEnd)
	}
	if ends.hasExpired(s, 89) || !ends.hasExpired(s, 90) || !ends.hasExpired(s, 91) {
		t.Error("an entry must have expired at its end, and not before")
	}
	if next := until(s, "c", 70); !ends.hasExpired(next, 75) {
		t.Error("a new entry was overlooked")
	}
}
