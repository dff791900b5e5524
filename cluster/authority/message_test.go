package authority

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// TestRequestsAreBounded: requests that no holder would send are refused and leave nothing behind.
func TestRequestsAreBounded(t *testing.T) {
	nodes := make([]ring.NodeID, maxReported+1)
	for name, alter := range map[string]func(*Request){
		"unreachable": func(q *Request) { q.Unreachable = nodes },
		"relayed":     func(q *Request) { q.Relayed = nodes },
		"release":     func(q *Request) { q.Release = strings.Repeat("x", maxText+1) },
		"zones":       func(q *Request) { q.Zones = strings.Repeat("x", maxText+1) },
		"without":     func(q *Request) { q.NoAuthorityFor = -1 },
	} {
		d := newDesk(t, 3)
		q := d.request(2)
		alter(&q)
		if have := d.ask(q); have.Reason != reasonTooLarge || len(d.reignState.records) > 0 {
			t.Errorf("%s: have %+v", name, have)
		}
		if q.NoAuthorityFor < 0 {
			continue
		}
		sent := (&Holder{config: HolderConfig{Self: q.Node, Boot: q.Boot,
			Boottime: NewClock().Boottime, Status: func() Request { return q }}}).request()
		if !sent.withinBounds() {
			t.Errorf("%s: more is sent than may be", name)
		}
		e := agreement.RegisterProcess{Node: q.Node, Boot: q.Boot, Level: sent.Level, Release: sent.Release,
			Zones: sent.Zones}
		if err := d.state.Rejection(e); err != nil {
			t.Errorf("%s: what is sent can't be registered: %v", name, err)
		}
	}
}
