package cluster

import (
	"log/slog"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
)

// Nothing is recorded while a region's clock is far from another's, and what is
// dropped depends on the earliest clock: older versions count until then.
func TestMarksByWrongClocks(t *testing.T) {
	now := time.Now()
	minute := time.Minute.Milliseconds()
	const candidate, recorded = true, false
	margin := recordMargin.Milliseconds()
	if recordMargin <= authority.EndingWait {
		t.Errorf("a node that was cut off decides by an older version for %v, and the margin is %v", authority.EndingWait, recordMargin)
	}
	for _, tt := range []struct {
		name   string
		held   bool
		eu, us int64 // how far ahead their clocks are, ms
		before int64 // how far ahead us's clock was a second ago
		want   int64 // Mark.At, ms from now; 0 for no mark
	}{
		{"clocks that agree", candidate, 0, 300, 300, 300 + margin},
		{"a minute apart", candidate, 0, minute, 0, minute + margin},
		{"a day ahead", candidate, 0, 1440 * minute, 0, 0},
		{"a day behind", candidate, 1440 * minute, 0, 0, 0},
		{"a day ahead for a second", candidate, 0, 0, 1440 * minute, 0},
		{"drop what has ended", recorded, 400, 300, 300, 300},
		{"a day ahead does not end windows", recorded, 1440 * minute, 300, 300, 300},
		{"a day ahead elsewhere does not either", recorded, -200, 1440 * minute, 0, -200},
	} {
		v := rulesPosition{World: agreement.WorldID{1}, PrimaryEpoch: 1, Version: 2}
		sr := &sharedRules{core: &core{config: Config{Logger: slog.New(slog.DiscardHandler)}}, reports: regionReports{}}
		report := func(region string, ahead int64, at time.Time) {
			clock := at.UnixMilli() + ahead
			sr.reports.add(region, regionReport{rulesPosition: v, clocks: authority.Clocks{Earliest: clock, Latest: clock}, at: at})
		}
		report("us", tt.before, now.Add(-time.Second))
		report("eu", tt.eu, now)
		report("us", tt.us, now)
		last := agreement.Held{Version: 2, Candidate: tt.held}
		if !tt.held {
			last.RecordedAt = 1
		}
		r := &agreement.Regions{World: v.World, PrimaryEpoch: 1, Committed: []string{"eu", "us"},
			Held: []agreement.Held{{Version: 1, RecordedAt: 1}, last}}

		m, ok := sr.nextMark(r)
		const late = 5000 // how long this test may take
		if ahead := m.At - now.UnixMilli(); ok != (tt.want != 0) || ok && (ahead < tt.want || ahead > tt.want+late) {
			t.Errorf("%s: got %d ms from now, %v, want %d", tt.name, ahead, ok, tt.want)
		}
	}
}
