package counters

import "github.com/rlnode/rlnode/algorithms"

// force debits cost as of from, whether or not the limit allows it.
func (t *Table) force(now algorithms.Instant, k Key, l *algorithms.Limit, from algorithms.TakeRecord, cost int64) error {
	return t.change(now, k, l, edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State { return l.Force(s, from, now, cost) },
		func(g *algorithms.Log, now algorithms.Instant) { g.Force(l, from, now, cost) },
	}, nil)
}

// reward lowers usage by n units.
func (t *Table) reward(now algorithms.Instant, k Key, l *algorithms.Limit, n int64) error {
	return t.Amend(now, &Amendment{Ops: []Op{{Key: k, Limit: l, Cost: -n}}})
}

// makeFresh resets a counter.
func (t *Table) makeFresh(now algorithms.Instant, k Key, l *algorithms.Limit) error {
	return t.Amend(now, &Amendment{Ops: []Op{{Key: k, Limit: l}}, Reset: true})
}
