package gossip

import (
	"slices"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/ring"
)

// TestGolden: metadata, and the state sent with lists, keep their encoding.
func TestGolden(t *testing.T) {
	want := Member{Boot: 1 << 63, Name: "n1", Region: "eu", Zone: "a", PeerPort: 7947,
		Cluster: [16]byte{15: 1}, BootstrapExpect: 3, RaftEmpty: true, SettingsVersion: 2,
		RegionSize: 300, Primary: "us", State: Left}
	metadata, err := appendMetadata(nil, want)
	expect.NoError(t, err)
	gone := []departure{{id: ring.NodeID{7}, boot: 1 << 63}}
	kept := golden.Check(t, "testdata/messages.txt", golden.Line{Name: "metadata", Bytes: metadata},
		golden.Line{Name: "state", Bytes: appendState(gone, []byte("news"))})
	if have, err := parseMetadata(kept[0]); err != nil || have != want {
		t.Errorf("have %+v, %v", have, err)
	}
	if all, news, err := parseState(kept[1]); err != nil || !slices.Equal(all, gone) || string(news) != "news" {
		t.Errorf("have %v, %q, %v", all, news, err)
	}
}
