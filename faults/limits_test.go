//go:build faults

package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	term = 2020 * time.Millisecond // authority's, and its 1 %
	// unpushed is how old a debit may be that the standby has not acknowledged: an interval of 100 ms, and what the push
	// takes on a loaded machine.
	unpushed = 300 * time.Millisecond
	// edge is how near the turn of a window a hit may be for it to be unknown to which one it belongs.
	edge = 5 * time.Millisecond
	// settling is how long after a node's return others may still decide for it, or without it.
	settling = 5 * time.Second
)

// fault is what was done to a node, on boottime.
type fault struct {
	kind     faultKind
	node     int
	from, to int64 // to: when it was undone
}

type faultKind int

const (
	killed faultKind = iota // or stopped for so long that its standby is promoted: what was not pushed is forgotten for now
	cutOff                  // from all others
	apart                   // a link from or to it is cut: a third node passes questions on, so nothing is excused
)

// limitCheck says what may be admitted of one limit of one subject.
type limitCheck struct {
	limit, nodes int64
	window, wall int64 // wall: from boottime to the wall clock
	faults       []fault
}

// share is the most that one node may admit by itself in a window.
func (c *limitCheck) share() int64 { return (c.limit + c.nodes - 1) / c.nodes }

// ofWindow is the window that h was certainly in.
func (c *limitCheck) ofWindow(h hit) (w int64, known bool) {
	first, last := (h.sent+c.wall-int64(edge))/c.window, (h.got+c.wall+int64(edge))/c.window
	return first, first == last
}

// windowUse is what was admitted in a window.
type windowUse struct {
	owned    int64         // decided by the owner
	alone    map[int]int64 // decided without it, by node
	standby  int64         // decided by a standby
	unpushed int64         // by owners that were killed, just before that
	cut      int64         // by cut-off nodes, as owners, while their authority lasted
}

// check looks at the hits of one subject. A hit whose window is not certain counts nowhere, so all of it is proof.
func (c *limitCheck) check(hits []hit) error {
	windows := map[int64]*windowUse{}
	for _, h := range hits {
		w, known := c.ofWindow(h)
		if !known {
			continue
		}
		u := windows[w]
		if u == nil {
			u = &windowUse{alone: map[int]int64{}}
			windows[w] = u
		}
		c.add(u, h)
	}
	for w, u := range windows {
		if err := c.judge(w, u); err != nil {
			return err
		}
	}
	return nil
}

// add counts h, and what it may be excused by.
func (c *limitCheck) add(u *windowUse, h hit) {
	switch h.by {
	case "fallback":
		u.alone[h.node]++
		return
	case "standby":
		u.standby++
		return
	}
	u.owned++
	for _, f := range c.faults {
		switch {
		case f.kind == killed && h.got >= f.from-int64(unpushed) && h.sent <= f.from+int64(edge):
			u.unpushed++
			return
		case f.kind == cutOff && h.node == f.node && h.got >= f.from && h.sent <= f.from+int64(term+unpushed):
			u.cut++
			return
		case f.kind == cutOff && h.got >= f.from-int64(unpushed) && h.sent <= f.from:
			u.unpushed++ // the same as if it was killed, until it comes back
			return
		}
	}
}

func (c *limitCheck) judge(w int64, u *windowUse) error {
	from, to := w*c.window-c.wall, (w+1)*c.window-c.wall
	what := fmt.Sprintf("window at %s: %+v of %d", time.Unix(0, w*c.window).UTC().Format("15:04:05"), *u, c.limit)
	disturbed, cut := false, map[int]bool{}
	for _, f := range c.faults {
		// A debt of what was decided without the owner reaches it within settling.
		if f.from < to && from < f.to+int64(settling) && f.kind != apart {
			disturbed = true
			cut[f.node] = cut[f.node] || f.kind == cutOff
		}
	}
	sum := u.owned
	for node, n := range u.alone {
		if sum += n; !cut[node] {
			return fmt.Errorf("%s: node %d decided alone, and was not cut off", what, node+1)
		}
		if n > c.share() {
			return fmt.Errorf("%s: node %d admitted more alone than its share, %d", what, node+1, c.share())
		}
	}
	if u.standby > 0 && !disturbed {
		return fmt.Errorf("%s: a standby decided, and no owner was away", what)
	}
	may := c.limit + u.unpushed + u.cut
	for range u.alone {
		may += c.share()
	}
	if sum += u.standby; disturbed && u.standby > 0 {
		may += min(c.share(), u.standby)
	}
	if sum > may {
		return fmt.Errorf("%s: %d admitted, at most %d may be", what, sum, may)
	}
	return nil
}

func TestCheckLimits(t *testing.T) {
	const second = int64(time.Second)
	hits := func(n int, by string, node int, at int64) (list []hit) {
		for range n {
			list = append(list, hit{by: by, node: node, sent: at, got: at + 1})
		}
		return list
	}
	join := func(lists ...[]hit) (all []hit) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	kill := []fault{{killed, 0, 15 * second, 16 * second}}
	cut := []fault{{cutOff, 0, 15 * second, 40 * second}}
	for _, test := range []struct {
		name   string
		hits   []hit
		faults []fault
		wrong  string
	}{
		{"the limit, in each window", join(hits(9, "owner", 0, 15*second), hits(9, "forward", 1, 25*second)), nil, ""},
		{"one more", join(hits(9, "owner", 0, 15*second), hits(1, "forward", 1, 16*second)), nil, "at most 9"},
		{"in between", join(hits(9, "owner", 0, 15*second), hits(1, "owner", 0, 20*second)), nil, ""},
		{"killed, forgotten", join(hits(4, "owner", 0, 15*second-1000), hits(9, "owner", 1, 18*second)), kill, ""},
		{"killed, forgotten too much", join(hits(4, "owner", 0, 14*second), hits(6, "owner", 1, 18*second)), kill, "at most 9"},
		{"killed, the next window", join(hits(4, "owner", 0, 21*second), hits(6, "owner", 1, 22*second)), kill, "at most 9"},
		{"killed, alone", hits(1, "fallback", 1, 17*second), kill, "not cut off"},
		{"killed, a standby within its share", join(hits(7, "owner", 1, 18*second), hits(3, "standby", 1, 16*second)), kill, ""},
		{"a standby for no reason", hits(1, "standby", 1, 17*second), nil, "no owner was away"},
		{"a share while cut off", join(hits(9, "owner", 1, 21*second), hits(3, "fallback", 0, 22*second)), cut, ""},
		{"more than a share", hits(4, "fallback", 0, 22*second), cut, "its share"},
		{"more than a share, at others", hits(1, "fallback", 1, 22*second), cut, "not cut off"},
		{"authority's last moments", join(hits(9, "owner", 1, 18*second), hits(5, "owner", 0, 16*second)), cut, ""},
		{"authority's last moments, too long", join(hits(9, "owner", 1, 18*second), hits(5, "owner", 0, 18*second)), cut, "at most 9"},
	} {
		c := limitCheck{limit: 9, nodes: 3, window: 10 * second, faults: test.faults}
		err := c.check(test.hits)
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: have %v, want %q", test.name, err, test.wrong)
		}
	}
}
