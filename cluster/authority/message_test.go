package authority

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

func TestMessages(t *testing.T) {
	requests := []Request{
		{},
		{Node: id(7), Boot: 1 << 63, Generation: -1, Applied: 9, Settled: 1 << 62, Leaving: true},
		{Node: id(7), Boot: 3, GivingUp: true, Unreachable: []ring.NodeID{id(1), id(2)}},
		{Node: id(7), Boot: 3, Stuck: true, Unreachable: []ring.NodeID{id(1)}, Relayed: []ring.NodeID{id(4), id(5)}, Without: time.Second, Level: 7, Release: "v9.1.0", Zones: "2031a", Check: agreement.Check{Index: 32, Hash: agreement.Hash{1, 31: 2}}},
	}
	for _, want := range requests {
		b, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		have, err := ParseRequest(b)
		if err != nil || !reflect.DeepEqual(have, want) {
			t.Errorf("have %+v, %v, want %+v", have, err, want)
		}
	}
	many := Request{Unreachable: make([]ring.NodeID, maxReported+1)}
	b, _ := many.Encode()
	if have, err := ParseRequest(b); err != nil || len(have.Unreachable) != maxReported {
		t.Errorf("have %d, %v", len(have.Unreachable), err)
	}
	for _, want := range []Reply{{}, {Granted: true, Index: 1 << 63}, {Why: "no", Index: 3}, {Why: "no", Differs: true}, {Why: "no", Removed: true}, {Granted: true, Behind: []ring.NodeID{id(1), id(2)}}, {Why: strings.Repeat("x", maxText)}} {
		b, _ := want.Encode()
		if have, err := ParseReply(b); err != nil || !reflect.DeepEqual(have, want) {
			t.Errorf("have %+v, %v, want %+v", have, err, want)
		}
	}
	b, _ = Reply{Why: strings.Repeat("x", 1000)}.Encode()
	if have, err := ParseReply(b); err != nil || len(have.Why) != maxText {
		t.Errorf("have %d bytes, %v", len(have.Why), err)
	}
}

func FuzzMessages(f *testing.F) {
	b, _ := Request{Node: id(7), Boot: 3, GivingUp: true, Unreachable: []ring.NodeID{id(1)}}.Encode()
	f.Add(b)
	b, _ = Reply{Why: "no", Index: 3}.Encode()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseRequest(b); err == nil {
			again, _ := r.Encode()
			same, err := ParseRequest(again)
			if twice, _ := same.Encode(); err != nil || !bytes.Equal(twice, again) {
				t.Errorf("%+v is read again as %+v, %v", r, same, err)
			}
		} else if !errors.Is(err, ErrMessage) {
			t.Error(err)
		}
		if r, err := ParseReply(b); err == nil {
			again, _ := r.Encode()
			same, err := ParseReply(again)
			if twice, _ := same.Encode(); err != nil || !bytes.Equal(twice, again) {
				t.Errorf("%+v is read again as %+v, %v", r, same, err)
			}
		} else if !errors.Is(err, ErrMessage) {
			t.Error(err)
		}
	})
}

// TestMessagesAreBounded: what is too long to have been written by Encode is refused.
func TestMessagesAreBounded(t *testing.T) {
	nodes := make([]ring.NodeID, maxReported+1)
	for name, r := range map[string]Request{
		"unreachable": {Unreachable: nodes}, "relayed": {Relayed: nodes}, "release": {Release: strings.Repeat("x", maxText+1)}, "without": {Without: -1},
	} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseRequest(b); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: have %v", name, err)
		}
	}
	for name, r := range map[string]Reply{"behind": {Behind: nodes}, "why": {Why: strings.Repeat("x", maxText+1)}} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseReply(b); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: have %v", name, err)
		}
	}
}
