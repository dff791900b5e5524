//go:build faults

package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// limitCheck computes what a fixed window may admit.
type limitCheck struct{ promise }

// windowUse is the cost admitted in a window.
type windowUse struct {
	owned   int64         // decided by the owner, or spent from its leases
	alone   map[int]int64 // decided without the owner, by node
	standby int64         // decided by a standby
	tail    int64         // of owned: by owners that were killed just afterwards
	cut     int64         // of owned: by cut-off nodes, as owners, while their authority lasted
	before  int64         // of owned: before the counters began anew
}

func (u *windowUse) sum() int64 {
	sum := u.owned + u.standby
	for _, n := range u.alone {
		sum += n
	}
	return sum
}

// check judges the admitted hits of one subject. A hit whose window is
// uncertain counts in none, so that a violation is proven. It counts where two
// windows are judged together.
func (c *limitCheck) check(hits []hit) error {
	c.see(hits)
	windows := map[int64]*windowUse{}
	between := map[int64]*windowUse{} // by the earlier window
	for _, h := range hits {
		first, last, known := c.windowsOf(h)
		switch {
		case known && first == last:
			if windows[first] == nil {
				windows[first] = &windowUse{alone: map[int]int64{}}
			}
			c.add(windows[first], h)
		case known && first+1 == last:
			if between[first] == nil {
				between[first] = &windowUse{alone: map[int]int64{}}
			}
			c.add(between[first], h)
		}
	}
	may := map[int64]int64{}
	for w, u := range windows {
		n, err := c.judge(w, u)
		if err != nil {
			return err
		}
		may[w] = n
	}
	for w, u := range between {
		a, b := windows[w], windows[w+1]
		if a == nil || b == nil {
			continue
		}
		if most := may[w] + may[w+1] + c.excused(u, a, b); a.sum()+u.sum()+b.sum() > most {
			return fmt.Errorf("%s and the next: %d, %+v in between, %d: at most %d together",
				c.name(w), a.sum(), *u, b.sum(), most)
		}
	}
	return nil
}

// excused returns how much of what was admitted between two windows may exceed
// both limits: a node that decided alone just then has its share in either.
func (c *limitCheck) excused(between, a, b *windowUse) int64 {
	share := c.share(c.rule.limit)
	n := between.tail + between.cut + min(between.before, c.rule.limit) + min(between.standby, share)
	for node, alone := range between.alone {
		shares := int64(2)
		for _, u := range []*windowUse{a, b} {
			if _, counted := u.alone[node]; counted {
				shares--
			}
		}
		n += min(alone, shares*share)
	}
	return n
}

// windowsOf returns the windows in which h may have been counted, by the clock
// of the deciding node; none if that clock was just stepped.
func (p *promise) windowsOf(h hit) (first, last int64, known bool) {
	from, _, ok := p.wallOf(h, h.sent-int64(edge))
	_, to, fine := p.wallOf(h, h.got+int64(edge))
	w := int64(p.rule.per)
	return from / w, to / w, ok && fine
}

// add counts h under the reason that may excuse it.
func (c *limitCheck) add(u *windowUse, h hit) {
	switch h.by {
	case "fallback":
		u.alone[h.node] += h.cost
		return
	case "standby":
		u.standby += h.cost
		return
	}
	u.owned += h.cost
	for _, f := range c.restarts() {
		if h.sent <= f.made {
			u.before += h.cost
			return
		}
	}
	switch c.excuseOf(h) {
	case tail:
		u.tail += h.cost
	case cutTail:
		u.cut += h.cost
	}
}

func (c *limitCheck) name(w int64) string {
	return "window at " + time.Unix(0, w*int64(c.rule.per)).UTC().Format("15:04:05")
}

