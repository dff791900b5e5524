//go:build faults

package faults

import (
	"fmt"
	"os"
	"testing"
	"time"
)

const (
	// stepTime is how long a node may take to follow a step of its wall clock.
	stepTime = 250 * time.Millisecond
	// slew is the fraction of its pace that a wall clock loses after a step back, until it is right.
	slew = 64
)

// step is a change of a node's wall clock, and its offset from the machine's since then.
type step struct {
	node       int
	from, made int64
	shift      int64
}

// wallOf returns the reading, at a time, of the clock by which h was decided: the owner's or, without an owner, the node's own.
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

// onlyOwner returns the node that owned the subject for the whole span; -1 if it changed or is unknown.
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

// offsetAt returns a node's clock offset from the machine's. Set forward, the clock follows at once; set back, it loses a part of
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

// setWall sets the offset of the node's wall clock from the machine's.
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

// TestClockStepped sets the wall clock of the owner of a hot subject an hour forward or back, and then right again.
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
