package agreement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
)

// node returns the i-th node ID.
func node(i int) ring.NodeID { return ring.NodeID{0xa0, byte(i >> 8), byte(i), 15: 1} }

func member(i int) Member {
	return Member{ID: node(i), Name: fmt.Sprintf("n%d", i), Address: fmt.Sprintf("10.0.0.%d", i),
		Region: "eu", Zone: "a"}
}

func members(of ...int) (out []Member) {
	for _, i := range of {
		out = append(out, member(i))
	}
	return out
}

func encoded(t testing.TB, e Entry) []byte {
	t.Helper()
	b, err := ThisBuild.Encode(e)
	expect.NoError(t, err)
	return b
}

// do applies entries, each of which must be accepted.
func do(t testing.TB, s *State, entries ...Entry) *State {
	t.Helper()
	for _, e := range entries {
		var r Result
		s, r = s.Apply(s.Index+1, encoded(t, e))
		if r.Err != nil {
			t.Fatalf("%T: %v", e, r.Err)
		}
	}
	return s
}

func snapshotOf(t testing.TB, s *State) []byte {
	t.Helper()
	b, err := s.AppendBinary(nil)
	expect.NoError(t, err)
	return b
}

func ringOf(epoch int64, of ...int) Ring {
	return Ring{Epoch: epoch, Members: members(of...), Settings: ring.DefaultSettings()}
}

func table(t testing.TB, of ...int) *ring.Table {
	t.Helper()
	var ids []ring.NodeID
	for _, i := range of {
		ids = append(ids, node(i))
	}
	out, err := ring.New(ids, ring.DefaultSettings())
	expect.NoError(t, err)
	return out
}

// documentText returns a small rules file whose tier has the limit n.
func documentText(n int) []byte {
	return fmt.Appendf(nil, "version: 1\nrules:\n  - {name: tenant, key: [tenant], tiered: true}\n"+
		"tiers:\n  free: {limits: [{limit: %d, per: 1h}]}\ndefault_tier: free\n", n)
}

func write(request byte, n int) WriteRules {
	return WriteRules{
		Request: RequestID{request}, Change: document.Change{Body: documentText(n)}, By: "test",
		When: time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC),
	}
}

var found = FoundCluster{Cluster: ClusterID{1, 2, 3}, SigningKey: bytes.Repeat([]byte{7}, secretBytes)}

// founded returns s as found leaves it, without using up an entry.
func founded(s *State) *State {
	next := *s
	next.Cluster, next.SigningKey = found.Cluster, found.SigningKey
	return &next
}

func TestNewState(t *testing.T) {
	s := New()
	if from, to := s.Owners(5); !from.IsZero() || !to.IsZero() || !s.Settled || s.Generation(node(1)) != 0 {
		t.Errorf("have %+v", s)
	}
	if doc, _ := s.History.Current(); doc != nil {
		t.Error("there are rules")
	}
}

func TestFoundOnce(t *testing.T) {
	s := do(t, New(), found)
	if s.Cluster != found.Cluster || !bytes.Equal(s.SigningKey, found.SigningKey) || s.Index != 1 {
		t.Errorf("have %s at %d", s.Cluster, s.Index)
	}
	s = do(t, s, FoundCluster{Cluster: ClusterID{9}, SigningKey: make([]byte, secretBytes)})
	if s.Cluster != found.Cluster || !bytes.Equal(s.SigningKey, found.SigningKey) || s.Index != 2 {
		t.Errorf("have %s at %d", s.Cluster, s.Index)
	}
}

