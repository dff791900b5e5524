package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

// Of several clocks, the median is right. With two, nobody knows, and both
// warn. A region counts once, however many nodes it has.
func TestMedianClock(t *testing.T) {
	const wrong = 10 * time.Minute
	near := func(ahead ...time.Duration) (list []peer.Clock) {
		for _, d := range ahead {
			list = append(list, peer.Clock{Ahead: d})
		}
		return list
	}
	far := func(region string, ahead ...time.Duration) (list []peer.Clock) {
		for _, one := range near(ahead...) {
			one.Region = region
			list = append(list, one)
		}
		return list
	}
	for _, c := range []struct {
		name   string
		others []peer.Clock
		want   time.Duration // the own offset
	}{
		{"alone", nil, 0},
		{"two, right", near(wrong), -wrong},
		{"two, wrong", near(-wrong), wrong},
		{"three, the other is wrong", near(0, wrong), 0},
		{"three, this one is wrong", near(-wrong, -wrong), wrong},
		{"four, half of them", near(0, wrong, wrong), -wrong},
		{"four, half of them, the other side", near(0, -wrong, -wrong), wrong},
		{"one node, two regions that agree", append(far("us", -wrong, -wrong), far("ap", -wrong)...), wrong},
		{"one node, a region of many that is wrong, one that is not",
			append(far("us", wrong, wrong, wrong), far("ap", 0)...), 0},
	} {
		expect.Equal(t, -medianClock(c.others), c.want, "%s", c.name)
	}
}

// A node's clocks are its own, which a step back does not set back, and those
// that its partitions follow.
func TestCountingClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{clock: limiter.NewClock(), table: counters.New(1000)}
		defer n.clock.Close()
		defer n.table.Close()

		check := func(what string, earliest, latest time.Duration) {
			t.Helper()
			now := time.Now()
			want := authority.Clocks{Earliest: now.Add(earliest).UnixMilli(), Latest: now.Add(latest).UnixMilli()}
			expect.Equal(t, n.countingClocks(), want, "%s", what)
		}

		check("at the start", 0, 0)

		n.table.FollowClock(n.clock.Now(), 7, time.Now().Add(10*time.Second).UnixNano())
		check("a partition follows a clock ahead", 0, 10*time.Second)

		n.clock.Shift(time.Minute)
		time.Sleep(2 * time.Second)
		check("the clock has been set forward", time.Minute, time.Minute)

		n.clock.Shift(-time.Minute)
		time.Sleep(2 * time.Second)
		if have := n.countingClocks().Earliest; have < time.Now().Add(59*time.Second).UnixMilli() {
			t.Errorf("the clock has been set back: have %d ms", have-time.Now().UnixMilli())
		}
	})
}
