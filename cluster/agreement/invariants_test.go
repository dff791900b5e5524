package agreement

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// failer is a test, or one try of a property.
type failer interface {
	Helper()
	Fatalf(string, ...any)
}

// invariants checks the invariants of a single state.
func invariants(t failer, s *State) {
	t.Helper()
	if (s.From == nil) != (s.Epoch == 0) || (s.To == nil) != (s.Epoch == 0) {
		t.Fatalf("epoch %d and rings don't fit", s.Epoch)
	}
	if s.Settled != (s.From == s.To) || !s.Settled && s.From.Equal(s.To) {
		t.Fatalf("settled is %t", s.Settled)
	}
	// Only every 13th partition, because this runs after every entry.
	for p := 0; p < ring.Partitions; p += 13 {
		from, to := s.Owners(p)
		if s.Epoch > 0 && (s.From.Rank(from) < 0 || s.To.Rank(to) < 0) || s.Settled && from != to {
			t.Fatalf("partition %d belongs to %s and %s", p, from, to)
		}
	}
	for _, table := range []*ring.Table{s.From, s.To} {
		for _, id := range table.Members() {
			if _, known := s.Members[id]; !known {
				t.Fatalf("%s is not known", id)
			}
		}
	}
	if err := s.check(); err != nil {
		t.Fatalf("%v", err)
	}
}

// follows checks the invariants of a state and the next one.
func follows(t failer, before, after *State) {
	t.Helper()
	if after.Index != before.Index+1 || after.Epoch < before.Epoch ||
		after.LastEnded < before.LastEnded || after.Revision < before.Revision {
		t.Fatalf("index %d, epoch %d, last ended %d, revision %d after %d", after.Index,
			after.Epoch, after.LastEnded, after.Revision, before.Revision)
	}
	for id, g := range before.Generations {
		if after.Generation(id) < g {
			t.Fatalf("the generation of %s fell from %d to %d", id, g, after.Generation(id))
		}
	}
	if !before.Cluster.IsZero() && before.Cluster != after.Cluster {
		t.Fatalf("another cluster")
	}
	_, v := before.History.Current()
	_, w := after.History.Current()
	r, q := before.Regions, after.Regions
	switch {
	case r.World != q.World && !r.World.IsZero() || r.PrimaryEpoch < q.PrimaryEpoch:
		// another world's rules, or another primary epoch
	case w.Number < v.Number || w.Number > v.Number+1 && q.Revision <= r.Revision:
		t.Fatalf("version %d after %d", w.Number, v.Number)
	case q.Revision < r.Revision || q.PrimaryEpoch < r.PrimaryEpoch:
		t.Fatalf("revision %d of primary epoch %d after %d of %d", q.Revision, q.PrimaryEpoch,
			r.Revision, r.PrimaryEpoch)
	}
}

// entryFor draws an entry that s accepts, or nearly.
func entryFor(t *rapid.T, s *State) Entry {
	someone := func() ring.NodeID { return node(rapid.IntRange(1, 6).Draw(t, "node")) }
	epoch := func() int64 { return s.Epoch + rapid.SampledFrom([]int64{1, 1, 1, 1, 0, 2}).Draw(t, "epoch") }
	reason := func() Reason {
		return rapid.SampledFrom([]Reason{"", Silent, Unreachable, Behind, Removed, "unknown"}).Draw(t, "why")
	}
	when := func() int64 { return rapid.Int64Range(0, 2*suspensionReset.Milliseconds()).Draw(t, "when") }
	switch rapid.IntRange(0, 18).Draw(t, "kind") {
	case 0:
		return found
	case 1:
		return Empty{}
	case 2, 3:
		ids := rapid.SliceOfNDistinct(rapid.IntRange(1, 6), 1, 6, rapid.ID[int]).Draw(t, "members")
		r := ringOf(epoch(), ids...)
		r.Members[0].Address = fmt.Sprintf("10.0.1.%d", rapid.IntRange(0, 9).Draw(t, "address"))
		return r
	case 4:
		return Leave{Epoch: epoch(), Node: someone(), Reason: reason(), When: when()}
	case 5:
		return SettleMove{Epoch: epoch() - 1}
	case 6:
		id := someone()
		return EndNode{
			Node: id, Generation: s.Generation(id) + rapid.SampledFrom([]int64{0, 0, 0, 1, -1}).Draw(t, "generation"),
			Reason: reason(), When: when(),
		}
	case 7:
		return Forget{someone()}
	case 8:
		reign := rapid.SampledFrom([]uint64{0, s.Reign, 3}).Draw(t, "reign")
		return RegisterProcess{Node: someone(), Boot: rapid.Uint64Range(0, 3).Draw(t, "boot"), Reign: reign}
	case 9:
		return Reign{rapid.Uint64Range(0, 4).Draw(t, "number")}
	case 10:
		return besideEntryFor(t)
	case 12:
		return Depart{Departure{Node: someone(), Name: "n", By: "ann", When: when(),
			Left: rapid.Bool().Draw(t, "left")}}
	case 11:
		return ExpireEntries{Before: rapid.Int64Range(0, 9).Draw(t, "before")}
	}
	if e := regionEntryFor(t, s); e != nil {
		return e
	}
	w := write(byte(rapid.IntRange(0, 5).Draw(t, "request")), rapid.IntRange(0, 9).Draw(t, "limit"))
	w.OnlyFirst = rapid.IntRange(0, 9).Draw(t, "first") == 0
	w.IfMatch = int64(rapid.IntRange(0, 2).Draw(t, "match"))
	if rapid.Bool().Draw(t, "piece") {
		w.Change = document.Change{Part: document.TierPart, Name: "free", Body: []byte("{limits: [{limit: 3, per: 1m}]}")}
	}
	return w
}