// The life of rings: the first is settled at once; a further one moves tokens until it is settled.
func TestRings(t *testing.T) {
	s := do(t, New(), found, ringOf(1, 1, 2, 3))
	if !s.Settled || s.Epoch != 1 || !s.From.Equal(table(t, 1, 2, 3)) || s.From != s.To {
		t.Fatalf("the first ring: %+v", s)
	}
	before := s
	join := ringOf(2, 1, 2, 3, 4)
	join.Members[0].Address = "10.9.9.9"
	s = do(t, s, join)
	if s.Settled || s.Epoch != 2 || !s.From.Equal(table(t, 1, 2, 3)) || !s.To.Equal(table(t, 1, 2, 3, 4)) {
		t.Fatalf("a joining node: %+v", s)
	}
	if s.Members[node(1)].Address != "10.9.9.9" || s.Members[node(4)] != member(4) || len(before.Members) != 3 {
		t.Errorf("have %v", s.Members)
	}
	moving := 0
	for p := range ring.Partitions {
		from, to := s.Owners(p)
		if from != s.From.Owner(p) || to != s.To.Owner(p) {
			t.Fatalf("partition %d: %s to %s", p, from, to)
		}
		if from != to {
			moving++
		}
	}
	if moving == 0 || moving > ring.Partitions/2 {
		t.Errorf("%d partitions move", moving)
	}
	s = do(t, s, SettleMove{Epoch: 2})
	if !s.Settled || s.From != s.To || !s.From.Equal(table(t, 1, 2, 3, 4)) {
		t.Errorf("not settled: %+v", s)
	}
	s = do(t, s, SettleMove{Epoch: 2}, Leave{Epoch: 3, Node: node(2)})
	if s.Settled || s.Epoch != 3 || !s.To.Equal(s.From.Without(node(2))) || s.To.Canonical() {
		t.Errorf("a leaving node: %+v", s)
	}
	s = do(t, s, SettleMove{Epoch: 3}, ringOf(4, 1, 3, 4), SettleMove{Epoch: 4}, ringOf(5, 1, 3, 4))
	if !s.Settled || s.Epoch != 5 || !s.From.Canonical() {
		t.Error("a ring that moves nothing is not settled")
	}
	if _, known := s.Members[node(2)]; !known {
		t.Error("a node that left is forgotten")
	}
}

func TestEndedPromotesInPlace(t *testing.T) {
	s := do(t, New(), ringOf(1, 1, 2, 3))
	before := s.From
	s = do(t, s, EndNode{Node: node(2), Generation: 0})
	if !s.Settled || s.From != s.To || s.Epoch != 1 || !s.From.Equal(before.Without(node(2))) {
		t.Errorf("have %+v", s)
	}
	if s.Generation(node(2)) != 1 || s.LastEnded != 2 || s.Generation(node(1)) != 0 {
		t.Errorf("generations %v, last ended %d", s.Generations, s.LastEnded)
	}
	s = do(t, s, ringOf(2, 1, 2, 3, 4))
	from, to := s.From, s.To
	s = do(t, s, EndNode{Node: node(2), Generation: 1})
	if s.Settled || s.From != from || !s.To.Equal(to.Without(node(2))) ||
		s.Generation(node(2)) != 2 || s.LastEnded != 4 {
		t.Errorf("in a move: %+v", s)
	}
	// The rest of the ring is as before.
	s = do(t, s, EndNode{Node: node(4), Generation: 0})
	expect.Equal(t, s.Settled, s.From.Equal(s.To), "settled")
}

func TestEndedEndsTheMove(t *testing.T) {
	tests := []struct {
		name     string
		first    []int
		then     Entry
		end      int
		from, to *ring.Table // to is nil if the state must be settled
	}{
		{"leaving node", []int{1, 2, 3}, Leave{Epoch: 2, Node: node(2)}, 2, table(t, 1, 2, 3).Without(node(2)), nil},
		{"joining node", []int{1, 2}, ringOf(2, 1, 2, 3), 3, table(t, 1, 2), table(t, 1, 2, 3).Without(node(3))},
		{"the only one", []int{1}, SettleMove{Epoch: 1}, 1, table(t, 1), nil},
		{"the only one before", []int{1}, ringOf(2, 1, 2, 3), 1, table(t, 1, 2, 3).Without(node(1)), nil},
		{"the only one after", []int{1, 2, 3}, ringOf(2, 1), 1, table(t, 1, 2, 3).Without(node(1)), nil},
		{"the only one before, exchanged", []int{1}, ringOf(2, 2), 1, table(t, 2), nil},
		{"the only one after, exchanged", []int{1}, ringOf(2, 2), 2, table(t, 1), nil},
		{"a stranger", []int{1}, ringOf(2, 2), 7, table(t, 1), table(t, 2)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := do(t, New(), ringOf(1, tt.first...), tt.then, EndNode{Node: node(tt.end), Generation: 0})
			settled, to := tt.to == nil, tt.to
			if settled {
				to = tt.from
			}
			if !s.From.Equal(tt.from) || !s.To.Equal(to) || s.Settled != settled {
				t.Errorf("have %v to %v, settled %t", s.From.Members(), s.To.Members(), s.Settled)
			}
			if s.Generation(node(tt.end)) != 1 || s.LastEnded != 3 {
				t.Errorf("generations %v, last ended %d", s.Generations, s.LastEnded)
			}
		})
	}
}

