package history

import (
	"cmp"
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
)

const (
	// maxPacked bounds a compressed segment, in bytes. All 56 segments together,
	// and one that is being replaced, then take less than 8 MiB.
	maxPacked = 128 << 10
	// maxUnpacked bounds a segment that is read. One with all rules and the largest
	// numbers is smaller.
	maxUnpacked = 2 << 20
	maxNumber   = 1 << 40 // of a step
)

// step is what was decided in one step of a segment.
type step struct {
	number int64
	total  Counts
	doors  []Door
	rules  []Row // of the segment's rules, in their order; those beyond the end have no checks
	others Row   // of all other rules
}

func (s *step) code(w *wire.Coder) {
	wire.Number(w, &s.number, maxNumber)
	s.total.code(w)
	codeDoors(w, &s.doors)
	wire.List(w, &s.rules, MaxRules, 3, func(r *Row) { r.code(w) })
	s.others.code(w)
}

// addStep adds what was decided in other, a step of a segment with the same rules.
func (s *step) addStep(other *step) {
	s.total.add(&other.total)
	addDoors(&s.doors, other.doors)
	for len(s.rules) < len(other.rules) {
		s.rules = append(s.rules, Row{})
	}
	for i := range other.rules {
		s.rules[i].Add(&other.rules[i])
	}
	s.others.Add(&other.others)
}

// segment is a stretch of steps. It has only those with data.
type segment struct {
	first int64 // number of the first step that it can have
	size  int64 // how many steps it can have
	names []string
	steps []step // in ascending order
}

// Code implements wire.Message.
func (g *segment) Code(w *wire.Coder) {
	wire.Number(w, &g.first, maxNumber)
	wire.Number(w, &g.size, maxSegment)
	w.Texts(&g.names, MaxRules, maxName)
	wire.List(w, &g.steps, maxSegment, 3, func(s *step) { s.code(w) })
	if !w.Reads() {
		return
	}

	last := g.first - 1
	for i := range g.steps {
		s := &g.steps[i]
		w.Require(s.number > last && s.number < g.first+g.size && len(s.rules) <= len(g.names))
		last = s.number
	}
}

// stepOf returns a reading's difference as a step of g. Rules join g's as long
// as there is room for them.
func (g *segment) stepOf(number int64, delta *Reading) step {
	s := step{number: number, total: delta.Total, doors: delta.Doors, others: delta.Others}
	s.doors = s.doors[:min(len(s.doors), maxDoors)]

	for i := range delta.Rules {
		r := &delta.Rules[i]
		if r.Row == (Row{}) {
			continue
		}

		at := slices.Index(g.names, r.Name)
		if at < 0 && len(g.names) < MaxRules && len(r.Name) <= maxName {
			at = len(g.names)
			g.names = append(g.names, r.Name)
		}

		if at < 0 {
			s.others.Add(&r.Row)
			continue
		}

		for len(s.rules) <= at {
			s.rules = append(s.rules, Row{})
		}

		s.rules[at].Add(&r.Row)
	}

	return s
}

// put stores s in the place of its number. If adds is set, s is added to the
// step that is there.
func (g *segment) put(s step, adds bool) {
	at, found := slices.BinarySearchFunc(g.steps, s.number,
		func(have step, number int64) int { return cmp.Compare(have.number, number) })
	switch {
	case !found:
		g.steps = slices.Insert(g.steps, at, s)
	case adds:
		g.steps[at].addStep(&s)
	default:
		g.steps[at] = s
	}
}

// sum returns what was decided in all steps of g. The rules with most checks come first.
func (g *segment) sum() *Reading {
	var all step
	for i := range g.steps {
		all.addStep(&g.steps[i])
	}
	r := &Reading{Total: all.total, Doors: all.doors, Others: all.others}
	for i := range all.rules {
		r.Rules = append(r.Rules, Rule{Name: g.names[i], Row: all.rules[i]})
	}
	r.sortRules()
	return r
}

// forgetHalf adds the least used half of the rules to the others.
func (g *segment) forgetHalf() {
	busiest := g.sum().Rules
	busiest = busiest[:min(len(busiest), len(g.names)/2)]
	before := g.names
	g.names = nil
	for i := range busiest {
		g.names = append(g.names, busiest[i].Name)
	}

	for i := range g.steps {
		s := &g.steps[i]
		rows := s.rules
		s.rules = make([]Row, len(g.names))
		for j := range rows {
			if at := slices.Index(g.names, before[j]); at >= 0 {
				s.rules[at] = rows[j]
			} else {
				s.others.Add(&rows[j])
			}
		}
	}
}

// pack returns g compressed, in at most maxPacked bytes. Where that is too
// little, rules lose their own counts.
func (g *segment) pack() []byte {
	for {
		b := wire.Deflate(nil, wire.Encode(nil, g))
		if len(b) <= maxPacked || len(g.names) == 0 {
			return b
		}
		g.forgetHalf()
	}
}

// unpack is the inverse of pack. It returns nil if b is damaged.
func unpack(b []byte) *segment {
	content, err := wire.Inflate(b, maxUnpacked)
	g := &segment{}
	if err != nil || wire.Decode(content, g, "segment of the history") != nil {
		return nil
	}
	return g
}
