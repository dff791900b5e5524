package authority

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/ring"
)

// TestGolden: the encoding of requests and replies stays the same.
func TestGolden(t *testing.T) {
	request := Request{
		Node: id(7), Boot: 3, Generation: 4, Applied: 5, Settled: 6, Unreachable: []ring.NodeID{id(1), id(2)}, Relayed: []ring.NodeID{id(3)}, Leaving: true, Stuck: true, StoreFails: true,
		Without: 1500 * time.Millisecond,
		Level:   1, Release: "v1.0.0", Zones: "2025c", Check: agreement.HashAt{Index: 32, Hash: agreement.Hash{1, 31: 2}},
	}
	replies := []Reply{{Granted: true, Index: 9}, {Why: "no", Index: 8}, {Why: "no", Differs: true}, {Why: "no", Removed: true, Failing: []ring.NodeID{id(3)}}}
	b, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
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