func TestForget(t *testing.T) {
	s := do(t, New(), ringOf(1, 1, 2, 3), EndNode{Node: node(3), Generation: 0}, Forget{node(3)})
	if _, known := s.Members[node(3)]; known || len(s.Members) != 2 {
		t.Errorf("have %v", s.Members)
	}
	// The node may come back, but with another generation.
	expect.Equal(t, s.Generation(node(3)), 1, "generation")
	s = do(t, s, ringOf(2, 1, 2, 3))
	if s.Generation(node(3)) != 1 || len(s.Strangers) != 0 {
		t.Errorf("generation %d, strangers %v", s.Generation(node(3)), s.Strangers)
	}
}

func TestBoots(t *testing.T) {
	s := do(t, New(), RegisterProcess{Node: node(1), Boot: 5}, RegisterProcess{Node: node(1), Boot: 5})
	if s.Boot(node(1)) != 5 || s.Processes[node(1)].Index != 1 || s.Revision != 1 || s.Boot(node(2)) != 0 {
		t.Errorf("have %+v, revision %d", s.Processes, s.Revision)
	}
	before := s
	s = do(t, s, RegisterProcess{Node: node(1), Boot: 6}, ringOf(1, 1, 2), ringOf(2, 2),
		SettleMove{Epoch: 2}, Forget{node(1)})
	if s.Boot(node(1)) != 0 || before.Boot(node(1)) != 5 || s.Revision != 6 {
		t.Errorf("have %+v, revision %d", s.Processes, s.Revision)
	}
	for _, e := range []RegisterProcess{{Node: node(1)}, {Boot: 1}} {
		rejects(t, s, encoded(t, e), "is zero")
	}
}

// TestProcessesAreBounded: nodes that start once and never join the ring don't
// keep others from being registered.
func TestProcessesAreBounded(t *testing.T) {
	s := do(t, New(), RegisterProcess{Node: node(1), Boot: 1, Level: Newest}, ringOf(1, 1))
	for i := len(s.Processes); i < MaxProcesses; i++ { // this state is not shared
		s.Processes[node(10+i)] = Process{Boot: 1, Index: s.Index}
		s.Index++
	}
	oldest := node(10 + 1)
	newcomer := RegisterProcess{Node: node(2), Boot: 1, Level: Newest}

	// The next process of a node that is registered takes no more room.
	again := do(t, s, RegisterProcess{Node: oldest, Boot: 2, Level: Newest})
	expect.Equal(t, again.Boot(node(10+2)), 1, "boot of the next oldest node")

	// A member is not dropped, though its process was registered first.
	after := do(t, s, newcomer)
	if after.Boot(node(1)) == 0 || after.Boot(newcomer.Node) == 0 || after.Boot(oldest) != 0 || s.Boot(oldest) == 0 {
		t.Errorf("the member has boot %d, the newcomer %d, the oldest other node %d",
			after.Boot(node(1)), after.Boot(newcomer.Node), after.Boot(oldest))
	}
	expect.Equal(t, len(after.Processes), MaxProcesses, "processes")

	// It may come back, as any other newcomer.
	again = do(t, after, RegisterProcess{Node: oldest, Boot: 1, Level: Newest})
	expect.Equal(t, again.Boot(node(10+2)), 0, "boot of the next oldest node")
}

