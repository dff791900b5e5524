package counters

import "github.com/rlnode/rlnode/algorithms"

// force debits cost as of from, whether or not the limit allows it.
func (t *Table) force(
	now algorithms.Instant, k Key, l *algorithms.Limit, taken algorithms.TakeRecord, cost int64,
) error {
	return t.change(now, k, l, edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State { return l.Force(s, taken, now, cost) },
		func(g *algorithms.Log, now algorithms.Instant) { g.Force(l, taken, now, cost) },
	})
}

// onlyCounters returns those of records that are no notes.
func onlyCounters(records []Record) (list []Record) {
	for _, r := range records {
		if r.Note == nil {
			list = append(list, r)
		}
	}
	return list
}

// give puts back cost taken at from, in the present life, from a bucket whose rate has not changed.
func (t *Table) give(now algorithms.Instant, k Key, l *algorithms.Limit, taken algorithms.TakeRecord, cost int64) error {
	taken.MaxRate = l.Amount
	return t.GiveBack(now, k, l, taken, cost, t.Life(k.Partition()))
}

// reward lowers usage by n units.
func (t *Table) reward(now algorithms.Instant, k Key, l *algorithms.Limit, n int64) error {
	return t.Amend(now, &Amendment{Ops: []Op{{Key: k, Limit: l, Cost: -n}}})
}

// makeFresh resets a counter.
func (t *Table) makeFresh(now algorithms.Instant, k Key, l *algorithms.Limit) error {
	return t.Amend(now, &Amendment{Ops: []Op{{Key: k, Limit: l}}, Reset: ResetSubject})
}

// penalize debits cost now, whether or not the limit allows it.
func (t *Table) penalize(now algorithms.Instant, k Key, l *algorithms.Limit, cost int64) error {
	return t.Amend(now, &Amendment{Ops: []Op{{Key: k, Limit: l, Cost: cost}}})
}
