package ring

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestTableRoundTrip(t *testing.T) {
	ids := nodes(50)
	for _, n := range []int{1, 2, 3, 50} {
		table := build(t, ids[:n])
		for _, want := range []*Table{table, table.Without(ids[0])} {
			raw, err := want.AppendBinary([]byte("before"))
			if err != nil || !bytes.HasPrefix(raw, []byte("before")) {
				t.Fatalf("have %q, %v", raw[:10], err)
			}
			have, err := Parse(raw[6:])
			expect.NoError(t, err)
			if !have.Equal(want) || have.Canonical() != want.Canonical() || have.Settings() != want.Settings() {
				t.Errorf("%d members: the decoded table differs", n)
			}
			if !bytes.Equal(written(t, have), raw[6:]) {
				t.Errorf("%d members: the encoding differs", n)
			}
		}
	}
}

// A table from a later build is accepted unchanged.
func TestUnknownSettingsAreAccepted(t *testing.T) {
	table := build(t, nodes(3))
	table.settings.Library, table.settings.Hash, table.settings.Factor = "another v2", "<&>", 7
	have, err := Parse(written(t, table))
	if err != nil || !have.Equal(table) || have.Settings() != table.Settings() {
		t.Errorf("have %+v, %v", have, err)
	}
}

func TestDamagedTables(t *testing.T) {
	ids := nodes(3)
	good := written(t, build(t, ids))
	members := bytes.Index(good, build(t, ids).Members()[0][:])
	owners := members + 3*16
	standbys := owners + 2*Partitions
	tests := map[string]func([]byte) []byte{
		"empty":           func([]byte) []byte { return nil },
		"format":          func(b []byte) []byte { b[0] = 9; return b },
		"canonical":       func(b []byte) []byte { b[1] = 2; return b },
		"settings length": func(b []byte) []byte { b[3] = 0xff; return b },
		"settings":        func(b []byte) []byte { b[5] = 'x'; return b },
		"unknown setting": func(b []byte) []byte { return bytes.Replace(b, []byte("hash"), []byte("hush"), 1) },
		"partitions":      func(b []byte) []byte { return bytes.Replace(b, []byte("4096"), []byte("4097"), 1) },
		"case of a key":   func(b []byte) []byte { return bytes.Replace(b, []byte("hash"), []byte("Hash"), 1) },
		"members":         func(b []byte) []byte { b[members-2]++; return b },
		"no members":      func(b []byte) []byte { b[members-2] = 0; return slices.Delete(b, members, owners) },
		"order":           func(b []byte) []byte { b[members] = 0xff; return b },
		"twice":           func(b []byte) []byte { copy(b[members:], b[members+16:members+32]); return b },
		"zero member":     func(b []byte) []byte { clear(b[members : members+16]); return b },
		"owner":           func(b []byte) []byte { b[owners] = 3; return b },
		"standby":         func(b []byte) []byte { b[standbys+1] = 0xff; return b },
		"standby is owner": func(b []byte) []byte {
			copy(b[standbys:standbys+2], b[owners:])
			return b
		},
		"cut":  func(b []byte) []byte { return b[:len(b)-1] },
		"more": func(b []byte) []byte { return append(b, 0) },
	}
	for name, harm := range tests {
		if table, err := Parse(harm(bytes.Clone(good))); !errors.Is(err, ErrFormat) || table != nil {
			t.Errorf("%s: have %v, want ErrFormat", name, err)
		}
	}
	for n := 0; n < len(good); n += 1 + n/50 {
		if _, err := Parse(good[:n]); !errors.Is(err, ErrFormat) {
			t.Fatalf("cut at %d: have %v", n, err)
		}
	}
	long := build(t, ids)
	long.settings.Library = string(make([]byte, maxSettings))
	if _, err := long.AppendBinary(nil); !errors.Is(err, ErrFormat) {
		t.Errorf("have %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, n := range []int{1, 2, 5} {
		table := build(f, nodes(n))
		f.Add(written(f, table))
		f.Add(written(f, table.Without(table.Members()[0])))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) || table != nil {
				t.Fatalf("have %v", err)
			}
			return
		}
		if !bytes.Equal(written(t, table), b) {
			t.Fatal("the encoding differs")
		}
		for _, id := range slices.Clone(table.Members()) {
			table = table.Without(id)
			if table.Owner(7).IsZero() || table.Owner(7) == table.Standby(7) {
				t.Fatal("partition 7 has no owner, or the same owner and standby")
			}
			if _, err := Parse(written(t, table)); err != nil {
				t.Fatal(err)
			}
			if len(table.Members()) > 100 {
				break
			}
		}
	})
}

func TestNodeID(t *testing.T) {
	const text = "00112233445566778899aabbccddeeff"
	id, err := ParseNodeID(text)
	if err != nil || id.String() != text || id[15] != 0xff || id.IsZero() || !(NodeID{}).IsZero() {
		t.Fatalf("have %s, %v", id, err)
	}
	for _, bad := range []string{"", "00", text + "0", text[:31], text[:31] + "g", text[:31] + "ä"} {
		if have, err := ParseNodeID(bad); !errors.Is(err, ErrNodeID) || !have.IsZero() {
			t.Errorf("%q: have %s, %v", bad, have, err)
		}
	}
	if (NodeID{1}).Compare(NodeID{2}) >= 0 || id.Compare(id) != 0 || (NodeID{0, 1}).Compare(NodeID{}) <= 0 {
		t.Error("IDs are out of order")
	}
	raw, err := json.Marshal(map[NodeID]NodeID{id: id})
	if want := `{"` + text + `":"` + text + `"}`; err != nil || string(raw) != want {
		t.Errorf("have %s, %v, want %s", raw, err, want)
	}
	var back map[NodeID]NodeID
	if err := json.Unmarshal(raw, &back); err != nil || back[id] != id {
		t.Errorf("have %v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`"0"`), &id); !errors.Is(err, ErrNodeID) || id.String() != text {
		t.Errorf("have %v, %s", err, id)
	}
}
