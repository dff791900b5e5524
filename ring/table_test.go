package ring

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/internal/expect"
)

// nodes returns n IDs, always the same ones.
func nodes(n int) []NodeID {
	rnd := rand.New(rand.NewPCG(7, 11))
	out := make([]NodeID, n)
	for i := range out {
		for j := range out[i] {
			out[i][j] = byte(rnd.Uint32())
		}
	}
	return out
}

func build(t testing.TB, members []NodeID) *Table {
	t.Helper()
	table, err := New(members, DefaultSettings())
	expect.NoError(t, err)
	return table
}

func written(t testing.TB, table *Table) []byte {
	t.Helper()
	b, err := table.AppendBinary(nil)
	expect.NoError(t, err)
	return b
}

// checkInvariants checks what is true of every table.
func checkInvariants(t *testing.T, table *Table, members int) {
	t.Helper()
	if len(table.Members()) != members || !slices.IsSortedFunc(table.Members(), NodeID.Compare) {
		t.Fatalf("members: %v", table.Members())
	}
	sum := 0
	for i, id := range table.Members() {
		sum += table.CountOwned(id)
		if table.Rank(id) != i {
			t.Fatalf("%s has rank %d, want %d", id, table.Rank(id), i)
		}
	}
	expect.Equal(t, sum, Partitions, "partitions are owned")
	for p := range Partitions {
		owner, standby := table.Owner(p), table.Standby(p)
		if table.Rank(owner) < 0 {
			t.Fatalf("partition %d: owner %s is no member", p, owner)
		}
		if owner == standby || (table.Rank(standby) < 0) != (members == 1) || standby.IsZero() != (members == 1) {
			t.Fatalf("partition %d: owner %s, standby %s", p, owner, standby)
		}
		best := NodeID{}
		for _, id := range table.Members() {
			if id != owner && (best.IsZero() || score(p, id) > score(p, best)) {
				best = id
			}
		}
		if standby != best {
			t.Fatalf("partition %d: standby %s, want %s", p, standby, best)
		}
	}
}

func TestEveryPartitionHasAnOwnerAndAStandby(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 10, 50} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			table := build(t, nodes(n))
			checkInvariants(t, table, n)
			if !table.Canonical() || table.Settings() != DefaultSettings() {
				t.Error("the table is not canonical, or has other settings")
			}
			most, standbys := int(math.Ceil(1.25*Partitions/float64(n))), map[NodeID]int{}
			for p := range Partitions {
				standbys[table.Standby(p)]++
			}
			for _, id := range table.Members() {
				if have := table.CountOwned(id); have > most || have == 0 {
					t.Errorf("%s owns %d partitions, want at most %d", id, have, most)
				}
				if have := standbys[id]; n > 1 && (have == 0 || have > 2*Partitions/n) {
					t.Errorf("%s is the standby of %d partitions", id, have)
				}
			}
		})
	}
}

func TestOrderOfMembersDoesNotMatter(t *testing.T) {
	members := nodes(10)
	want := written(t, build(t, members))
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		rnd.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		before := slices.Clone(members)
		clearCache()
		if have := written(t, build(t, members)); !slices.Equal(have, want) {
			t.Fatal("another order gives another table")
		}
		if !slices.Equal(before, members) {
			t.Fatal("New changed its argument")
		}
	}
}

// A change of the library's version or the hash must not go unnoticed: nodes of
// both builds would own the same partitions. It needs a new name in Settings.
func TestAssignmentIsPinned(t *testing.T) {
	for n, want := range map[int]uint64{1: 0xf188cf267c6c9a0f, 3: 0x41ef77bb647c2ff1,
		10: 0x7500bb7c316d566b, 50: 0xecadfc2484bcee02} {
		table, all := build(t, nodes(n)), make([]byte, 0, 32*Partitions)
		for p := range Partitions {
			owner, standby := table.Owner(p), table.Standby(p)
			all = append(append(all, owner[:]...), standby[:]...)
		}
		expect.Equal(t, xxh3.Hash(all), want, "%d members", n)
	}
	mod, err := os.ReadFile("../go.mod")
	expect.NoError(t, err)
	if want := "github.com/" + libraryName; !strings.Contains(string(mod), want) {
		t.Errorf("settings say %s, but go.mod doesn't", want)
	}
}

