package partitions

import (
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/internal/wire"
)

// TestGolden: the parts of keepers' messages keep their encoding.
func TestGolden(t *testing.T) {
	at := algorithms.Instant{Steady: 5_000_000_000_000, Wall: 1_800_000_000_000_000_000}
	records := []counters.Record{
		{Key: keyOf(1), Kind: algorithms.FixedWindow, State: algorithms.State{Count: 3, At: 9}, ExpiresAt: 5099},
		{Key: keyOf(1), Kind: algorithms.TokenBucket,
			State: algorithms.State{Count: 3, Part: 7, At: at.Steady - 1000}, Fullness: 9,
			ExpiresAt: 5099},
		{Key: keyOf(1), Kind: algorithms.SlidingLog,
			Log: []algorithms.Entry{{At: at.Steady - 9, N: 2}, {At: at.Steady, N: 1}}, ExpiresAt: 5099},
	}
	lineage := version{lineage: 1 << 63, tenure: 2, round: 900}
	whole, _ := (&section{p: records[0].Key.Partition(), version: lineage,
		flags: sectionCopy | sectionBegins | sectionEnds}).append(nil, records, at)
	bucket := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 5, Burst: 9, Window: 1e9}
	owed := debt{key: keyOf(1), number: debtNumber{7, 3}, owedCost: owedCost{limit: bucket, cost: 300}}
	parts := []struct {
		name  string
		bytes []byte
		read  func(d *wire.Decoder)
	}{
		{"copy", whole,
			func(d *wire.Decoder) {
				found := 0
				decodeSection(d, at, func(section) bool { return true }, func(counters.Record) { found++ })
				expect.Equal(t, found, len(records), "records are read")
			}},
		{"finding", appendCopyInfo(nil, 17, copyInfo{whole: true, version: lineage}), func(d *wire.Decoder) {
			if found, err := parseCopyInfos(d.Rest()); err != nil || len(found) != 1 {
				t.Errorf("have %v, %v", found, err)
			}
		}},
		{"debt", owed.append(nil, 9, at), func(d *wire.Decoder) { decodeDebt(d, at, 0) }},
		{"partitions", appendPartitions(nil, []int{0, 200, 4095}), func(d *wire.Decoder) { decodePartitions(d) }},
	}
	var lines []golden.Line
	for _, p := range parts {
		lines = append(lines, golden.Line{Name: p.name, Bytes: p.bytes})
	}
	for i, b := range golden.Check(t, "testdata/messages.txt", lines...) {
		d := wire.NewDecoder(b)
		parts[i].read(d)
		if err := d.Done(parts[i].name); err != nil {
			t.Error(err)
		}
	}
}
