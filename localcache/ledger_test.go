package localcache

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

var fixed = algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1000, Window: time.Minute}

func TestSize(t *testing.T) {
	tests := []struct {
		name                        string
		want, remaining, out, there int64
		nodes                       int
		have                        int64
	}{
		{"what is wanted", 10, 1000, 0, 0, 3, 10},
		{"its part of the headroom under the threshold", 5000, 1000, 0, 0, 3, 212},
		{"the second grant of docs/design/leases.md", 600, 787, 106, 106, 3, 159},
		{"half of it, on one node", 5000, 1000, 0, 0, 1, 425},
		{"its part of what is left of it", 5000, 550, 0, 0, 3, 100},
		{"above it, a part of what may be idle", 5000, 100, 0, 0, 3, 6},
		{"less what the node has", 5000, 100, 4, 4, 3, 2},
		{"and nothing if it has its part", 5000, 100, 6, 6, 3, 0},
		{"less what is out in all", 5000, 100, 19, 0, 3, 1},
		{"nothing above all that may be idle", 5000, 100, 30, 0, 3, 0},
		{"less than a unit for each node", 5000, 100, 0, 0, 21, 0},
		{"no more than is left", 5000, 2, 0, 0, 3, 2},
		{"nothing", 5000, 0, 0, 0, 3, 0},
	}
	for _, tt := range tests {
		a := SizeInput{Limit: &fixed, Want: tt.want, Remaining: tt.remaining, MaySpend: tt.out, HolderMaySpend: tt.there}
		if have := Size(a, Policy{Threshold: 0.85, Idle: 0.02, Nodes: tt.nodes}); have != tt.have {
			t.Errorf("%s: have %d, want %d", tt.name, have, tt.have)
		}
	}
}

func request(holder byte, want, remaining int64, l *algorithms.Limit) *GrantInput {
	op := counters.Op{Key: counters.Key{Subject: 7}, Limit: l, Decision: algorithms.Decision{Remaining: remaining}}
	request := LeaseRequest{Policy: Policy{Threshold: 0.85, Idle: 0.02, TTL: time.Second}, Want: []int64{want}}
	return &GrantInput{Holder: ring.NodeID{holder}, Lineage: 1, SameBoot: true, Nodes: 3,
		Request: &request, Ops: []counters.Op{op}}
}

func debitAlways([]counters.Op) bool { return true }

// giveBack returns how much of a grant the owner takes back.
func (led *LeaseLedger) giveBack(now time.Duration, lineage, id uint64, cost int64, l *algorithms.Limit) (given int64) {
	ops := []counters.Op{{Key: counters.Key{Subject: 7}, Limit: l, Cost: cost}}
	led.Return(now, lineage, id, ops, func(_ int, cost int64) bool { given += cost; return true })
	return given
}

// At most what was granted comes back: once, to the same lineage of the counters, and in time.
func TestReturn(t *testing.T) {
	b := NewLeaseLedger(0)
	grant := func() uint64 {
		id, amounts := b.Grant(0, request(1, 100, 1000, &fixed), debitAlways)
		if id == 0 || amounts[0] != 100 {
			t.Fatalf("have %d, %v", id, amounts)
		}
		return id
	}
	expect.Equal(t, b.giveBack(1, 1, grant(), 500, &fixed), 100, "more than granted")
	id := grant()
	expect.Equal(t, b.giveBack(1, 2, id, 5, &fixed), 0, "from another lineage")
	expect.Equal(t, b.giveBack(1, 1, id, 5, &fixed)+b.giveBack(1, 1, id, 5, &fixed), 5, "twice")
	expect.Equal(t, b.giveBack(time.Second+returnGrace, 1, grant(), 5, &fixed), 0, "too late")
	id = grant()
	shut := func(int, int64) bool { return false }
	b.Return(1, 1, id, []counters.Op{{Key: counters.Key{Subject: 7}, Limit: &fixed, Cost: 5}}, shut)
	expect.Equal(t, b.giveBack(1, 1, id, 5, &fixed), 5, "of counters that were shut the first time")
	b.Sweep(time.Hour)
	expect.Equal(t, b.Outstanding(), 0, "grants are outstanding")
	for i := range b.shards {
		if len(b.shards[i].subjects) > 0 {
			t.Error("a subject is left")
		}
	}
}

// The ledger applies a holder's report on its grants, including those that are spent.
func TestHolderReport(t *testing.T) {
	b := NewLeaseLedger(0)
	first, _ := b.Grant(0, request(1, 6, 100, &fixed), debitAlways)
	r := request(1, 6, 100, &fixed)
	if id, _ := b.Grant(0, r, debitAlways); id != 0 {
		t.Error("granted although the holder has its part")
	}
	r.Request.LastGrant, r.Request.Held = first, []HeldGrant{{ID: first, Left: []int64{2}}}
	second, amounts := b.Grant(0, r, debitAlways)
	if second == 0 || amounts[0] != 4 {
		t.Errorf("the holder has two left: have %v", amounts)
	}
	r.Request.Held = nil
	if _, amounts := b.Grant(0, r, debitAlways); amounts == nil || amounts[0] != 2 {
		t.Errorf("the first is spent, the second in transit: have %v", amounts)
	}
	r.SameBoot = false
	if id, _ := b.Grant(0, r, debitAlways); id != 0 {
		t.Error("a report about grants of another process was applied")
	}
	// A grant that was already on its way back is accepted.
	expect.Equal(t, b.giveBack(1, 1, first, 2, &fixed), 2, "b.giveBack(1, 1, first, 2, &fixed)")
}

func TestNothingIsGrantedThatIsNotDebited(t *testing.T) {
	b := NewLeaseLedger(0)
	if id, _ := b.Grant(0, request(1, 6, 100, &fixed),
		func([]counters.Op) bool { return false }); id != 0 || b.Outstanding() != 0 {
		t.Error("granted without a debit")
	}
	r := request(1, 6, 100, &fixed)
	r.Request.Want[0] = 0
	if id, _ := b.Grant(0, r, debitAlways); id != 0 {
		t.Error("granted although nothing was wanted")
	}
}
