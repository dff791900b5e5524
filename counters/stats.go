package counters

import "github.com/rlnode/rlnode/internal/metrics"

// Stats describes the table.
type Stats struct {
	Counters   int64 // held now, including logs
	Inline     int64 // of Counters: those of limits that came with a call
	Logs       int64 // of Counters: sliding-window logs
	LogEntries int64
	Bytes      int64 // memory of the subtables, used and free; without logs
	Max        int64
	Evicted    int64 // since the start: dropped for lack of room before they were fresh
	Expired    int64 // since the start: dropped because they were fresh
	Refused    int64 // since the start: checks of new subjects refused because only refusing counters were left
	// InlineRefused counts checks of new inline subjects that were refused because
	// there was no other inline counter to evict.
	InlineRefused int64
}

// Metrics reports the current metrics.
func (t *Table) Metrics(sink metrics.Sink) {
	st := t.Stats()
	sink.Gauge("counters", "Counters held.", float64(st.Counters))
	sink.Gauge("counters_inline",
		"Counters held of limits that came with a call; at most half of the bound.",
		float64(st.Inline))
	sink.Gauge("counters_max", "Bound on the counters held.", float64(st.Max))
	sink.Gauge("counters_bytes", "Memory of the table of counters, used and free, logs not included.", float64(st.Bytes))
	sink.Gauge("counters_logs", "Counters held that are sliding-window logs.", float64(st.Logs))
	sink.Gauge("counters_log_entries", "Entries of all sliding-window logs.", float64(st.LogEntries))
	sink.Count("counters_evicted_total",
		"Counters dropped before they were fresh, because the table was full.", st.Evicted)
	sink.Count("counters_expired_total", "Counters dropped as fresh.", st.Expired)
	sink.Count("counters_refused_total",
		"Checks of new subjects refused because only refused counters were left.", st.Refused)
	sink.Count("counters_inline_refused_total",
		"Checks of new subjects with limits that came with a call, refused because their part of the table was full.",
		st.InlineRefused)
}

// Stats returns the current metrics.
func (t *Table) Stats() Stats {
	st := Stats{Max: t.maxCounters, LogEntries: t.logEntries[configured].Load() + t.logEntries[inline].Load()}
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.forEachLocked(func(sub *subtable) {
			st.Counters += int64(sub.count())
			st.Logs += int64(len(sub.logs))
			st.Bytes += int64(len(sub.groups) * groupBytes)
		})
		st.Inline += int64(s.inline)
		st.Evicted += s.evicted
		st.Expired += s.expired
		st.Refused += s.refused[configured]
		st.InlineRefused += s.refused[inline]
		s.mu.Unlock()
	}

	return st
}
