package history

import (
	"cmp"
	"slices"

	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/internal/wire"
)

const (
	// MaxRules bounds the rules of a segment. Further rules are added up.
	MaxRules = 64
	// maxDoors bounds the doors of a step.
	maxDoors = 8
	// maxName bounds a name in bytes. Rules with longer names count as further rules.
	maxName = 256
	// maxCount bounds a number, so that a sum over all steps and nodes stays far
	// below math.MaxInt64.
	maxCount = 1 << 48
)

// Counts are numbers of checks.
type Counts struct {
	Checks  int64 // those that were decided, whatever the decision
	Refused int64
	// ShadowRefused counts checks that were not refused, although a shadow rule
	// would have refused them; in a total of all rules, a check counts once for
	// each such rule.
	ShadowRefused int64
}

// add adds other to c.
func (c *Counts) add(other *Counts) {
	c.Checks += other.Checks
	c.Refused += other.Refused
	c.ShadowRefused += other.ShadowRefused
}

func (c *Counts) code(w *wire.Coder) {
	wire.Number(w, &c.Checks, maxCount)
	wire.Number(w, &c.Refused, maxCount)
	wire.Number(w, &c.ShadowRefused, maxCount)
}

// Row counts the checks that a rule applied to.
type Row struct {
	Counts
	Latency latency.Counts // of single checks at a door
}

// Add adds other to r.
func (r *Row) Add(other *Row) {
	r.add(&other.Counts)
	r.Latency.Add(&other.Latency)
}

func (r *Row) code(w *wire.Coder) {
	r.Counts.code(w)
	codeLatency(w, &r.Latency)
}

func codeLatency(w *wire.Coder, c *latency.Counts) {
	for i := range c {
		wire.Number(w, &c[i], maxCount)
	}
}

// Door has the latencies at a door.
type Door struct {
	Name    string
	Latency latency.Counts
}

func codeDoors(w *wire.Coder, list *[]Door) {
	wire.List(w, list, maxDoors, 1+latency.Buckets, func(d *Door) {
		w.Text(&d.Name, maxName)
		codeLatency(w, &d.Latency)
	})
}

// addDoors adds the latencies of other to list.
func addDoors(list *[]Door, other []Door) {
	for i := range other {
		at := slices.IndexFunc(*list, func(d Door) bool { return d.Name == other[i].Name })
		if at < 0 {
			*list = append(*list, other[i])
			continue
		}
		(*list)[at].Latency.Add(&other[i].Latency)
	}
}

// Rule has the counts of a rule.
type Rule struct {
	Name string
	Row
}

// Reading is what a node has counted, since its process began or within a time.
type Reading struct {
	Total  Counts
	Doors  []Door
	Rules  []Rule
	Others Row // by rules that have no counts of their own
}

// since returns what was counted between earlier and rd. A count that went down
// becomes 0: its rule was removed and written anew. Rules and doors without any
// checks are left out. The rules with most checks come first.
func (rd *Reading) since(earlier *Reading) *Reading {
	delta := &Reading{Total: difference(rd.Total, earlier.Total)}
	doorsBefore := map[string]latency.Counts{}
	for _, d := range earlier.Doors {
		doorsBefore[d.Name] = d.Latency
	}
	for _, d := range rd.Doors {
		d.Latency = latencySince(d.Latency, doorsBefore[d.Name])
		if d.Latency != (latency.Counts{}) {
			delta.Doors = append(delta.Doors, d)
		}
	}

	rulesBefore := map[string]Row{}
	for _, rule := range earlier.Rules {
		rulesBefore[rule.Name] = rule.Row
	}
	for _, rule := range rd.Rules {
		before := rulesBefore[rule.Name]
		rule.Counts = difference(rule.Counts, before.Counts)
		rule.Latency = latencySince(rule.Latency, before.Latency)
		if rule.Row != (Row{}) {
			delta.Rules = append(delta.Rules, rule)
		}
	}
	delta.sortRules()
	return delta
}

// sortRules moves the rules with most checks to the front.
func (rd *Reading) sortRules() {
	slices.SortStableFunc(rd.Rules, func(a, b Rule) int { return cmp.Compare(b.Checks, a.Checks) })
}

func difference(now, before Counts) Counts {
	return Counts{
		Checks: max(now.Checks-before.Checks, 0), Refused: max(now.Refused-before.Refused, 0),
		ShadowRefused: max(now.ShadowRefused-before.ShadowRefused, 0),
	}
}

func latencySince(now, before latency.Counts) latency.Counts {
	for i := range now {
		now[i] = max(now[i]-before[i], 0)
	}
	return now
}