// Generations of unknown nodes are bounded; those of members are not touched.
func TestStrangersAreBounded(t *testing.T) {
	s := do(t, New(), ringOf(1, 1, 2), EndNode{Node: node(1), Generation: 0})
	for i := range KeptStrangers - 10 { // this state is not shared
		s.Generations[node(100+i)] = 1
		s.Strangers = append(s.Strangers, node(100+i))
	}
	for i := range 20 {
		s = do(t, s, EndNode{Node: node(90 + KeptStrangers + i), Generation: 0})
	}
	if len(s.Generations) != KeptStrangers+1 || s.Generation(node(1)) != 1 {
		t.Errorf("%d generations, %d of the member", len(s.Generations), s.Generation(node(1)))
	}
	if s.Generation(node(109)) != 0 || s.Generation(node(110)) != 1 {
		t.Error("the dropped stranger was not the oldest")
	}
	s = do(t, s, EndNode{Node: node(110), Generation: 1}, EndNode{Node: node(99), Generation: 0})
	if s.Generation(node(110)) != 2 || s.Generation(node(111)) != 0 {
		t.Error("a stranger that was ended again is still the oldest")
	}
	if _, err := ThisBuild.Parse(snapshotOf(t, s)); err != nil {
		t.Error(err)
	}
}

func TestRejected(t *testing.T) {
	base := do(t, New(), found, ringOf(1, 1, 2, 3))
	moving := do(t, base, ringOf(2, 1, 2, 3, 4))
	alone := do(t, New(), ringOf(1, 1))
	other := ringOf(2, 1, 2)
	other.Settings.Load = 2000
	long := func(change func(*Member, string)) Ring {
		r := ringOf(2, 1, 2)
		change(&r.Members[1], strings.Repeat("x", maxText+1))
		return r
	}
	tests := []struct {
		name  string
		state *State
		entry Entry
		why   string
	}{
		{"no cluster", New(), FoundCluster{SigningKey: found.SigningKey}, "no ID"},
		{"short secret", New(), FoundCluster{Cluster: found.Cluster, SigningKey: []byte("x")}, "secret has 1"},
		{"first epoch", New(), ringOf(2, 1), "epoch 2 does not follow 0"},
		{"leave before the first ring", New(), Leave{Epoch: 1, Node: node(1)}, "not in the ring"},
		{"same epoch", base, ringOf(1, 1, 2), "epoch 1 does not follow 1"},
		{"epoch left out", base, ringOf(3, 1, 2), "epoch 3"},
		{"no epoch", base, ringOf(math.MinInt64, 1, 2), "epoch -"},
		{"not settled", moving, ringOf(3, 1), "not settled"},
		{"no members", base, ringOf(2), "there are none"},
		{"member twice", base, ringOf(2, 1, 1), "twice"},
		{"zero member", base, Ring{Epoch: 2, Members: []Member{{}}, Settings: ring.DefaultSettings()}, "no ID"},
		{"settings", base, other, "load is 2000"},
		{"no settings", base, Ring{Epoch: 2, Members: members(1)}, "partitions is 0"},
		{"long name", base, long(func(m *Member, s string) { m.Name = s }), "name of"},
		{"long address", base, long(func(m *Member, s string) { m.Address = s }), "address of"},
		{"long region", base, long(func(m *Member, s string) { m.Region = s }), "region of"},
		{"long zone", base, long(func(m *Member, s string) { m.Zone = s }), "zone of"},
		{"leave of a stranger", base, Leave{Epoch: 2, Node: node(7)}, "not in the ring"},
		{"leave of the last", alone, Leave{Epoch: 2, Node: node(1)}, "alone"},
		{"leave in a move", moving, Leave{Epoch: 3, Node: node(1)}, "not settled"},
		{"leave, another epoch", base, Leave{Epoch: 1, Node: node(1)}, "epoch"},
		{"another epoch settled", base, SettleMove{Epoch: 2}, "epoch is 1, not 2"},
		{"last epoch settled", moving, SettleMove{Epoch: 1}, "epoch is 2, not 1"},
		{"later generation", base, EndNode{Node: node(1), Generation: 1}, "generation 0, not 1"},
		{"earlier generation", do(t, base, EndNode{Node: node(1), Generation: 0}),
			EndNode{Node: node(1), Generation: 0}, "generation 1, not 0"},
		{"nobody ended", base, EndNode{}, "node is zero"},
		{"stranger forgotten", base, Forget{node(7)}, "not known"},
		{"member forgotten", base, Forget{node(1)}, "in a ring"},
		{"joining member forgotten", moving, Forget{node(4)}, "in a ring"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw := encoded(t, tt.entry)
			rejects(t, tt.state, raw, tt.why)
		})
	}
}