func TestJoinMovesItsPart(t *testing.T) {
	for _, tt := range []struct {
		members int
		most    float64 // fraction that moves; the documented 25, 18.5, 8.9 and 2.0 % are means over many sets
	}{{3, 0.30}, {5, 0.23}, {10, 0.12}, {50, 0.03}} {
		ids := nodes(tt.members + 1)
		before, after := build(t, ids[:tt.members]), build(t, ids)
		joined := ids[tt.members]
		moved, between := 0, 0
		for p := range Partitions {
			if from, to := before.Owner(p), after.Owner(p); from != to {
				moved++
				if to != joined {
					between++
				}
			}
		}
		have := float64(moved) / Partitions
		if least := 0.7 / float64(tt.members+1); have > tt.most || have < least {
			t.Errorf("%d members: %.1f %% move, want %.1f to %.1f", tt.members, 100*have, 100*least, 100*tt.most)
		}
		if have := float64(between) / Partitions; have > 0.05 {
			t.Errorf("%d members: %.1f %% move between remaining members", tt.members, 100*have)
		}
	}
}

func TestWithoutMovesOnlyWhatItMust(t *testing.T) {
	for _, n := range []int{2, 3, 5, 10, 50} {
		ids := nodes(n)
		before := build(t, ids)
		raw := written(t, before)
		for _, x := range ids[:min(n, 5)] {
			after := before.Without(x)
			checkInvariants(t, after, n-1)
			if after.Canonical() || after.Rank(x) != -1 || after.CountOwned(x) != 0 {
				t.Errorf("%s is still there", x)
			}
			for p := range Partitions {
				want := before.Owner(p)
				if want == x {
					want = before.Standby(p)
				}
				if have := after.Owner(p); have != want {
					t.Fatalf("partition %d: owner %s, want %s", p, have, want)
				}
				if before.Owner(p) != x && before.Standby(p) != x && before.Standby(p) != after.Standby(p) {
					t.Fatalf("partition %d: its standby changed", p)
				}
			}
		}
		if !slices.Equal(raw, written(t, before)) {
			t.Error("the table changed")
		}
	}
}

func TestWithoutMany(t *testing.T) {
	ids := nodes(10)
	table := build(t, ids)
	if have := table.Without(NodeID{1}); have != table {
		t.Error("removing a stranger gives another table")
	}
	// The order in which they leave does not matter.
	one, other := table, table
	for i := range 6 {
		one, other = one.Without(ids[i]), other.Without(ids[5-i])
	}
	if !one.Equal(other) || one.Equal(table) {
		t.Error("the order of removals matters")
	}
	for i, id := range ids[:9] {
		table = table.Without(id)
		checkInvariants(t, table, 9-i)
	}
	if have := table.Without(ids[9]); have != table || table.CountOwned(ids[9]) != Partitions {
		t.Error("the only member was removed")
	}
}

func TestNilTable(t *testing.T) {
	var table *Table
	if !table.Owner(1).IsZero() || !table.Standby(1).IsZero() || table.Members() != nil || table.Canonical() ||
		table.Without(NodeID{1}) != nil || table.Rank(NodeID{}) != -1 ||
		table.CountOwned(NodeID{}) != 0 || table.Settings() != (Settings{}) {
		t.Error("a nil table is not empty")
	}
	if !table.Equal(nil) || table.Equal(build(t, nodes(1))) || build(t, nodes(1)).Equal(table) {
		t.Error("a nil table equals another one")
	}
	if _, err := table.AppendBinary(nil); !errors.Is(err, ErrFormat) {
		t.Errorf("have %v", err)
	}
	for _, p := range []int{-1, Partitions, math.MaxInt, math.MinInt} {
		if table := build(t, nodes(2)); !table.Owner(p).IsZero() || !table.Standby(p).IsZero() {
			t.Errorf("partition %d has an owner", p)
		}
	}
}

