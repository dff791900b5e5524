package partitions

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
)

// A debt keeps the limit that admitted it, including calendar and delay. A calendar's zone is loaded once, however many
// debts use it.
func TestDebtsKeepTheirLimits(t *testing.T) {
	day, err := algorithms.CalendarOf(algorithms.Day, "Europe/Berlin")
	expect.NoError(t, err)
	sent := &debtBatch{batchNumber: batchNumber{7, 3}, partition: keyOf(1).Partition()}
	for _, l := range []algorithms.Limit{
		limit,
		{Kind: algorithms.FixedWindow, Amount: 7, Window: 24 * time.Hour, Calendar: day, MaxDelay: time.Hour},
		{Kind: algorithms.LeakyBucket, Amount: 5, Burst: 9, Window: time.Minute, MaxDelay: time.Minute},
	} {
		sent.entries = append(sent.entries, batchedDebt{key: keyOf(1), owedCost: owedCost{limit: l, cost: 2}})
	}
	have := decodeBatch(wire.NewDecoder(sent.append(nil, now())), now(), 0)
	if have == nil || len(have.entries) != len(sent.entries) {
		t.Fatalf("have %+v", have)
	}
	for i := range have.entries {
		expect.Equal(t, have.entries[i].limit, sent.entries[i].limit, "have.entries[i].limit")
	}
}

// Decoding any message ends, and yields nothing out of bounds.
func FuzzMessages(f *testing.F) {
	records := []counters.Record{{Key: keyOf(1), Kind: algorithms.FixedWindow, State: algorithms.State{Count: 3, At: 9}, FreshAt: 99}}
	b, _ := (&section{p: 17, version: version{5, 1, 9}, flags: sectionCopy | sectionBegins | sectionEnds}).append(nil, records, now())
	f.Add(b)
	f.Add(appendFinding(nil, 17, finding{whole: true, version: version{5, 1, 9}}))
	f.Add((&debtBatch{batchNumber: batchNumber{7, 3}, partition: keyOf(1).Partition(), entries: []batchedDebt{{key: keyOf(1), owedCost: owedCost{limit: limit, cost: 2}}}}).append(nil, now()))
	f.Add(appendPartitions(nil, []int{0, 4095}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := wire.NewDecoder(b)
		for at := now(); d.More(); {
			p := -1
			decodeSection(d, at, func(s section) bool { p = s.p; return true }, func(rec counters.Record) {
				if rec.Key.Partition() != p {
					t.Errorf("a record of partition %d in the section of partition %d", rec.Key.Partition(), p)
				}
			})
		}
		if list, err := parsePartitions(b); err == nil && len(list) > 4096 {
			t.Errorf("%d partitions", len(list))
		}
		if found, err := parseFindings(b); err == nil && len(found) > 4096 {
			t.Errorf("%d findings", len(found))
		}
		d = wire.NewDecoder(b)
		if batch := decodeBatch(d, now(), 0); !d.Failed() {
			for _, e := range batch.entries {
				if e.key.Partition() != batch.partition || e.cost < 1 || len(batch.entries) > debtsPerMessage || batch.bootIndex > maxOwedCost {
					t.Errorf("a batch out of bounds: %+v", batch)
				}
			}
		}
		d = wire.NewDecoder(b)
		for i := range decodeIndexes(d, 10) {
			if i < 0 || i > 9 {
				t.Errorf("index %d of 10", i)
			}
		}
	})
}
