//go:build faults

package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// firstAnswer bounds the first answer of a node that was cut off: 250 ms until
	// a silent peer counts as unreachable, 50 more to act on it, and 50 for clients
	// on a loaded machine.
	firstAnswer = 350 * time.Millisecond
	// laterAnswer bounds later answers, except for one in a hundred.
	laterAnswer = 25 * time.Millisecond
	// stingy is how much of the demand a fixed window may fail to admit, in
	// thousandths: G3. Other algorithms have no such windows: over any span they
	// may lag a little, and a bucket stands still while it is handed over.
	stingy      = 20
	stingyOther = 100
)

// serviceCheck computes what a subject's clients must get at least.
type serviceCheck struct {
	promise
	began, ended int64 // of the load
}

// quiet reports whether nothing may delay admissions in a window. Absent nodes don't count.
func (c *serviceCheck) quiet(from, to int64) (away map[int]bool, ok bool) {
	away = map[int]bool{}
	for i := range c.faults {
		f := &c.faults[i]
		switch {
		case to <= f.from, from >= f.to+int64(settling)+int64(c.rule.per):
		case f.kind == apart && !f.turns(from, to): // a third node relays
		case (f.kind == cutOff || f.kind == killed) && f.observed && from >= f.made+int64(settling) && to <= f.to:
			away[f.node] = true
		default:
			return nil, false
		}
	}
	return away, true
}

// turns reports whether a link broke or healed in a window: debits whose
// messages were in flight then are wasted.
func (f *fault) turns(from, to int64) bool {
	return from < f.made+int64(time.Second) && f.from < to || f.eased > 0 &&
		from < f.to+int64(time.Second) && f.eased < to
}

// gains are measurements of windows without faults, in which demand exceeded the limit.
type gains struct {
	windows, whole int   // whole: those that admitted the limit to the last unit
	least          int64 // in thousandths of the limit
}

// check judges all windows in which demand exceeded the limit until shortly
// before their end. Hits whose window is uncertain count in both, so that a
// deficit is proven.
func (c *serviceCheck) check(hits, refused []hit) (g gains, err error) {
	c.see(hits)
	g.least = 1000
	w := int64(c.rule.per)
	late := max(time.Second, 2*c.rule.ttl())
	for n := (c.began+c.wall)/w + 1; (n+1)*w <= c.ended+c.wall; n++ {
		from, to := n*w-c.wall, (n+1)*w-c.wall
		away, ok := c.quiet(from, to)
		if !ok {
			continue
		}
		asked, admitted := int64(0), int64(0)
		for _, h := range hits {
			if away[h.node] || h.got+int64(edge) < from || h.sent-int64(edge) > to {
				continue
			}
			admitted += h.cost
			if h.got < to-int64(late) {
				asked += h.cost
			}
		}
		for _, h := range refused {
			if !away[h.node] && h.sent > from && h.got < to-int64(late) {
				asked += h.cost
			}
		}
		if asked*5 < c.rule.limit*6 {
			continue
		}
		g.windows++
		if admitted >= c.rule.limit {
			g.whole++
		}
		if part := admitted * 1000 / c.rule.limit; part < g.least {
			g.least = part
		}
		lack := c.rule.limit - admitted
		if lack > c.mayKeep() || lack > 0 && c.rule.ttl() == 0 && c.rule.algorithm == "fixed-window" {
			return g, fmt.Errorf("window at %s: %d of %d admitted, %d were asked for early enough",
				time.Unix(0, n*w).UTC().Format("15:04:05"), admitted, c.rule.limit, asked)
		}
	}
	return g, nil
}

// mayKeep returns how much of the limit may be missing in a window.
func (c *serviceCheck) mayKeep() int64 {
	if c.rule.algorithm == "fixed-window" {
		return c.rule.limit * stingy / 1000
	}
	return c.rule.limit * stingyOther / 1000
}

// checkLockout looks for a span longer than a window in which a subject had
// checks but none was admitted.
func (c *serviceCheck) checkLockout(hits, refused []hit, from int64) error {
	slices.SortFunc(hits, func(a, b hit) int { return int(a.got - b.got) })
	last := from
	long := int64(c.rule.per) + int64(c.rule.per)/slew + int64(time.Second)
	for _, h := range append(slices.Clone(hits), hit{got: c.ended, sent: c.ended}) {
		if h.got < from {
			continue
		}
		if h.sent-last > long && asksBetween(refused, last, h.sent) > 10 {
			return fmt.Errorf("nothing was admitted for %v from %v after the beginning on",
				time.Duration(h.sent-last), time.Duration(last-c.began))
		}
		last = max(last, h.got)
	}
	return nil
}

func asksBetween(list []hit, from, to int64) (n int) {
	for _, h := range list {
		if h.sent > from && h.got < to {
			n++
		}
	}
	return n
}

// waits are the response times of a cut-off node.
type waits struct {
	first, median, most time.Duration // first: the longest of the first moments
	late                []hit
	n                   int
}

