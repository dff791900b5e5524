package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rlnode/rlnode/rules/entries"
)

// denial returns a change that denies a user, or takes that back.
func denial(user string, forMS int64, remove bool) []EntryChange {
	e := &entries.Entry{Kind: entries.Deny, Match: []entries.Condition{{Attribute: "user", Values: []string{user}}}}
	return []EntryChange{{Change: entries.Change{Entry: e, Remove: remove, By: "ann"}, For: forMS}}
}

// TestEntriesReachAllRegions: entries that are written through any region are in force in all of them within seconds, leave the
// rules' version alone, and go when their end has come.
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
		if _, _, err := w.of("us")[0].c.Load().WriteEntries(context.Background(), denial("a", 0, true)); !errors.Is(err, entries.ErrNotFound) {
			t.Errorf("removed twice: %v; want %v", err, entries.ErrNotFound)
		}
	})
}
