//go:build faults

package faults

import (
	"fmt"
	"os"
	"testing"
	"time"
)

const (
	// stepTime is how long a node may take to follow a wall clock that was set.
	stepTime = 250 * time.Millisecond
	// slew is by which part a wall clock that was set back loses of its pace, until it is right.
	slew = 64
)

// step is when a node's wall clock was set, and how far it is from the machine's since then.
type step struct {
	node       int
	from, made int64
	shift      int64
}

// wallOf is what the clock that h was decided by showed at a time: the owner's, or, without it, the node's own.
func (p *promise) wallOf(h hit, at int64) (wall int64, known bool) {
	if len(p.steps) == 0 {
		return at + p.wall, true
	}
	node := h.node
	if h.by != "fallback" && h.by != "standby" {
		if node = p.onlyOwner(); node < 0 {
			return 0, false
		}
	}
	offset, known := offsetAt(p.steps, node, at)
	return at + p.wall + offset, known
}

// onlyOwner is the node that owned the subject all the time, -1 if it changed or is not known.
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

// offsetAt is how far a node's clock is from the machine's: set forward it follows at once, set back it loses a part of
// its pace.
func offsetAt(steps []step, node int, at int64) (offset int64, known bool) {
	target, since := int64(0), int64(0)
	settle := func(to int64) {
		if offset > target {
			offset = max(target, offset-max(0, to-since)/slew)
		}
	}
	for _, s := range steps {
		if s.node != node || at < s.from {
			continue
		}
		settle(s.made)
		if at <= s.made+int64(stepTime) && s.shift > offset {
			return 0, false
		}
		target, since = s.shift, s.made
		offset = max(offset, target)
	}
	settle(at)
	return offset, true
}

// setWall sets the node's wall clock to so far from the machine's.
func (f *fleet) setWall(n *node, shift time.Duration) {
	f.t.Helper()
	s := step{node: f.index(n), from: boottime(), shift: int64(shift)}
	err := os.WriteFile(n.wall+".new", fmt.Append(nil, int64(shift)), 0o600)
	if err == nil {
		err = os.Rename(n.wall+".new", n.wall)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	s.made = boottime()
	f.steps = append(f.steps, s)
	f.t.Logf("%s: the wall clock of %s is set to %+v", clockTime(), n.name, shift)
	f.fault(stepped, n, s.from)
}

func TestOffset(t *testing.T) {
	const second = int64(time.Second)
	hour := 3600 * second
	steps := []step{{1, 10 * second, 10 * second, hour}, {1, 20 * second, 20 * second, 0}, {0, 30 * second, 30 * second, -hour}, {0, 94 * second, 94 * second, 0}}
	for _, test := range []struct {
		node    int
		at      int64
		want    int64
		unknown bool
	}{
		{node: 1, at: 9 * second},
		{node: 1, at: 10*second + second/10, unknown: true},
		{node: 1, at: 11 * second, want: hour},
		{node: 1, at: 20*second + second/10, want: hour - second/10/slew},
		{node: 1, at: 84 * second, want: hour - second},
		{node: 0, at: 29 * second},
		{node: 0, at: 93 * second, want: -63 * second / slew},
		{node: 0, at: 94*second + second/10, unknown: true},
		{node: 0, at: 95 * second},
	} {
		have, known := offsetAt(steps, test.node, test.at)
		if known == test.unknown || known && have != test.want {
			t.Errorf("node %d at %v: have %v, %v", test.node, time.Duration(test.at), time.Duration(have), known)
		}
	}
}

// TestClockStepped sets the wall clock of the owner of a hot subject an hour forward or back, and right again.
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