// checkAnswers checks that a node cut off by f answered fast, and reported how
// it decided. Time that the tests waited for a processor during an answer does
// not count.
func checkAnswers(f *fault, all []hit, lost func(from, to int64) int64) (w waits, err error) {
	var later []int64
	for _, h := range all {
		if h.node != f.node || h.sent < f.from || h.got > f.eased {
			continue
		}
		took := h.got - h.sent - lost(h.sent, h.got)
		switch {
		case h.sent <= f.made+int64(firstAnswer):
			w.first = max(w.first, time.Duration(took))
		default:
			later = append(later, took)
			if took > int64(laterAnswer) {
				w.late = append(w.late, h)
			}
			if h.sent > f.made+int64(term+unpushed) && h.by != "fallback" && err == nil {
				err = fmt.Errorf("node %d was cut off, and %v later decided by %s", h.node+1,
					time.Duration(h.sent-f.made), h.by)
			}
		}
	}
	if len(later) == 0 {
		return w, err
	}
	slices.Sort(later)
	w.n, w.median, w.most = len(later), time.Duration(later[len(later)/2]), time.Duration(later[len(later)-1])
	switch {
	case err != nil:
	case w.first > firstAnswer:
		err = fmt.Errorf("node %d was cut off, and its first answer took %v", f.node+1, w.first)
	case len(w.late)*100 > w.n:
		err = fmt.Errorf("node %d was cut off, and %d of %d later answers took longer than %v",
			f.node+1, len(w.late), w.n, laterAnswer)
	}
	return w, err
}

func TestCheckService(t *testing.T) {
	const second = int64(time.Second)
	hits := func(n int, node int, at int64) (list []hit) {
		for range n {
			list = append(list, hit{by: "owner", node: node, cost: 1, sent: at, got: at + 1})
		}
		return list
	}
	hybrid := rule{name: "h", algorithm: "fixed-window", limit: 100, per: 10 * time.Second, hybrid: true}
	exact := rule{name: "e", algorithm: "fixed-window", limit: 100, per: 10 * time.Second}
	cut := []fault{{kind: cutOff, node: 2, from: 5 * second, made: 5 * second, to: 60 * second, observed: true}}
	late := []fault{{kind: cutOff, node: 2, from: 9 * second, made: 9 * second, to: 60 * second, observed: true}}
	link := []fault{{kind: apart, node: 2, from: 19 * second, made: 19 * second, eased: 60 * second,
		to: 60 * second, observed: true}}
	for _, test := range []struct {
		name     string
		rule     *rule
		admitted int
		asked    int
		at       int64
		node     int
		faults   []fault
		wrong    string
	}{
		{"nearly all", &hybrid, 98, 60, 24 * second, 0, nil, ""},
		{"too little", &hybrid, 97, 60, 24 * second, 0, nil, "97 of 100"},
		{"not asked for", &hybrid, 97, 10, 24 * second, 0, nil, ""},
		{"asked too late", &hybrid, 50, 100, 29*second + second/2, 0, nil, ""},
		{"exact", &exact, 99, 60, 24 * second, 0, nil, "99 of 100"},
		{"another cut off", &hybrid, 97, 60, 24 * second, 0, cut, "97 of 100"},
		{"it was cut off", &hybrid, 97, 60, 24 * second, 2, cut, ""},
		{"a link is cut", &hybrid, 97, 60, 24 * second, 0, link, "97 of 100"},
		{"just as a link was cut", &hybrid, 97, 60, 18 * second, 0, link, ""},
		{"just after the cut", &hybrid, 97, 60, 12 * second, 0, late, ""},
	} {
		c := serviceCheck{promise{rule: test.rule, nodes: 3, faults: test.faults}, 1, 100 * second}
		_, err := c.check(hits(test.admitted, test.node, test.at), hits(test.asked, test.node, test.at))
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: have %v, want %q", test.name, err, test.wrong)
		}
	}
	c := serviceCheck{promise{rule: &hybrid}, 0, 60 * second}
	if err := c.checkLockout(slices.Concat(hits(1, 0, 5*second), hits(1, 0, 15*second),
		hits(1, 0, 55*second)), hits(20, 0, 16*second), 2*second); err == nil {
		t.Error("locked out: have nil")
	}
	if err := c.checkLockout(slices.Concat(hits(1, 0, 5*second), hits(1, 0, 15*second),
		hits(1, 0, 55*second)), hits(20, 0, 6*second), 2*second); err != nil {
		t.Errorf("nobody asked: have %v", err)
	}
}

func TestCheckAnswers(t *testing.T) {
	const second = int64(time.Second)
	f := fault{kind: cutOff, node: 1, from: 10 * second, made: 10 * second, eased: 30 * second, to: 31 * second}
	one := func(by string, node int, sent int64, took time.Duration) hit {
		return hit{by: by, node: node, sent: sent, got: sent + int64(took)}
	}
	lost := func(from, to int64) int64 {
		return max(0, min(to, 20*second+int64(80*time.Millisecond))-max(from, 20*second))
	}
	for _, test := range []struct {
		name  string
		hit   hit
		wrong string
	}{
		{"at first", one("fallback", 1, 10*second, 340*time.Millisecond), ""},
		{"too slow at first", one("fallback", 1, 10*second, 360*time.Millisecond), "first answer"},
		{"another is slow", one("fallback", 0, 10*second, 360*time.Millisecond), ""},
		{"slow later", one("fallback", 1, 14*second, 100*time.Millisecond), "1 of 2"},
		{"slow later, with the machine", one("fallback", 1, 20*second, 100*time.Millisecond), ""},
		{"slow later, more than the machine", one("fallback", 1, 20*second, 120*time.Millisecond), "1 of 2"},
		{"an owner with authority", one("owner", 1, 12*second, time.Millisecond), ""},
		{"an owner when it is over", one("owner", 1, 30*second, time.Millisecond), ""},
		{"an owner without", one("owner", 1, 13*second, time.Millisecond), "decided by owner"},
	} {
		_, err := checkAnswers(&f, []hit{test.hit, one("fallback", 1, 15*second, time.Millisecond)}, lost)
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: have %v, want %q", test.name, err, test.wrong)
		}
	}
}