// TestUnreadableEntries: an unreadable entry changes nothing, not even the
// index, and the error says which release is needed.
func TestUnreadableEntries(t *testing.T) {
	s := do(t, New(), found, ringOf(1, 1, 2, 3))
	later := Build{Level: 3, Release: "v9.1.0"}
	raw := func(level Level, kind, format byte, text string) []byte {
		return append(append(later.appendOrigin([]byte{entryMark, kind, format}, level), 0), text...)
	}
	body := func(text string) string { return string(wire.AppendText(nil, text)) }
	emptyKind, ringKind, settledKind, rulesKind := byte(kindOf(Empty{})), byte(kindOf(Ring{})), byte(kindOf(SettleMove{})), byte(kindOf(WriteRules{}))
	const wrote = "release v9.1.0 wrote it"
	for name, test := range map[string]struct {
		entry []byte
		why   string
	}{
		"nothing":         {nil, "another release is needed"},
		"old":             {[]byte{emptyKind, 1}, "another release is needed"},
		"cut":             {[]byte{entryMark, emptyKind}, "another release is needed"},
		"no level":        {[]byte{entryMark, emptyKind, 1, 0, 0}, "invalid origin"},
		"release cut":     {[]byte{entryMark, emptyKind, 1, 1, 9, 'v'}, "invalid origin"},
		"release":         {[]byte{entryMark, emptyKind, 1, 1, 1, '\n'}, "invalid origin"},
		"terms cut":       {raw(1, emptyKind, entryFormat, "")[:len(raw(1, emptyKind, entryFormat, ""))-1], wrote},
		"unknown kind":    {raw(1, 99, entryFormat, body("{}")), "unknown kind 99; " + wrote},
		"kind 0":          {raw(1, 0, entryFormat, body("{}")), "unknown kind 0; " + wrote},
		"unknown format":  {raw(1, emptyKind, 1, ""), "unknown format 1 of kind 2; " + wrote},
		"no length":       {raw(1, emptyKind, entryFormat, ""), "is truncated"},
		"more than empty": {raw(1, emptyKind, entryFormat, body("{}")+"x"), "1 bytes after"},
		"no JSON":         {raw(1, ringKind, entryFormat, body("{")), wrote},
		"more behind":     {raw(1, settledKind, entryFormat, body(`{"epoch":1}1`)), "data after the end of the JSON"},
		"unknown field":   {raw(1, settledKind, entryFormat, body(`{"epoch":1,"when":2}`)), wrote},
		"rules cut":       {raw(1, rulesKind, entryFormat, "2{"), "is truncated"},
		"rules endless":   {raw(1, rulesKind, entryFormat, "\xff\xff\xff\xff"), "is truncated"},
		"rules' part":     {raw(1, rulesKind, entryFormat, body(`{"change":{"Part":5}}`)), "unknown part 5"},
		"later level": {raw(Newest+1, 99, 7, "?"),
			fmt.Sprintf("feature level %d is needed, and this release knows %d: run release v9.1.0 or a later one", Newest+1, Newest)},
	} {
		next, r := s.Apply(s.Index+5, test.entry)
		var u *Unreadable
		if !errors.As(r.Err, &u) || !errors.Is(r.Err, ErrEntry) ||
			!strings.Contains(r.Err.Error(), test.why) || next != s {
			t.Errorf("%s: have %v, want %q", name, r.Err, test.why)
		}
	}
	// A build that lacks a kind reads the other kinds.
	lacks := Build{Level: Newest, Lacks: func(kind string) bool { return kind == "agreement.Mark" }}
	if _, err := lacks.Decode(encoded(t, Mark{Version: 1})); !errors.As(err, new(*Unreadable)) {
		t.Errorf("have %v", err)
	}
	if _, err := lacks.Decode(encoded(t, Empty{})); err != nil {
		t.Error(err)
	}
}

// rejects checks that an entry is rejected with a certain error, and changes
// nothing but the index and the hashes.
func rejects(t *testing.T, s *State, raw []byte, why string) {
	t.Helper()
	next, r := s.Apply(s.Index+5, raw)
	if !errors.Is(r.Err, ErrRejected) || !strings.Contains(r.Err.Error(), why) || r.Version != 0 {
		t.Errorf("have %v, want %q", r.Err, why)
	}
	expect.Equal(t, next.Index, s.Index+5, "index")
	back := *next
	back.Index, back.Hash, back.ComparedHash = s.Index, s.Hash, s.ComparedHash
	if !bytes.Equal(snapshotOf(t, &back), snapshotOf(t, s)) {
		t.Error("the state changed")
	}
}