// judge returns how much a window may admit.
func (c *limitCheck) judge(w int64, u *windowUse) (int64, error) {
	from, to := w*int64(c.rule.per)-c.wall, (w+1)*int64(c.rule.per)-c.wall
	limit := c.rule.limit
	what := fmt.Sprintf("%s: %+v of %d", c.name(w), *u, limit)
	disturbed, nobody, cut := false, false, map[int]bool{} // nobody: the subject may have neither owner nor standby
	for _, f := range c.faults {
		// A debt from a decision without the owner reaches it within settling.
		if f.from < to && from < f.to+int64(settling) && f.kind != apart && f.kind != stepped {
			disturbed = true
			cut[f.node] = cut[f.node] || f.kind == cutOff || f.kind == split
			// A node that was killed and has just restarted recovers its memory. Meanwhile
			// it can't decide, and its standby may take it for the owner.
			back := f.kind == killed && f.eased > 0 && f.eased < to
			nobody = nobody || f.kind == together || f.kind == neither || back
		}
	}
	share := c.share(limit)
	for node, n := range u.alone {
		if !cut[node] && !nobody {
			return 0, fmt.Errorf("%s: node %d decided alone, and was not cut off", what, node+1)
		}
		if n > share {
			return 0, fmt.Errorf("%s: node %d admitted more alone than its share, %d", what, node+1, share)
		}
	}
	if u.standby > 0 && !disturbed {
		return 0, fmt.Errorf("%s: a standby decided, and no owner was away", what)
	}
	may := limit + u.tail + u.cut + min(u.before, limit) + int64(len(u.alone))*share
	if disturbed && u.standby > 0 {
		// A new standby exists only after another fault.
		may += min(share*int64(max(1, c.faultsBefore(to)-c.faultsBefore(from))), u.standby)
	}
	if sum := u.sum(); sum > may {
		return 0, fmt.Errorf("%s: %d admitted, at most %d may be", what, sum, may)
	}
	return may, nil
}

