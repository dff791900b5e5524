package node

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
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
