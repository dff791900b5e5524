package ring

import "testing"

func TestLookingUpAllocatesNothing(t *testing.T) {
	members := nodes(10)
	table := build(t, members)
	p := 0
	if n := testing.AllocsPerRun(1000, func() {
		p = PartitionOf(uint64(p+1) << 52)
		if table.Owner(p) == table.Standby(p) || table.Rank(members[p%10]) < 0 || len(table.Members()) != 10 {
			t.Errorf("partition %d: no owner, standby or member", p)
		}
	}); n != 0 {
		t.Errorf("have %v allocations, want 0", n)
	}
}

func BenchmarkRank(b *testing.B) {
	members := nodes(100)
	table := build(b, members)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_ = table.Rank(members[i%100])
	}
}