func TestCheckLimits(t *testing.T) {
	const second = int64(time.Second)
	hits := func(n int, by string, node int, at int64) (list []hit) {
		for range n {
			list = append(list, hit{by: by, node: node, cost: 1, sent: at, got: at + 1})
		}
		return list
	}
	join := func(lists ...[]hit) []hit { return slices.Concat(lists...) }
	kill := []fault{{kind: killed, node: 0, from: 15 * second, made: 15 * second, to: 16 * second}}
	back := []fault{{kind: killed, node: 0, from: 15 * second, made: 15 * second, eased: 16 * second, to: 16 * second}}
	cut := []fault{{kind: cutOff, node: 0, from: 15 * second, made: 15 * second, to: 40 * second}}
	halves := []fault{{kind: split, node: 0, from: 15 * second, made: 15 * second, to: 40 * second},
		{kind: split, node: 1, from: 15 * second, made: 15 * second, to: 40 * second}}
	both := []fault{{kind: together, node: 0, from: 15 * second, made: 15 * second, to: 16 * second}}
	all := []fault{{kind: saved, node: 0, from: 15 * second, made: 15 * second, to: 16 * second}}
	for _, test := range []struct {
		name   string
		hits   []hit
		faults []fault
		wrong  string
	}{
		{"the limit, in each window", join(hits(9, "owner", 0, 15*second), hits(9, "forward", 1, 25*second)), nil, ""},
		{"one more", join(hits(9, "owner", 0, 15*second), hits(1, "forward", 1, 16*second)), nil, "at most 9"},
		{"one more, from a lease",
			join(hits(9, "owner", 0, 15*second), hits(1, "lease", 1, 16*second)), nil, "at most 9"},
		{"in between", join(hits(9, "owner", 0, 15*second), hits(1, "owner", 0, 20*second)), nil, ""},
		{"in between, too much for both",
			join(hits(9, "owner", 0, 15*second), hits(1, "owner", 0, 20*second), hits(9, "owner", 0, 22*second)),
			nil, "together"},
		{"in between, alone, at the earlier one's end",
			join(hits(9, "owner", 1, 16*second), hits(3, "fallback", 0, 20*second),
				hits(9, "owner", 1, 22*second), hits(3, "fallback", 0, 23*second)),
			cut, ""},
		{"in between, alone, too much for both",
			join(hits(9, "owner", 1, 16*second), hits(4, "fallback", 0, 20*second),
				hits(9, "owner", 1, 22*second), hits(3, "fallback", 0, 23*second)),
			cut, "together"},
		{"in between, by the owner, while one is alone",
			join(hits(9, "owner", 1, 16*second), hits(1, "owner", 1, 20*second),
				hits(9, "owner", 1, 22*second), hits(3, "fallback", 0, 23*second)),
			cut, "together"},
		{"killed, forgotten", join(hits(4, "owner", 0, 15*second-1000), hits(9, "owner", 1, 18*second)), kill, ""},
		{"another killed, nothing forgotten",
			join(hits(1, "owner", 1, 14*second), hits(4, "forward", 0, 15*second-1000), hits(5, "owner", 1, 18*second)),
			kill, "at most 9"},
		{"killed, forgotten too much",
			join(hits(4, "owner", 0, 14*second), hits(6, "owner", 1, 18*second)), kill, "at most 9"},
		{"killed, the next window",
			join(hits(4, "owner", 0, 21*second), hits(6, "owner", 1, 22*second)), kill, "at most 9"},
		{"killed, alone", hits(1, "fallback", 1, 17*second), kill, "not cut off"},
		{"killed and back, alone", hits(3, "fallback", 1, 17*second), back, ""},
		{"killed and back, alone above its share", hits(4, "fallback", 1, 17*second), back, "its share"},
		{"killed, its leases spent",
			join(hits(1, "owner", 0, 14*second), hits(3, "lease", 1, 15*second+second/5),
				hits(8, "owner", 1, 18*second)),
			kill, ""},
		{"killed, leases spent too late",
			join(hits(1, "owner", 0, 14*second), hits(3, "lease", 1, 16*second), hits(8, "owner", 1, 18*second)),
			kill, "at most 9"},
		{"killed, a standby within its share",
			join(hits(7, "owner", 1, 18*second), hits(3, "standby", 1, 16*second)), kill, ""},
		{"a standby for no reason", hits(1, "standby", 1, 17*second), nil, "no owner was away"},
		{"a share while cut off", join(hits(9, "owner", 1, 21*second), hits(3, "fallback", 0, 22*second)), cut, ""},
		{"more than a share", hits(4, "fallback", 0, 22*second), cut, "its share"},
		{"more than a share, at others", hits(1, "fallback", 1, 22*second), cut, "not cut off"},
		{"authority's last moments", join(hits(9, "owner", 1, 18*second), hits(5, "owner", 0, 16*second)), cut, ""},
		{"authority's last moments, too long",
			join(hits(9, "owner", 1, 18*second), hits(5, "owner", 0, 18*second)), cut, "at most 9"},
		{"another's, through the cut-off node",
			join(hits(1, "owner", 1, 14*second), hits(8, "owner", 1, 18*second), hits(5, "lease", 0, 16*second)),
			cut, "at most 9"},
		{"no majority",
			join(hits(9, "owner", 0, 16*second), hits(3, "fallback", 0, 18*second), hits(3, "fallback", 1, 18*second)),
			halves, ""},
		{"no majority, two owners",
			join(hits(9, "owner", 0, 16*second), hits(3, "owner", 1, 16*second), hits(3, "fallback", 1, 18*second)),
			halves, "at most 12"},
		{"begun anew", join(hits(9, "owner", 0, 14*second), hits(9, "owner", 1, 18*second)), both, ""},
		{"neither owner nor standby", hits(5, "fallback", 1, 17*second), both, ""},
		{"begun anew twice",
			join(hits(9, "owner", 0, 14*second), hits(9, "owner", 1, 17*second), hits(9, "owner", 1, 18*second)),
			both, "at most 18"},
		{"all killed, what was not saved",
			join(hits(5, "owner", 0, 14*second), hits(9, "owner", 0, 18*second)), all, ""},
		{"all killed, what was saved",
			join(hits(5, "owner", 0, 12*second), hits(9, "owner", 0, 18*second)), all, "at most 9"},
	} {
		limit := rule{name: "nine", algorithm: "fixed-window", limit: 9, per: 10 * time.Second, hybrid: true}
		c := limitCheck{promise{rule: &limit, nodes: 3, faults: test.faults}}
		err := c.check(test.hits)
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: have %v, want %q", test.name, err, test.wrong)
		}
	}
}
