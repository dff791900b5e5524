package agreement

import (
	"fmt"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// TestManyVersionsAreRecorded: even if rules are written faster than they are
// recorded, they are all recorded eventually, and further ones can be written.
func TestManyVersionsAreRecorded(t *testing.T) {
	s, now := New(), int64(1_000_000_000_000)
	apply := func(e Entry) error {
		t.Helper()
		b, err := ThisBuild.Encode(e)
		expect.NoError(t, err)
		next, r := s.Apply(s.Index+1, b)
		s = next
		return r.Err
	}
	write := func(limit int) error {
		return apply(WriteRules{When: time.UnixMilli(now),
			Change: document.Change{Body: fmt.Appendf(nil, "version: 1\nrules:\n  - name: a\n    key: [ip]\n"+
				"    scope: global\n    limits:\n      - {limit: %d, per: 1m, algorithm: fixed-window}\n", limit)}})
	}
	for _, e := range []Entry{
		FoundCluster{Cluster: ClusterID{1}, SigningKey: make([]byte, 32)},
		SetPrimary{Region: "eu", World: WorldID{1}}, ChangeRegion{Name: "us"},
	} {
		expect.NoError(t, apply(e))
	}
	limit, wrote := 0, 0
	for range 100 {
		for range 20 {
			limit++
			if write(limit) == nil {
				wrote++
			}
		}
		now += time.Minute.Milliseconds()
		for _, h := range s.Regions.Held {
			if h.Candidate {
				_ = apply(Mark{Version: h.Version, At: now}) // which may have to wait
				break
			}
		}
		last := s.Regions.inForce()
		if last.RecordedAt == 0 {
			_ = apply(Mark{Version: last.Version})
		} else {
			_ = apply(Mark{Version: last.Version, At: now})
		}
	}
	for range 2 { // the second write drops what the first has recorded
		now += 10 * time.Minute.Milliseconds()
		_ = apply(Mark{Version: s.Regions.inForce().Version})
		_ = apply(Mark{Version: s.Regions.inForce().Version, At: now})
	}
	if have := s.Regions.Held; len(have) != 1 || have[0].RecordedAt == 0 {
		t.Errorf("have %+v, want only the version in force, recorded", have)
	}
	if wrote < 100 {
		t.Errorf("only %d of %d versions could be written: the state is stuck with %+v", wrote, limit, s.Regions.Held)
	}
}

// TestALaterPrimaryEpochIsTaken: a primary that other regions are ahead of
// begins a new primary epoch in the same world, and never goes back.
func TestALaterPrimaryEpochIsTaken(t *testing.T) {
	s := New()
	for i, tt := range []struct {
		have SetPrimary
		want int64
		bad  bool
	}{
		{SetPrimary{Region: "eu", World: WorldID{1}}, 1, false},
		{SetPrimary{Region: "eu", World: WorldID{2}}, 1, false},
		{SetPrimary{Region: "eu", World: WorldID{2}, PrimaryEpoch: 5}, 5, false},
		{SetPrimary{Region: "eu", World: WorldID{2}, PrimaryEpoch: 4}, 5, false},
		{SetPrimary{Region: "us", World: WorldID{2}, PrimaryEpoch: 4}, 6, false},
		{SetPrimary{Region: "us", World: WorldID{2}, PrimaryEpoch: -1}, 6, true},
		{SetPrimary{Region: "us", World: WorldID{2}, PrimaryEpoch: 1 << 62}, 6, true},
	} {
		b, err := ThisBuild.Encode(tt.have)
		expect.NoError(t, err)
		next, r := s.Apply(s.Index+1, b)
		s = next
		if s.Regions.PrimaryEpoch != tt.want || s.Regions.World != (WorldID{1}) || (r.Err != nil) != tt.bad {
			t.Errorf("%d: have primary epoch %d of %v, %v, want %d", i, s.Regions.PrimaryEpoch,
				s.Regions.World, r.Err, tt.want)
		}
	}
}
