package authority

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/ring"
)

// TestGolden: the encoding of requests and replies stays the same.
func TestGolden(t *testing.T) {
	request := Request{
		Node: id(7), Boot: 3, Generation: 4, Applied: 5, Clocks: Clocks{7, 8}, SettledEpoch: 6,
		Unreachable: []ring.NodeID{id(1), id(2)}, Relayed: []ring.NodeID{id(3)}, Leaving: true,
		Stuck: true, StoreFails: true,
		NoAuthorityFor: 1500 * time.Millisecond,
		Level:          1, Release: "v1.0.0", Zones: "2025c",
		StateHash: agreement.HashAt{Index: 32, Hash: agreement.Hash{1, 31: 2}},
	}
	replies := []Reply{{Granted: true, Index: 9}, {Reason: "no", Index: 8},
		{Reason: "no", Differs: true}, {Reason: "no", Removed: true, Ungranted: []ring.NodeID{id(3)}}}
	b, err := json.Marshal(request)
	expect.NoError(t, err)
	lines := []golden.Line{{Name: "request", Bytes: b}}
	for i, r := range replies {
		if b, err = json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, golden.Line{Name: fmt.Sprintf("reply-%d", i), Bytes: b})
	}
	for i, b := range golden.Check(t, "testdata/messages.txt", lines...) {
		var have, want any = new(Request), &request
		if i > 0 {
			have, want = new(Reply), &replies[i-1]
		}
		if err := json.Unmarshal(b, have); err != nil || !reflect.DeepEqual(have, want) {
			t.Errorf("have %+v, %v", have, err)
		}
	}
}
