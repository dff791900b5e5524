package partitions

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
)

// A debt keeps the limit that admitted it, including calendar and delay. A
// calendar's zone is loaded once, however many debts use it.
func TestDebtsKeepTheirLimits(t *testing.T) {
	day, err := algorithms.CalendarOf(algorithms.Day, "Europe/Berlin")
	expect.NoError(t, err)
	for _, l := range []algorithms.Limit{
		limit,
		{Kind: algorithms.FixedWindow, Amount: 7, Window: 24 * time.Hour, Calendar: day, MaxDelay: time.Hour},
		{Kind: algorithms.LeakyBucket, Amount: 5, Burst: 9, Window: time.Minute, MaxDelay: time.Minute},
	} {
		sent := &debt{key: keyOf(1), owedCost: owedCost{limit: l, cost: 2}}
		got := decodeDebt(wire.NewDecoder(sent.append(nil, 7, now())), now(), 0)
		expect.Equal(t, got.limit, l, "the limit")
		expect.Equal(t, got.number.bootIndex, 7, "the process of a debt that was not reported before")
	}
}

// Decoding any message ends, and yields nothing out of bounds.
func FuzzMessages(f *testing.F) {
	records := []counters.Record{{Key: keyOf(1), Kind: algorithms.FixedWindow,
		State: algorithms.State{Count: 3, At: 9}, ExpiresAt: 99}}
	b, _ := (&section{p: 17, version: version{5, 1, 9},
		flags: sectionCopy | sectionBegins | sectionEnds}).append(nil, records, now())
	f.Add(b)
	f.Add(appendCopyInfo(nil, 17, copyInfo{whole: true, version: version{5, 1, 9}}))
	f.Add((&debt{key: keyOf(1), number: debtNumber{7, 3},
		owedCost: owedCost{limit: limit, cost: 2}}).append(nil, 0, now()))
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
		if found, err := parseCopyInfos(b); err == nil && len(found) > 4096 {
			t.Errorf("%d findings", len(found))
		}
		d = wire.NewDecoder(b)
		if one := decodeDebt(d, now(), 0); !d.Failed() &&
			(one.cost < 1 || one.number.bootIndex > maxOwedCost || one.number.n > maxOwedCost) {
			t.Errorf("a debt out of bounds: %+v", one)
		}
	})
}
