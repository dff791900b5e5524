package counters

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// edit is a change of one counter, which is a state or a log.
type edit struct {
	state func(algorithms.State) algorithms.State
	log   func(*algorithms.Log)
}

// oblige debits cost as of from; see [Table.Oblige].
func oblige(l *algorithms.Limit, from algorithms.Taken, now algorithms.Now, cost int64) edit {
	return edit{
		func(s algorithms.State) algorithms.State { return l.Oblige(s, from, now, cost) },
		func(g *algorithms.Log) { g.Force(l, from, now, cost) },
	}
}

// penalty debits cost now, whether or not the limit allows it.
func penalty(l *algorithms.Limit, now algorithms.Now, cost int64) edit {
	return edit{
		func(s algorithms.State) algorithms.State {
			s = l.Advance(s, now)
			return l.Force(s, l.Taken(s, now), now, cost)
		},
		func(g *algorithms.Log) { g.Force(l, algorithms.Taken{Steady: now.Steady}, now, cost) },
	}
}

// reward lowers what is used by n units.
func reward(l *algorithms.Limit, now algorithms.Now, n int64) edit {
	return edit{
		func(s algorithms.State) algorithms.State { return l.Reward(s, now, n) },
		func(g *algorithms.Log) { g.Reward(l, now, n) },
	}
}

// refund puts back part of a cost; see [algorithms.Limit.Refund].
func refund(l *algorithms.Limit, from algorithms.Taken, rest time.Duration, now algorithms.Now, cost int64) edit {
	return edit{
		func(s algorithms.State) algorithms.State { return l.Refund(s, from, rest, now, cost) },
		func(g *algorithms.Log) { g.Refund(l, rest, now, cost) },
	}
}

// Oblige debits cost as of from, as far as no more is used then than the capacity; see [algorithms.Limit.Oblige]. A log
// takes all of it. It fails, and does nothing, with ErrShut or ErrFull.
func (t *Table) Oblige(now algorithms.Now, k Key, l *algorithms.Limit, from algorithms.Taken, cost int64) error {
	return t.change(now, k, l, oblige(l, from, now, cost))
}

// ObligeCopy is Oblige without a look at the gate: for a copy, which its keeper changes.
func (t *Table) ObligeCopy(now algorithms.Now, k Key, l *algorithms.Limit, from algorithms.Taken, cost int64) error {
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.changeHeld(s, now, k, l, oblige(l, from, now, cost))
}

// Penalize debits cost now, whether or not the limit allows it. It fails, and does nothing, with ErrShut or ErrFull.
func (t *Table) Penalize(now algorithms.Now, k Key, l *algorithms.Limit, cost int64) error {
	return t.change(now, k, l, penalty(l, now, cost))
}

// Give puts back cost taken at from. It fails, and does nothing, with ErrShut.
func (t *Table) Give(now algorithms.Now, k Key, l *algorithms.Limit, from algorithms.Taken, cost int64) error {
	return t.change(now, k, l, edit{
		func(s algorithms.State) algorithms.State { return l.Give(s, from, now, cost) },
		func(g *algorithms.Log) { g.Give(l, from, now, cost) },
	})
}

// Refund puts back part of a cost that was taken a while ago; see [algorithms.Limit.Refund]. It fails, and does nothing,
// with ErrShut.
func (t *Table) Refund(now algorithms.Now, k Key, l *algorithms.Limit, from algorithms.Taken, rest time.Duration, cost int64) error {
	return t.change(now, k, l, refund(l, from, rest, now, cost))
}

// reset makes a counter of the shard, which is held, fresh. It is in the table, as changed, until Changed has handed that out,
// and Replicate where it is in use, so that no older copy comes back. It fails with ErrFull if there was no room to note that
// for a counter not in the table.
func (t *Table) reset(s *shard, now algorithms.Now, k Key, l *algorithms.Limit) error {
	if l.Kind == algorithms.SlidingLog {
		if s.log(k) == nil && !t.makeRoom(s, k, now.Steady, 0, nil) {
			return ErrFull
		}
		t.changeLog(s, k, now, l, func(g *algorithms.Log) { *g = algorithms.Log{} })
		return nil
	}
	p := s.find(k)
	if !p.found() {
		if !t.makeRoom(s, k, now.Steady, 0, nil) {
			return ErrFull
		}
		p = s.insert(k)
	}
	s.store(p, l, algorithms.State{}, 0, freshAt(now, l, 0))
	return nil
}