func TestRefusedTables(t *testing.T) {
	ids := nodes(3)
	with := func(change func(*Settings)) Settings {
		s := DefaultSettings()
		change(&s)
		return s
	}
	tests := []struct {
		name     string
		members  []NodeID
		settings Settings
		want     error
	}{
		{"none", nil, DefaultSettings(), ErrMembers},
		{"duplicate", []NodeID{ids[0], ids[1], ids[0]}, DefaultSettings(), ErrMembers},
		{"zero", []NodeID{ids[0], {}}, DefaultSettings(), ErrMembers},
		{"too many", nodes(MaxMembers + 1), DefaultSettings(), ErrMembers},
		{"no settings", ids, Settings{}, ErrSettings},
		{"partitions", ids, with(func(s *Settings) { s.Partitions = 271 }), ErrSettings},
		{"no factor", ids, with(func(s *Settings) { s.Factor = 0 }), ErrSettings},
		{"factor", ids, with(func(s *Settings) { s.Factor = maxFactor + 1 }), ErrSettings},
		{"load below 1", ids, with(func(s *Settings) { s.Load = 0.99 }), ErrSettings},
		{"load", ids, with(func(s *Settings) { s.Load = math.Inf(1) }), ErrSettings},
		{"load no number", ids, with(func(s *Settings) { s.Load = math.NaN() }), ErrSettings},
		{"hash", ids, with(func(s *Settings) { s.Hash = "md5" }), ErrSettings},
		{"library", ids, with(func(s *Settings) { s.Library = "buraksezer/consistent v0.10.0" }), ErrSettings},
	}
	for _, tt := range tests {
		if table, err := New(tt.members, tt.settings); !errors.Is(err, tt.want) || table != nil {
			t.Errorf("%s: have %v, want %v", tt.name, err, tt.want)
		}
	}
	for _, s := range []Settings{
		with(func(s *Settings) { s.Load = 1 }), with(func(s *Settings) { s.Factor, s.Load = 1, 1 }),
		with(func(s *Settings) { s.Factor, s.Load = 10, maxLoad }),
	} {
		for _, n := range []int{1, 3, 20} {
			table, err := New(nodes(n), s)
			if err != nil {
				t.Fatalf("%+v: %v", s, err)
			}
			checkInvariants(t, table, n)
		}
	}
}

func TestPartitionOf(t *testing.T) {
	for hi, want := range map[uint64]int{0: 0, 1<<52 - 1: 0, 1 << 52: 1, math.MaxUint64: Partitions - 1} {
		expect.Equal(t, PartitionOf(hi), want, "%#x", hi)
	}
}

func BenchmarkOwner(b *testing.B) {
	table := build(b, nodes(10))
	for i := 0; b.Loop(); i++ {
		_ = table.Owner(i % Partitions)
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 50} {
		members := nodes(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				clearCache()
				build(b, members)
			}
		})
	}
}

// clearCache makes New compute every table again.
func clearCache() {
	recentTables.mu.Lock()
	defer recentTables.mu.Unlock()
	clear(recentTables.tables[:])
}

// A recently computed table is not computed again; one that has dropped out of
// the cache is equal when computed again.
func TestNewCachesTables(t *testing.T) {
	clearCache()
	first := build(t, nodes(20))
	if again := build(t, nodes(20)); again != first {
		t.Error("a table was computed twice")
	}
	for n := range 10 {
		build(t, nodes(n+1))
	}
	again := build(t, nodes(20))
	if again == first {
		t.Error("the cache keeps too many tables")
	}
	if !again.Equal(first) {
		t.Error("the same members have another table")
	}
}
