package counters

import "github.com/rlnode/rlnode/algorithms"

// changeLog changes k's log, creating it if needed, and updates the entry
// counts. The caller must hold the shard and have made room for a new log.
//
// While the entries of all logs have reached their bound, a log that grows
// beyond its fair share becomes coarser; it then forgets late, never early.
// Logs that don't grow may keep more than their share, so the total stays only
// under twice the bound. Inline logs share half of the bound.
func (t *Table) changeLog(
	s *shard, k Key, now algorithms.Instant, l *algorithms.Limit, change func(*algorithms.Log, algorithms.Instant),
) {
	e := t.ensureLog(s, k)
	before := e.log.Len()
	change(&e.log, now)
	t.updateEntryCount(k.class(), e, before, l)
	d := e.log.Describe(l, now, 0, true)
	e.expiresAt = max(e.expiresAt, expiryAfter(now, l, d.ResetAfter)) // see group.set
	e.kindFullness = packKindFullness(algorithms.SlidingLog, fullnessAfterChange(l, &d))
	s.markLogDirty(k, e, allReaders)
}

// ensureLog returns k's log, creating it if needed.
func (t *Table) ensureLog(s *shard, k Key) *storedLog {
	e := s.log(k)
	if e == nil {
		e = &storedLog{}
		s.subtableOf(k).putLog(k, e)
		s.room--
		s.inline += int(k.class())
		t.logs[k.class()].Add(1)
	}
	return e
}

// minLogShare is the number of entries that a log may always hold before it
// must become coarser.
const minLogShare = 16

// updateEntryCount updates the count of entries after a change to a log of
// class c, which had before entries. If necessary, it makes the log coarser;
// see changeLog.
func (t *Table) updateEntryCount(c class, e *storedLog, before int, l *algorithms.Limit) {
	if e.log.Len() > before {
		bound := t.maxLogEntries / 2
		if c == configured {
			bound = t.maxLogEntries - min(t.logEntries[inline].Load(), bound)
		}

		if t.logEntries[c].Load() >= bound {
			fair := max(bound/max(1, t.logs[c].Load()), minLogShare)
			if int64(e.log.Len()) > fair {
				// The log shrinks to half of its share. Otherwise it would soon exceed its
				// share again.
				e.log.Coarsen(l, fair/2)
			}
		}
	}
	t.logEntries[c].Add(int64(e.log.Len() - before))
}

func (t *Table) dropLog(s *shard, k Key) {
	sub := s.subtableOf(k)
	e := sub.logs[k]
	t.logEntries[k.class()].Add(int64(-e.log.Len()))
	s.markLogClean(e, allReaders)
	delete(sub.logs, k)
	s.room++
	s.inline -= int(k.class())
	t.logs[k.class()].Add(-1)
	if len(sub.logs) == 0 {
		sub.logs = nil // release the memory: a map never shrinks
	}
}