func TestIndexGoesOnlyForward(t *testing.T) {
	s := do(t, New(), found, Empty{}, Empty{})
	for _, index := range []uint64{0, 1, 3} {
		if next, r := s.Apply(index, encoded(t, Empty{})); !errors.Is(r.Err, ErrRejected) || next != s {
			t.Errorf("index %d: have %v", index, r.Err)
		}
	}
	if next, r := s.Apply(math.MaxUint64, encoded(t, Empty{})); r.Err != nil || next.Index != math.MaxUint64 {
		t.Errorf("have %v", r.Err)
	}
}

func TestKnownNodesAreBounded(t *testing.T) {
	s := do(t, New(), ringOf(1, 1))
	full := *s
	full.Members = map[ring.NodeID]Member{}
	for i := range MaxKnown {
		full.Members[node(i+1)] = member(i + 1)
	}
	rejects(t, &full, encoded(t, ringOf(2, 1, MaxKnown+1)), "more than 4096")
	do(t, &full, ringOf(2, 1, 2), SettleMove{Epoch: 2}, Forget{node(9)}, ringOf(3, 1, MaxKnown+1))
}

func TestEntriesAreWrittenAndRead(t *testing.T) {
	w := write(1, 2)
	w.Change = document.Change{Part: document.TierPart, Name: "<&>ä ", Delete: true, Body: []byte("\xff\x00")}
	w.IfMatch, w.OnlyFirst, w.When = 9, true, w.When.Truncate(time.Millisecond)
	for _, want := range []Entry{
		found, Empty{}, ringOf(7, 1, 2), Leave{Epoch: 3, Node: node(1)}, SettleMove{Epoch: 4},
		EndNode{Node: node(2), Generation: 5}, Forget{node(3)}, w,
		RegisterProcess{Node: node(2), Boot: 1 << 63}, SetPrimary{"eu", WorldID{1}, 3, 2},
		ChangeRegion{"us", true, "x", 3}, Mark{4, 5}, Skipped{Hash: []byte{1}}, Raise{Level: 1},
		followed(t, moved(t)), followed(t, begun(t)),
	} {
		have, err := ThisBuild.Decode(encoded(t, want))
		if err != nil || !reflect.DeepEqual(have, want) {
			t.Errorf("have %+v, %v, want %+v", have, err, want)
		}
	}
	// A large body costs only its length.
	w.Change.Body = make([]byte, document.MaxDocument)
	if n := len(encoded(t, w)); n > document.MaxDocument+500 {
		t.Errorf("%d bytes", n)
	}
	w.Change.Body = make([]byte, document.MaxDocument+1)
	for name, e := range map[string]Entry{
		"large body": w, "nil": nil, "pointer": &Empty{},
		"name":      WriteRules{Change: document.Change{Name: "\xff"}},
		"long name": WriteRules{Change: document.Change{Name: strings.Repeat("x", maxHead)}},
	} {
		if b, err := ThisBuild.Encode(e); !errors.Is(err, ErrEntry) || b != nil {
			t.Errorf("%s: have %v", name, err)
		}
	}
}

func TestIDs(t *testing.T) {
	const text = "00112233445566778899aabbccddeeff"
	var c ClusterID
	var r RequestID
	if err := json.Unmarshal([]byte(`"`+text+`"`), &c); err != nil || c.String() != text || c.IsZero() {
		t.Errorf("have %s, %v", c, err)
	}
	if err := json.Unmarshal([]byte(`"`+text+`"`), &r); err != nil || r.String() != text || r.IsZero() {
		t.Errorf("have %s, %v", r, err)
	}
	for _, bad := range []string{"", "00", text + "00", "x" + text[1:]} {
		if c.UnmarshalText([]byte(bad)) == nil || !errors.Is(r.UnmarshalText([]byte(bad)), ErrID) ||
			c.String() != text {
			t.Errorf("%q is taken", bad)
		}
	}
}
