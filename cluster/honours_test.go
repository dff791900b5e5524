package cluster

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules"
)

// at is a state with so many versions of the rules, of a world and a term.
func at(t *testing.T, world byte, term int64, versions int) *agreement.State {
	t.Helper()
	s := agreement.New()
	s.Regions = &agreement.Regions{World: agreement.WorldID{world}, Term: term}
	for i := range versions {
		h, err := s.History.Write(rules.Write{Change: worldWide(i + 1), When: time.Unix(0, 0)})
		if err != nil {
			t.Fatal(err)
		}
		s.History = h
	}
	return s
}

func TestHonoursWaitForOneVersionAtATime(t *testing.T) {
	var h honours
	h.want(at(t, 0, 0, 0), 1)
	if h.next != (honour{}) {
		t.Errorf("have %+v before there are rules", h)
	}
	h.want(at(t, 1, 1, 0), 2)
	h.want(at(t, 1, 1, 1), 3)
	if h.next.version != 1 || h.index != 3 {
		t.Errorf("have %+v, want version 1 as of 3", h)
	}
	h.want(at(t, 1, 1, 2), 4)
	if h.next.version != 1 || h.index != 3 {
		t.Errorf("have %+v, want what was waited for before", h)
	}
	h.got()
	h.want(at(t, 1, 1, 3), 5)
	if h.reached.version != 1 || h.next.version != 3 || h.index != 5 {
		t.Errorf("have %+v, want version 3 as of 5, after 1", h)
	}
	h.got()
	h.want(at(t, 1, 1, 3), 6)
	if h.reached.version != 3 || h.next != (honour{}) {
		t.Errorf("have %+v, want nothing to wait for", h)
	}
	for _, other := range []*agreement.State{at(t, 1, 2, 2), at(t, 2, 1, 2)} {
		h := h
		h.want(other, 7)
		if h.reached != (honour{}) || h.next.version != 2 || h.index != 7 {
			t.Errorf("have %+v, want to begin anew in another line", h)
		}
	}
}

func TestReports(t *testing.T) {
	var r reports
	now := time.Unix(1_000_000_000, 0)
	line := honour{world: agreement.WorldID{1}, term: 1}
	v := func(n int64) honour { return honour{line.world, line.term, n} }
	names := []string{"eu", "us"}
	r.note("eu", v(5), 100, now)
	if _, ok := r.all(names, v(5)); ok {
		t.Error("us has told nothing, and has honoured it")
	}
	r.note("us", v(4), 200, now)
	if _, ok := r.all(names, v(5)); ok {
		t.Error("us has told of 4, and has honoured 5")
	}
	if clock, ok := r.all(names, v(4)); !ok || clock != 200 {
		t.Errorf("have %d, %v, want the later clock", clock, ok)
	}
	r.note("us", v(0), 150, now) // a new leader, which does not know yet, with another clock
	if clock, ok := r.all(names, v(4)); !ok || clock != 200 {
		t.Errorf("have %d, %v: what was honoured once stays so", clock, ok)
	}
	r.note("us", honour{line.world, 2, 9}, 300, now)
	if _, ok := r.all(names, v(4)); ok {
		t.Error("us goes by another term, and honours this one")
	}
	if have := r.strangers(map[string]bool{"eu": true}, now); len(have) != 1 || have[0] != "us" {
		t.Errorf("have %v, want us", have)
	}
	later := now.Add(fresh)
	if r.heard("us", later) || len(r.strangers(nil, later)) != 0 {
		t.Error("what was told long ago counts as new")
	}
	for i := range maxReports {
		r.note(string(rune('A'+i)), v(1), 1, later)
	}
	if len(r.by) > maxReports {
		t.Errorf("have %d regions, more than %d", len(r.by), maxReports)
	}
	if r.note("one more", v(1), 1, later) {
		t.Error("there is no bound")
	}
	r.forget()
	if _, ok := r.all(names, v(1)); ok {
		t.Error("what was forgotten counts")
	}
}
