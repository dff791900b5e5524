package counters

import "github.com/rlnode/rlnode/algorithms"

// Usage returns how much of a limit is used, rounded up, and the decision for a
// check of cost 0. Usage exceeds the capacity when the counter is in debt.
func (t *Table) Usage(now algorithms.Instant, k Key, l *algorithms.Limit) (int64, algorithms.Decision) {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	d := t.usageLocked(s, now, k, l)
	return d.Used, d
}

// ReadUsage sets op's Decision to that for a check of cost 0.
func (t *Table) ReadUsage(now algorithms.Instant, op *Op) {
	s, now := t.lock(now, op.Key)
	defer s.mu.Unlock()
	op.Decision = t.usageLocked(s, now, op.Key, op.Limit)
	if op.Lends {
		s.leaveOutLoans(now, op, s.find(op.Key).state())
	}
}

// usageLocked is Usage for a caller that holds the shard.
func (t *Table) usageLocked(s *shard, now algorithms.Instant, k Key, l *algorithms.Limit) algorithms.Decision {
	if l.Kind == algorithms.SlidingLog {
		var log algorithms.Log
		if e := s.log(k); e != nil {
			log = *e.log.Clone()
		}
		return log.Peek(l, now, 0)
	}
	if l.Kind == algorithms.Concurrency {
		return l.Peek(t.slotState(now, k, l, 0), now, 0)
	}
	return l.Peek(s.find(k).state(), now, 0)
}

// InlineOps returns an op for each inline counter of subject that is in use,
// and for each of its inline limits of slots, but at most bound ops. The op's
// limit has the right kind. Its amount, burst and window are placeholders,
// because the counter does not store them. InlineOps locks the shard for one
// subtable at a time.
func (t *Table) InlineOps(subject uint64, bound int) (ops []Op) {
	add := func(k Key, kind algorithms.Kind) {
		if len(ops) < bound {
			ops = append(ops,
				Op{Key: k, Limit: &algorithms.Limit{Kind: kind, Amount: 1, Burst: 1, Window: algorithms.MinWindow}})
		}
	}
	t.shardOf(Key{Subject: subject}).forEach(func(sub *subtable) {
		for loc := range sub.locations() {
			k := loc.key()
			if k.Subject == subject && k.IsInline() && !loc.state().Fresh() {
				add(k, loc.group().kindFullnesses[loc.slot()].kind())
			}
		}

		for k, e := range sub.logs {
			if k.Subject == subject && k.IsInline() && !e.log.Fresh() {
				add(k, algorithms.SlidingLog)
			}
		}
	})
	return append(ops, t.inlineSlotOps(subject, bound-len(ops))...)
}