// besideEntryFor draws changes of entries beside the rules.
func besideEntryFor(t *rapid.T) Entry {
	e := ChangeEntries{Request: RequestID{rapid.Byte().Draw(t, "request of entries")}}
	for range rapid.IntRange(1, 3).Draw(t, "changes") {
		e.Changes = append(e.Changes, entries.Change{
			Remove: rapid.IntRange(0, 3).Draw(t, "removes") == 0,
			Scoped: rapid.Bool().Draw(t, "is scoped"), When: 5, By: "me",
			Entry: &entries.Entry{
				Kind: entries.Block, Rule: "r",
				Key:   []string{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")},
				Until: rapid.Int64Range(0, 9).Draw(t, "until"), Scoped: rapid.Bool().Draw(t, "made scoped"), When: 5,
			},
		})
	}
	return e
}

// regionEntryFor draws an entry about regions, or nil.
func regionEntryFor(t *rapid.T, s *State) Entry {
	name := rapid.SampledFrom([]string{"eu", "us", "ap"})
	_, v := s.History.Current()
	switch rapid.IntRange(0, 6).Draw(t, "about regions") {
	case 0:
		return SetPrimary{Region: name.Draw(t, "primary"), World: WorldID{1}}
	case 1:
		return ChangeRegion{Name: name.Draw(t, "region"), Remove: rapid.IntRange(0, 3).Draw(t, "remove") == 0, When: 7}
	case 2:
		return Mark{Version: v.Number}
	case 3:
		return Mark{v.Number - rapid.Int64Range(0, 2).Draw(t, "version"), rapid.Int64Range(0, 1_000_000).Draw(t, "at")}
	case 4:
		return global(rapid.IntRange(1, 9).Draw(t, "limit"),
			rapid.SampledFrom([]string{"", ", regions: {eu: 1}"}).Draw(t, "parts"))
	case 5:
		e, err := s.adoption()
		if err != nil {
			t.Fatalf("%v", err)
		}
		e.World, e.PrimaryEpoch, e.Primary = WorldID{rapid.Byte().Draw(t, "world")}, e.PrimaryEpoch+
			rapid.Int64Range(0, 1).Draw(t, "primary epoch"), "us"
		if n := len(e.Held); n > 0 && rapid.Bool().Draw(t, "later") {
			e.Held = slices.Clone(e.Held)
			e.Held[n-1].Version += 3
			e.InForce.Number += 3
			e.Revision++ // it rises with each version
		}
		return e
	}
	return nil
}

// After any sequence of entries the state is consistent, and a state that was
// restored from a snapshot on the way behaves like the original.
func TestEntriesKeepTheInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, other := New(), New()
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			e := entryFor(t, s)
			entry, err := ThisBuild.Encode(e)
			if rapid.Bool().Draw(t, "terms") {
				entry, _, err = ThisBuild.Prepare(s, e)
			}
			if err != nil {
				t.Fatalf("%v", err)
			}
			next, r := s.Apply(s.Index+1, entry)
			again, q := other.Apply(other.Index+1, bytes.Clone(entry))
			follows(t, s, next)
			invariants(t, next)
			if r.Version != q.Version || (r.Err == nil) != (q.Err == nil) || r.Err != nil &&
				r.Err.Error() != q.Err.Error() {
				t.Fatalf("have %+v and %+v", r, q)
			}
			s, other = next, again
			if rapid.IntRange(0, 3).Draw(t, "snapshot") == 0 {
				b, err := other.AppendBinary(nil)
				if err != nil {
					t.Fatalf("%v", err)
				}
				if other, err = ThisBuild.Parse(b); err != nil {
					t.Fatalf("%v", err)
				}
				if c, _ := s.AppendBinary(nil); !bytes.Equal(b, c) {
					t.Fatalf("states differ")
				}
			}
		}
	})
}

// States are shared: making a new state from one leaves it unchanged.
func TestStatesDoNotChange(t *testing.T) {
	states, raw := []*State{New()}, [][]byte{snapshotOf(t, New())}
	s := rich(t)
	for _, e := range []Entry{
		SettleMove{Epoch: 2}, EndNode{Node: node(1), Generation: 0}, Forget{node(1)},
		Leave{Epoch: 3, Node: node(2)}, EndNode{Node: node(77), Generation: 1}, SettleMove{Epoch: 3},
		ringOf(4, 1, 77), write(7, 7), EndNode{Node: node(3), Generation: 0},
	} {
		states, raw = append(states, s), append(raw, snapshotOf(t, s))
		s = do(t, s, e)
	}
	for i, s := range states {
		if !bytes.Equal(snapshotOf(t, s), raw[i]) {
			t.Errorf("state %d changed", i)
		}
	}
}