// change changes one counter, unless the gate of its partition is shut.
func (t *Table) change(now algorithms.Now, k Key, l *algorithms.Limit, e edit) error {
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.gates.isShut(k.Partition()) {
		return ErrShut
	}
	return t.changeHeld(s, now, k, l, e)
}

// changeHeld is change for a shard that is held.
func (t *Table) changeHeld(s *shard, now algorithms.Now, k Key, l *algorithms.Limit, e edit) error {
	if l.Kind == algorithms.SlidingLog {
		if s.log(k) == nil {
			var fresh algorithms.Log
			if e.log(&fresh); fresh.Fresh() {
				return nil
			}
			if !t.makeRoom(s, k, now.Steady, 0, nil) {
				return ErrFull
			}
		}
		t.changeLog(s, k, now, l, e.log)
		return nil
	}
	p := s.find(k)
	next := e.state(p.state())
	if !p.found() {
		if next.Fresh() {
			return nil
		}
		if !t.makeRoom(s, k, now.Steady, 0, nil) {
			return ErrFull
		}
		p = s.insert(k)
	}
	d := l.Describe(next, now, 0, true)
	s.store(p, l, next, levelLeft(l, &d), freshAt(now, l, d.ResetAfter))
	return nil
}

// logSlot returns k's log, a new one if it has none.
func (t *Table) logSlot(s *shard, k Key) *logSlot {
	e := s.log(k)
	if e == nil {
		e = &logSlot{}
		s.of(k).putLog(k, e)
		s.room--
		t.logs.Add(1)
	}
	return e
}

// putLog puts a log in under k, which has none.
func (r *records) putLog(k Key, e *logSlot) {
	if r.logs == nil {
		r.logs = make(map[Key]*logSlot)
	}
	r.logs[k] = e
}

// levelLeft is a counter's level after a change that was no check: without anything left it refuses.
func levelLeft(l *algorithms.Limit, d *algorithms.Decision) uint8 {
	if d.Remaining == 0 {
		return refusedLevel
	}
	return level(l, d)
}

// changeLog changes k's log, a new one if it has none, and keeps the books. When the logs together are at their bound, one that grows beyond its
// fair part of it becomes coarser: it then forgets late, never early. Those that stand still may have more than
// theirs, so the logs together stay under twice the bound.
func (t *Table) changeLog(s *shard, k Key, now algorithms.Now, l *algorithms.Limit, change func(*algorithms.Log)) {
	e := t.logSlot(s, k)
	before := e.log.Len()
	change(&e.log)
	t.keepBooks(e, before, l)
	d := e.log.Describe(l, now, 0, true)
	e.freshAt = max(e.freshAt, freshAt(now, l, d.ResetAfter)) // see store
	e.mark = newMark(algorithms.SlidingLog, levelLeft(l, &d))
	s.soilLog(k, e, everyone)
}

// keepBooks counts the entries of a log that had before of them, and makes it coarser if it has to be; see changeLog.
func (t *Table) keepBooks(e *logSlot, before int, l *algorithms.Limit) {
	if e.log.Len() > before && t.logEntries.Load() >= t.maxLogEntries {
		if fair := max(t.maxLogEntries/max(1, t.logs.Load()), minLogShare); int64(e.log.Len()) > fair {
			e.log.Coarsen(l, fair/2)
		}
	}
	t.logEntries.Add(int64(e.log.Len() - before))
}

func (t *Table) dropLog(s *shard, k Key) {
	r := s.of(k)
	e := r.logs[k]
	t.logEntries.Add(int64(-e.log.Len()))
	s.cleanLog(e, everyone)
	delete(r.logs, k)
	s.room++
	t.logs.Add(-1)
	if len(r.logs) == 0 {
		r.logs = nil // a map does not shrink by itself
	}
}

// Usage is what is used of one limit, rounded up and above the capacity in debt, and the answer that a check
// of cost 0 would have.
func (t *Table) Usage(now algorithms.Now, k Key, l *algorithms.Limit) (int64, algorithms.Decision) {
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.usageHeld(s, now, k, l)
}

// usageHeld is Usage for a shard that is held.
func (t *Table) usageHeld(s *shard, now algorithms.Now, k Key, l *algorithms.Limit) (int64, algorithms.Decision) {
	if l.Kind == algorithms.SlidingLog {
		var log algorithms.Log
		if e := s.log(k); e != nil {
			log = *e.log.Clone()
		}
		d := log.Peek(l, now, 0)
		return log.Used(), d
	}
	state := l.Advance(s.find(k).state(), now)
	return l.Used(state, now), l.Describe(state, now, 0, true)
}
