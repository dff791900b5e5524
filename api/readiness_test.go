package api

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A node that is no working member of the cluster turns callers away, but not
// before they have had time to notice.
func TestReadiness_TurnAwayError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var left error
		r := &Readiness{checkMember: func() error { return left }}
		check := func(when string, turnsAway bool) {
			t.Helper()
			if e := r.TurnAwayError(); (e != nil) != turnsAway || e != nil && e.Code != NotReady {
				t.Errorf("%s: got %v, want an error: %v", when, e, turnsAway)
			}
		}

		r.Explain("loading counters")
		check("before it is ready", true)
		r.advance(stage{state: stateReady})
		check("ready", false)

		left = errors.New("left")
		check("just left", false)
		time.Sleep(DrainGrace - time.Millisecond)
		check("during the grace", false)
		time.Sleep(time.Millisecond)
		check("after the grace", true)

		left = nil
		check("back again", false)
		left = errors.New("left")
		check("left again", false)
		time.Sleep(DrainGrace)
		check("after the grace again", true)
	})
}

// All doors give callers the same time, and HTTP connections close well before its end.
func TestReadiness_DrainGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Readiness{drain: make(chan struct{})}
		r.advance(stage{state: stateReady})
		r.Drain()
		if r.ProbeError() == nil || r.ChecksError() != nil || r.ClosesConnections() {
			t.Errorf("at once: got probe %v, checks %v, closes %v; want an error, none, false",
				r.ProbeError(), r.ChecksError(), r.ClosesConnections())
		}
		time.Sleep(DrainGrace / 2)
		if r.ChecksError() != nil || r.TurnAwayError() != nil || !r.ClosesConnections() {
			t.Errorf("half of the grace later: got checks %v, closes %v; want none, true",
				r.ChecksError(), r.ClosesConnections())
		}
	})
}
