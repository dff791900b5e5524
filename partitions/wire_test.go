package partitions

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// Limits travel whole; those that mean something else on each node, or are not legal, don't.
func TestLimitsTravel(t *testing.T) {
	berlin, err := algorithms.Zone("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	day := algorithms.Limit{
		Kind: algorithms.FixedWindow, Amount: 7, Window: 24 * time.Hour, Calendar: algorithms.NewCalendar(algorithms.Day, berlin),
	}
	for _, want := range []algorithms.Limit{limit, day, {Kind: algorithms.TokenBucket, Amount: 5, Burst: 9, Window: time.Minute}} {
		r := reader{b: appendLimit(nil, &want)}
		have := r.limit()
		calendars := have.Calendar == nil && want.Calendar == nil ||
			have.Calendar != nil && want.Calendar != nil && have.Calendar.String() == want.Calendar.String()
		have.Calendar, want.Calendar = nil, nil
		if r.err != nil || len(r.b) > 0 || have != want || !calendars {
			t.Errorf("have %+v, %v, want %+v", have, r.err, want)
		}
	}
	local, bucket := day, day
	local.Calendar, bucket.Kind, bucket.Burst = algorithms.NewCalendar(algorithms.Day, time.Local), algorithms.TokenBucket, 1
	for name, bad := range map[string]algorithms.Limit{
		"local time": local, "a bucket by the calendar": bucket, "no amount": {Kind: algorithms.FixedWindow, Window: time.Minute},
		"no window": {Kind: algorithms.FixedWindow, Amount: 1},
	} {
		if r := (reader{b: appendLimit(nil, &bad)}); r.limit().Amount >= 0 && r.err == nil && time.Local.String() == "Local" {
			t.Errorf("%s was taken", name)
		}
	}
}

// Whatever comes, reading it ends, and gives nothing out of bounds.
func FuzzMessages(f *testing.F) {
	records := []counters.Record{{Key: keyOf(1), Kind: algorithms.FixedWindow, State: algorithms.State{Count: 3, At: 9}, FreshAt: 99}}
	packed, n := pack(nil, records, now())
	f.Add(appendSection(nil, section{p: 17, order: order{5, 1, 9}, flags: sectionCopy | sectionBegins | sectionEnds, parts: 1}, n, packed))
	f.Add(appendFinding(nil, 17, finding{whole: true, order: order{5, 1, 9}}))
	f.Add((&seal{number: number{7, 3}, partition: keyOf(1).Partition(), entries: []sealed{{key: keyOf(1), limit: limit, cost: 2}}}).append(nil, now()))
	f.Add(appendPartitions(nil, []int{0, 4095}))
	f.Add(appendLimit(nil, &limit))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := reader{b: b}
		for at := now(); r.err == nil && len(r.b) > 0; {
			p := -1
			r.section(at, func(s section) bool { p = s.p; return true }, func(rec counters.Record) {
				if rec.Key.Partition() != p {
					t.Errorf("a record of partition %d in the section of %d", rec.Key.Partition(), p)
				}
			})
		}
		if list, err := parsePartitions(b); err == nil && len(list) > 4096 {
			t.Errorf("%d partitions", len(list))
		}
		r = reader{b: b}
		if l := r.limit(); r.err == nil && (l.Amount < 1 || l.Window < algorithms.MinWindow) {
			t.Errorf("a limit that is not legal: %+v", l)
		}
		if found, err := parseFindings(b); err == nil && len(found) > 4096 {
			t.Errorf("%d findings", len(found))
		}
		r = reader{b: b}
		if s := r.seal(now(), 0); r.err == nil {
			for _, e := range s.entries {
				if e.key.Partition() != s.partition || e.cost < 1 || len(s.entries) > debtsPerMessage || s.incarnation > maxIncarnation {
					t.Errorf("a seal that is out of bounds: %+v", s)
				}
			}
		}
		r = reader{b: b}
		for i := range r.indexes(10) {
			if i < 0 || i > 9 {
				t.Errorf("place %d of 10", i)
			}
		}
	})
}
