//go:build faults

package faults

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

const (
	// stepTime is how long a node may take to follow a step of its wall clock. It
	// looks once a second.
	stepTime = 1250 * time.Millisecond
	// slew is the fraction of its pace that a wall clock loses after a step back,
	// until it is right.
	slew = 64
)

// step is a change of a node's wall clock, and its offset from the machine's since then.
type step struct {
	node       int
	from, made int64
	shift      int64
}

// wallOf returns the lowest and the highest reading that was possible, at a
// time, of the clock by which h was decided: the owner's or, without an owner,
// the node's own.
func (p *promise) wallOf(h hit, at int64) (low, high int64, known bool) {
	if len(p.steps) == 0 {
		return at + p.wall, at + p.wall, true
	}
	node := h.node
	if h.by != "fallback" && h.by != "standby" {
		node = p.onlyOwner()
		if node < 0 {
			return 0, 0, false
		}
	}
	low, high, known = offsetAt(p.steps, node, at)
	return at + p.wall + low, at + p.wall + high, known
}

// onlyOwner returns the node that owned the subject for the whole span; -1 if
// it changed or is unknown.
func (p *promise) onlyOwner() int {
	owner := -1
	for _, h := range p.owners {
		if owner >= 0 && h.node != owner {
			return -1
		}
		owner = h.node
	}
	return owner
}

// offsetAt returns the bounds of a node's clock offset from the machine's. Set
// forward, the clock follows within stepTime. Set back, it loses a part of its
// pace, and begins to within stepTime.
func offsetAt(steps []step, node int, at int64) (low, high int64, known bool) {
	target, made := int64(0), int64(0)
	run := func(to int64) {
		fall := func(offset, since int64) int64 {
			return max(target, offset-max(0, to-since)/slew)
		}
		low, high = fall(low, made), fall(high, made+int64(stepTime))
	}
	for _, s := range steps {
		if s.node != node || at < s.from {
			continue
		}
		run(s.made)
		if at <= s.made+int64(stepTime) && s.shift > low {
			return 0, 0, false
		}
		target, made = s.shift, s.made
		low, high = max(low, target), max(high, target)
	}
	run(at)
	return low, high, true
}

// setWall sets the offset of the node's wall clock from the machine's.
func (f *fleet) setWall(n *node, shift time.Duration) {
	f.t.Helper()
	s := step{node: f.index(n), from: boottime(), shift: int64(shift)}
	err := os.WriteFile(n.wall+".new", fmt.Append(nil, int64(shift)), 0o600)
	if err == nil {
		err = os.Rename(n.wall+".new", n.wall)
	}
	expect.NoError(f.t, err)
	s.made = boottime()
	f.steps = append(f.steps, s)
	f.t.Logf("%s: the wall clock of %s is set to %+v", clockTime(), n.name, shift)
	f.fault(stepped, n, s.from)
}

func TestOffset(t *testing.T) {
	const second = int64(time.Second)
	hour := 3600 * second
	steps := []step{{1, 10 * second, 10 * second, hour}, {1, 20 * second, 20 * second, 0},
		{0, 30 * second, 30 * second, -hour}, {0, 94 * second, 94 * second, 0}}
	for _, test := range []struct {
		node      int
		at        int64
		low, high int64
		unknown   bool
	}{
		{node: 1, at: 9 * second},
		{node: 1, at: 11 * second, unknown: true},
		{node: 1, at: 12 * second, low: hour, high: hour},
		{node: 1, at: 21 * second, low: hour - second/slew, high: hour},
		{node: 1, at: 84 * second, low: hour - second, high: hour - (64*second-int64(stepTime))/slew},
		{node: 0, at: 29 * second},
		{node: 0, at: 93 * second, low: -63 * second / slew, high: -(63*second - int64(stepTime)) / slew},
		{node: 0, at: 95 * second, unknown: true},
		{node: 0, at: 96 * second},
	} {
		low, high, known := offsetAt(steps, test.node, test.at)
		if known == test.unknown || known && (low != test.low || high != test.high) {
			t.Errorf("node %d at %v: have %v to %v, %v", test.node, time.Duration(test.at),
				time.Duration(low), time.Duration(high), known)
		}
	}
}

// TestClockStepped sets the wall clock of the owner of a hot subject an hour
// forward or back, and then right again.
func TestClockStepped(t *testing.T) {
	onlyLong(t)
	scenario(t, 3, func(f *fleet, l *load) {
		n, _ := f.ownerAndAnother(l)
		hour := time.Hour
		if f.random.IntN(2) == 0 {
			hour = -hour
		}
		f.setWall(n, hour)
		f.pass(f.between(7*time.Second, 9*time.Second))
		f.setWall(n, 0)
		f.pass(f.between(11*time.Second, 12*time.Second))
	})
}
