package usage

import "github.com/rlnode/rlnode/internal/figures"

// Figures reports how counting is going.
func (m *Meter) Figures(s figures.Sink) {
	st := m.Stats()
	s.Gauge("usage_rows", "Rows of usage in this month: a rule, a subject and a unit.", float64(st.Rows))
	s.Gauge("usage_rows_max", "Bound on the rows of usage a month.", float64(st.MaxRows))
	s.Count("usage_others_total", "Checks counted in usage without their subjects' names, for want of room.", st.Others)
	s.Count("usage_lost_total", "Checks that usage could not count. Anything but 0 makes bills too low.", st.Lost)
	s.Count("usage_set_aside_total", "Damaged files of usage set aside.", st.SetAside)
	s.Gauge("usage_sync_failures", "Failed attempts to bring usage to the disk since the last one that succeeded.", float64(st.SyncFailures))
	s.Flag("usage_in_memory", "1 while a month of usage has no file, and a crash would forget it.", st.InMemory)
}
