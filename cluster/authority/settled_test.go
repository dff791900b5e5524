package authority

import (
	"testing"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// A member's reports from before a node was ended don't count for the hand-offs
// that the end has caused.
func TestSettledNeedsReportsFromAfterAnEnd(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.node(4)
	for d.state.Settled {
		d.run(tickInterval, 1, 2, 3, 4)
	}
	lasting := d.request(4)
	lasting.SettledEpoch = 1
	for range 60 { // three nodes have settled, node 4 has not
		d.now += tickInterval
		lasting.Applied = d.state.Index
		if d.now/tickInterval%5 == 0 {
			for n := byte(1); n <= 3; n++ {
				d.ask(d.request(n))
			}
			d.ask(lasting)
		}
		if e := d.decide(); e != nil {
			t.Fatalf("have %#v", e)
		}
	}
	d.node(4).become(isGone)
	for {
		d.now += tickInterval
		if d.now/tickInterval%5 == 0 {
			for n := byte(1); n <= 3; n++ {
				d.ask(d.request(n))
			}
		}
		if e := d.decide(); e != nil {
			if _, ended := e.(agreement.EndNode); !ended {
				t.Fatalf("have %#v", e)
			}
			d.apply(e)
			d.reignState.recordOutcome(e)
			break
		}
	}
	if d.state.Settled {
		t.Fatal("the state is settled too soon")
	}
	if e := d.decide(); e != nil {
		t.Fatalf("have %#v, although no node has reported since the end", e)
	}

}
