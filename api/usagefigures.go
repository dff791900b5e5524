package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlnode/rlnode/usage"
)

// usageCollector reads the figures of usage by month.
type usageCollector struct {
	read                                               func() usage.Stats
	rows, most, others, lost, setAside, behind, memory *prometheus.Desc
}

func newUsageCollector(read func() usage.Stats) *usageCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("rlnode_usage_"+name, help, nil, nil)
	}
	return &usageCollector{
		read:     read,
		rows:     desc("rows", "Rows of usage in this month: a rule, a subject and a unit."),
		most:     desc("rows_max", "Bound on the rows of usage a month."),
		others:   desc("others_total", "Checks counted in usage without their subjects' names, for want of room."),
		lost:     desc("lost_total", "Checks that usage could not count. Anything but 0 makes bills too low."),
		setAside: desc("set_aside_total", "Damaged files of usage set aside."),
		behind:   desc("sync_failures", "Failed attempts to bring usage to the disk since the last one that succeeded."),
		memory:   desc("in_memory", "1 while a month of usage has no file, and a crash would forget it."),
	}
}

// Describe sends the descriptions of all figures.
func (c *usageCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect sends all figures.
func (c *usageCollector) Collect(ch chan<- prometheus.Metric) {
	s, st := sink(ch), c.read()
	s.gauge(c.rows, float64(st.Rows))
	s.gauge(c.most, float64(st.MaxRows))
	s.count(c.others, st.Others)
	s.count(c.lost, st.Lost)
	s.count(c.setAside, st.SetAside)
	s.gauge(c.behind, float64(st.SyncFailures))
	s.flag(c.memory, st.InMemory)
}
