package limiter

import (
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
)

// Questions carry blocks and the delays of limits. Invalid ones are rejected.
func TestPoliciesTravel(t *testing.T) {
	block := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1, Burst: 1, Window: time.Hour}
	slow := algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 5, Window: time.Hour, MaxDelay: 24 * time.Hour}
	bucket := algorithms.Limit{Kind: algorithms.LeakyBucket, Amount: 5, Burst: 7, Window: time.Hour, MaxDelay: 1}
	message := func(ops ...counters.Op) []byte {
		for i := range ops {
			ops[i].Key = counters.Key{Subject: 1, Counter: uint64(i)}
		}
		q := &question{count: 1, ops: ops}
		return q.appendBody(q.appendHead(nil))
	}
	var have question
	expect.NoError(t,
		have.read(message(counters.Op{Limit: &slow, Cost: 3},
			counters.Op{Limit: &bucket, Shadow: true},
			counters.Op{Limit: &block, Block: true, Shadow: true})))
	want := []algorithms.Limit{slow, bucket, block}
	if !slices.Equal(have.limits, want) || !have.ops[2].Block || !have.ops[2].Shadow ||
		have.ops[0].Block || have.ops[1].Block || !have.ops[1].Shadow {
		t.Errorf("have %+v", have.ops)
	}
	two, never := block, slow
	two.Burst, never.MaxDelay = 2, algorithms.LongestDelay+1
	for name, op := range map[string]counters.Op{
		"a block of another kind": {Limit: &slow, Block: true},
		"a block of two":          {Limit: &two, Block: true},
		"a block with a cost":     {Limit: &block, Block: true, Cost: 1},
		"too long a delay":        {Limit: &never},
	} {
		if err := (&question{}).read(message(op)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	g := &refundList{[]refund{{takenCosts: takenCosts{ops: []counters.Op{{Limit: &slow, Cost: 1}}, marks: []algorithms.TakeMark{5}}}}}
	if err := wire.Decode(wire.Encode(nil, g), &refundList{}, "gifts"); err != nil {
		t.Error(err)
	}
	g.list[0].ops[0] = counters.Op{Limit: &block, Block: true}
	if err := wire.Decode(wire.Encode(nil, g), &refundList{}, "gifts"); err == nil {
		t.Error("a block was given back")
	}
}
