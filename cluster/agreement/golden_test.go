package agreement

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// goldenBuild signs the golden files.
var goldenBuild = Build{Level: 1, Release: "v1.0.0", Zones: "2025c"}

// goldenEntries returns entries of each kind, with every field set, in an order
// in which they can be applied.
func goldenEntries() []Entry {
	when := time.UnixMilli(1_800_000_000_000).UTC()
	return []Entry{
		FoundCluster{Cluster: ClusterID{1, 15: 2}, SigningKey: bytes.Repeat([]byte{7}, secretBytes), Level: 1},
		Empty{},
		Reign{Number: 77},
		RegisterProcess{Node: node(1), Boot: 11, Reign: 77, Level: 1, Release: "v1.0.0", Zones: "2025c"},
		RegisterProcess{Node: node(1), Boot: 12},
		Ring{Epoch: 1, Members: members(1, 2, 3), Settings: ring.DefaultSettings()},
		SetPrimary{Region: "eu", World: WorldID{3}, PrimaryEpoch: 4, When: when.UnixMilli()},
		WriteRules{
			Request: RequestID{5}, By: "n1", When: when, OnlyFirst: true,
			Change: document.Change{Body: []byte("version: 1\nrules:\n  - {name: day, key: [ip], scope: global, limits: [{limit: 9, per: day, tz: Europe/Berlin}]}\n")},
		},
		ChangeRegion{Name: "us", By: "region us", When: when.UnixMilli()},
		Mark{Version: 2},
		Mark{Version: 2, At: when.UnixMilli()},
		WriteRules{
			Request: RequestID{6}, By: "n2", When: when.Add(time.Second), IfMatch: 2,
			Change: document.Change{Part: document.TierPart, Name: "free", Body: []byte("limits: [{limit: 1, per: 1m}]")},
		},
		Leave{Epoch: 2, Node: node(3), Reason: Unreachable, When: when.UnixMilli()},
		SettleMove{Epoch: 2, Revision: 13},
		EndNode{Node: node(2), Generation: 0, Reign: 77, Reason: Behind, When: when.UnixMilli()},
		EndNode{Node: node(1), Generation: 0, Reason: Removed, When: when.UnixMilli()},
		Depart{Departure{Node: node(3), Name: "n3", By: "ann", When: when.UnixMilli()}},
		Forget{Node: node(3)},
		Raise{Level: 1},
		Skipped{Hash: bytes.Repeat([]byte{9}, 32)},
		ChangeRegion{Name: "us", Remove: true},
		Ring{Epoch: 3, Members: members(1, 2), Settings: ring.DefaultSettings()},
		ChangeEntries{Request: RequestID{7}, Changes: []entries.Change{
			{When: when.UnixMilli(), By: "ops", Entry: &entries.Entry{
				Kind: entries.Deny, Match: []entries.Condition{{Attribute: "ip", Values: []string{"192.0.2.7"}}},
				When: when.UnixMilli(), Until: when.UnixMilli() + 1000, By: "ops", Note: "n", Token: "t", Scoped: true,
			}},
			{When: when.UnixMilli(), By: "ops", Entry: &entries.Entry{
				Kind: entries.Subject, Attribute: "tenant", Value: "acme", Tier: "pro",
				Limits: []byte(`{"day":[{"limit":1,"per":"1h"}]}`),
				When:   when.UnixMilli(), By: "ops",
			}},
			{When: when.UnixMilli(), By: "ops",
				Entry: &entries.Entry{Kind: entries.Block, Rule: "day", Key: []string{"a"}, When: when.UnixMilli()}},
		}},
		ExpireEntries{Before: when.UnixMilli() + 1000},
		ChangeEntries{Changes: []entries.Change{
			{When: when.UnixMilli() + 2000, By: "ops", Remove: true,
				Entry: &entries.Entry{Kind: entries.Block, Rule: "day", Key: []string{"a"}}},
		}},
		AdoptEntries{Records: []*entries.Record{{
			Version: 6, When: when.UnixMilli() + 3000, By: "far",
			After: &entries.Entry{Kind: entries.Block, Rule: "day", Key: []string{"b"}, When: when.UnixMilli() + 3000},
		}}},
	}
}

// TestGolden: the encoding of each kind of entry and of the resulting snapshot
// stays the same. So do the results of entries, because the hash is chained
// over them.
func TestGolden(t *testing.T) {
	var lines []golden.Line
	s := New()
	name := func(i int, e Entry) string {
		return fmt.Sprintf("%02d-%s", i, strings.TrimPrefix(fmt.Sprintf("%T", e), "agreement."))
	}
	for i, e := range goldenEntries() {
		b, _, err := goldenBuild.Prepare(s, e)
		expect.NoError(t, err)
		lines = append(lines, golden.Line{Name: name(i, e), Bytes: b})
		s, _ = goldenBuild.Apply(s, s.Index+1, b, nil)
	}
	kept := golden.Check(t, "testdata/entries.txt", lines...)
	again := New()
	for i, e := range goldenEntries() {
		next, r := goldenBuild.Apply(again, again.Index+1, kept[i], nil)
		if r.Err != nil && (i != 18 || next == again) { // raising the level to what it already is is rejected
			t.Errorf("%s: %v", name(i, e), r.Err)
		}
		again = next
	}
	follow, err := s.AppendAdopt(nil)
	expect.NoError(t, err)
	adopt, _, err := goldenBuild.Prepare(New(), followed(t, s))
	expect.NoError(t, err)
	snapshot, err := goldenBuild.AppendSnapshot(nil, s)
	expect.NoError(t, err)
	states := golden.Check(t, "testdata/states.txt", golden.Line{Name: "snapshot", Bytes: snapshot},
		golden.Line{Name: "follow", Bytes: follow}, golden.Line{Name: "adopt",
			Bytes: adopt}, golden.Line{Name: "hash", Bytes: again.Hash[:]})
	back, err := goldenBuild.Parse(states[0])
	if err != nil || back.Hash != again.Hash || !bytes.Equal(snapshotOf(t, back), snapshotOf(t, again)) {
		t.Errorf("the snapshot is read as another state: %v", err)
	}
	if _, err := ParseAdopt(states[1]); err != nil {
		t.Error(err)
	}
	if _, r := goldenBuild.Apply(New(), 1, states[2], nil); r.Err != nil {
		t.Error(r.Err)
	}
}
