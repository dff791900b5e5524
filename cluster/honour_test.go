package cluster

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
)

// at returns a state with the given number of versions of the rules, in a world
// and a primary epoch.
func at(t *testing.T, world byte, primaryEpoch int64, versions int) *agreement.State {
	t.Helper()
	s := agreement.New()
	s.Regions = &agreement.Regions{World: agreement.WorldID{world}, PrimaryEpoch: primaryEpoch}
	for i := range versions {
		h, err := s.History.Write(rules.Write{Change: worldWide(i + 1), When: time.Unix(0, 0)})
		expect.NoError(t, err)
		s.History = h
	}
	return s
}

func TestHonoursWaitForOneVersionAtATime(t *testing.T) {
	var h honourProgress
	h.setAwaited(positionOf(at(t, 0, 0, 0)), 1)
	if h.awaited != (rulesPosition{}) {
		t.Errorf("have %+v before there are rules", h)
	}
	h.setAwaited(positionOf(at(t, 1, 1, 0)), 2)
	h.setAwaited(positionOf(at(t, 1, 1, 1)), 3)
	if h.awaited.Version != 1 || h.awaitedIndex != 3 {
		t.Errorf("have %+v, want version 1 as of 3", h)
	}
	h.setAwaited(positionOf(at(t, 1, 1, 2)), 4)
	if h.awaited.Version != 1 || h.awaitedIndex != 3 {
		t.Errorf("have %+v, want what was waited for before", h)
	}
	h.markReached()
	h.setAwaited(positionOf(at(t, 1, 1, 3)), 5)
	if h.honoured.Version != 1 || h.awaited.Version != 3 || h.awaitedIndex != 5 {
		t.Errorf("have %+v, want version 3 as of 5, after 1", h)
	}
	h.markReached()
	h.setAwaited(positionOf(at(t, 1, 1, 3)), 6)
	if h.honoured.Version != 3 || h.awaited != (rulesPosition{}) {
		t.Errorf("have %+v, want nothing to wait for", h)
	}
	for _, other := range []*agreement.State{at(t, 1, 2, 2), at(t, 2, 1, 2)} {
		h := h
		h.setAwaited(positionOf(other), 7)
		if h.honoured != (rulesPosition{}) || h.awaited.Version != 2 || h.awaitedIndex != 7 {
			t.Errorf("have %+v, want to begin anew in another line", h)
		}
	}
}

func TestReports(t *testing.T) {
	r := regionReports{}
	now := time.Unix(1_000_000_000, 0)
	v := func(n int64) rulesPosition {
		return rulesPosition{World: agreement.WorldID{1}, PrimaryEpoch: 1, Version: n}
	}
	note := func(region string, h rulesPosition, clock int64, now time.Time) bool {
		return r.add(region, regionReport{rulesPosition: h, clocks: authority.Clocks{Earliest: clock, Latest: clock}, at: now})
	}
	names := []string{"eu", "us"}
	note("eu", v(5), 100, now)
	if r.allHonour(names, v(5)) {
		t.Error("us has reported nothing, and has honoured it")
	}
	note("us", v(4), 200, now)
	if r.allHonour(names, v(5)) {
		t.Error("us has reported 4, and has honoured 5")
	}
	if !r.allHonour(names, v(4)) {
		t.Error("both regions honour 4, and it does not count")
	}
	want := clockRange{earliest: 100, latest: 200, slowest: "eu", fastest: "us"}
	if clocks, ok := r.clocks(names, now); !ok || clocks != want {
		t.Errorf("have %+v, %v, want %+v", clocks, ok, want)
	}
	if _, ok := r.clocks([]string{"eu", "ap"}, now); ok {
		t.Error("ap has reported nothing, and its clock is known")
	}
	note("us", v(0), 150, now) // a new leader that knows of no honoured version yet and has another clock
	if !r.allHonour(names, v(4)) {
		t.Error("what was honoured once stays so")
	}
	want = clockRange{earliest: 150, latest: 200, slowest: "us", fastest: "us"}
	if clocks, ok := r.clocks([]string{"us"}, now); !ok || clocks != want {
		t.Errorf("have %+v, %v, want %+v: the latest clock of a region counts", clocks, ok, want)
	}
	note("us", rulesPosition{World: agreement.WorldID{1}, PrimaryEpoch: 2, Version: 9}, 300, now)
	if r.allHonour(names, v(4)) {
		t.Error("us uses another primary epoch, but counts as honouring this one")
	}
	later := now.Add(regionReportTTL)
	if !r["us"].isFresh(now) || r["us"].isFresh(later) {
		t.Error("an old report counts as fresh, or a fresh one does not")
	}
	for i := range maxReports {
		note(string(rune('A'+i)), v(1), 1, later)
	}
	if len(r) > maxReports {
		t.Errorf("have %d regions, more than %d", len(r), maxReports)
	}
	if note("one more", v(1), 1, later) {
		t.Error("the number of regions is not bounded")
	}
}
