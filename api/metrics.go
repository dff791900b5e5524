package api

import (
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rlnode/rlnode/limiter"
)

// decisionNames are the values of the label decision, by limiter's constants.
var decisionNames = [...]string{"allowed", "refused", "shadow-refused"}

// metrics answers GET /metrics from a registry of its own.
func (s *adminServer) metrics() func(http.ResponseWriter, *http.Request) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(s.api), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if read := s.api.config.UsageStats; read != nil {
		registry.MustRegister(newUsageCollector(read))
	}
	if read := s.api.config.ClusterFigures; read != nil {
		registry.MustRegister(newClusterCollector(read))
	}
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		// Two scrapers at once are usual, many are a mistake.
		MaxRequestsInFlight: 8,
		Timeout:             adminWriteTimeout / 2,
	})
	return func(w http.ResponseWriter, r *http.Request) error {
		handler.ServeHTTP(w, r)
		return nil
	}
}

// collector reads the figures that others keep, when they are asked for.
type collector struct {
	api *API

	checks, headroom, latency, mistaken            *prometheus.Desc
	counters, countersMax, bytes, logs, logEntries *prometheus.Desc
	evicted, expired, refused                      *prometheus.Desc
	saved, saveAge, saveTook, saveFailed, rows     *prometheus.Desc
	fileSize, setAside                             *prometheus.Desc
	epoch, rulesVersion, ready, panics, build      *prometheus.Desc
	forward, coalesced, unanswered, fallback       *prometheus.Desc
	acted, served, relayed, given, busy            *prometheus.Desc
	ended, spare, waiting, waitingMax, notHeld     *prometheus.Desc
	load, factor                                   *prometheus.Desc
	leases                                         leaseDescs
	loans                                          loanDescs
	reservations                                   reservationDescs
}

func newCollector(a *API) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("rlnode_"+name, help, labels, nil)
	}
	return &collector{
		api:          a,
		checks:       desc("checks_total", "Checks decided; rule is empty for those that no rule decided.", "rule", "decision", "decided_by"),
		headroom:     desc("headroom_ratio", "What was left of the rule's tightest limit after a check, in tenths rounded up.", "rule"),
		mistaken:     desc("false_positives_total", "Refusals said by feedback to be wrong.", "rule"),
		latency:      desc("check_seconds", "Time from a check's body to its answer, single checks."),
		counters:     desc("counters", "Counters held."),
		countersMax:  desc("counters_max", "Bound on the counters held."),
		bytes:        desc("counters_bytes", "Memory of the table of counters, used and free, logs not included."),
		logs:         desc("counters_logs", "Counters held that are sliding-window logs."),
		logEntries:   desc("counters_log_entries", "Entries of all sliding-window logs."),
		evicted:      desc("counters_evicted_total", "Counters dropped before they were fresh, for want of room."),
		expired:      desc("counters_expired_total", "Counters dropped as fresh."),
		refused:      desc("counters_refused_total", "Checks of new subjects refused because only refused counters were left."),
		saved:        desc("checkpoint_ok", "1 if the last checkpoint completed, else 0."),
		saveAge:      desc("checkpoint_age_seconds", "Time since the last completed checkpoint began."),
		saveTook:     desc("checkpoint_duration_seconds", "Time that the last completed checkpoint took."),
		saveFailed:   desc("checkpoint_failures", "Checkpoints that failed since the last completed one."),
		rows:         desc("checkpoint_counters", "Counters written by the last completed checkpoint."),
		fileSize:     desc("checkpoint_file_bytes", "Size of the counter file."),
		setAside:     desc("checkpoint_set_aside_total", "Damaged counter files set aside."),
		epoch:        desc("ring_epoch", "Number of the ring in use."),
		rulesVersion: desc("rules_version", "Version of the rules in force."),
		ready:        desc("ready", "1 if the node is ready, else 0."),
		panics:       desc("panics_total", "Panics caught in handlers. Anything but 0 is a bug."),
		forward:      desc("forward_seconds", "Time from a question to another node to the answer; one may be of several checks, or renew a lease."),
		coalesced:    desc("forward_coalesced_total", "Checks that shared a message with one alike before them."),
		unanswered:   desc("forward_failed_total", "Questions to other nodes that were not answered, or that they could not decide."),
		fallback:     desc("fallback_total", "Subjects decided without owner and standby, by what their rule says for that.", "on_partition"),
		acted:        desc("standby_decisions_total", "Decisions as a standby, for owners that can't be reached."),
		served:       desc("served_total", "Decisions as an owner, for other nodes."),
		relayed:      desc("relayed_total", "Questions of other nodes passed on to the owner."),
		given:        desc("given_back_total", "Messages that gave back what was taken for a check that another node refused."),
		busy:         desc("busy_total", "Questions of other nodes turned away because too many were waiting."),
		waiting:      desc("waiting", "Answers of checks with wait that are held back now."),
		waitingMax:   desc("waiting_max", "Bound on the answers held back at once."),
		notHeld:      desc("wait_refused_total", "Checks with wait that were answered at once because too many were held back."),
		ended:        desc("connections_ended_total", "Connections of the data plane with a large body or answer that were too slow when the memory for those was used up."),
		spare:        desc("connections_beyond_total", "Connections beyond the bounds, in all or of one address, which are answered probes only.", "plane"),
		load:         desc("load", "Load of the sources that the rules in force follow, and of this node's processors.", "source"),
		factor:       desc("adaptive_factor", "What an adaptive rule's limits are multiplied by at this node.", "rule"),
		leases:       newLeaseDescs(desc),
		loans:        newLoanDescs(desc),
		reservations: newReservationDescs(desc),
		build:        desc("build_info", "Version of the program; always 1.", "version", "go"),
	}
}

// Describe sends the descriptions of all figures.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{
		c.checks, c.headroom, c.latency, c.mistaken, c.counters, c.countersMax, c.bytes, c.logs, c.logEntries, c.evicted, c.expired,
		c.refused, c.saved, c.saveAge, c.saveTook, c.saveFailed, c.rows, c.fileSize, c.setAside, c.epoch, c.rulesVersion, c.ready,
		c.panics, c.build, c.forward, c.coalesced, c.unanswered, c.fallback, c.acted, c.served, c.relayed, c.given, c.busy,
		c.ended, c.spare, c.waiting, c.waitingMax, c.notHeld, c.load, c.factor,
	} {
		ch <- d
	}
	for _, d := range slices.Concat(c.leases.all(), c.loans.all(), c.reservations.all()) {
		ch <- d
	}
}

// sink sends figures to a channel.
type sink chan<- prometheus.Metric

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) count(d *prometheus.Desc, v int64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (s sink) flag(d *prometheus.Desc, v bool, labels ...string) {
	if v {
		s.gauge(d, 1, labels...)
	} else {
		s.gauge(d, 0, labels...)
	}
}

// Collect sends all figures.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := sink(ch)
	for _, r := range c.api.config.RuleStats() {
		c.rule(s, r)
	}
	atMost, count, sum := c.api.plane.latency.read()
	s <- prometheus.MustNewConstHistogram(c.latency, count, sum, atMost)
	t := c.api.config.Counters()
	s.gauge(c.counters, float64(t.Counters))
	s.gauge(c.countersMax, float64(t.Max))
	s.gauge(c.bytes, float64(t.Bytes))
	s.gauge(c.logs, float64(t.Logs))
	s.gauge(c.logEntries, float64(t.LogEntries))
	s.count(c.evicted, t.Evicted)
	s.count(c.expired, t.Expired)
	s.count(c.refused, t.Refused)
	c.checkpoints(s)
	_, _, epoch := c.api.config.Cluster.Owner(0)
	s.gauge(c.epoch, float64(epoch))
	if set := c.api.config.Decider.Rules(); set != nil {
		s.gauge(c.rulesVersion, float64(set.Version))
	}
	s.flag(c.ready, c.api.readiness.probe() == nil)
	c.cluster(s)
	s.count(c.panics, c.api.plane.panics.Load())
	c.loadFigures(s)
	if data := c.api.data; data != nil {
		s.gauge(c.waiting, float64(data.waiting.count()))
		s.gauge(c.waitingMax, float64(data.waiting.most))
		s.count(c.notHeld, data.waiting.turned.Load())
		s.count(c.spare, data.conns.beyond(), "data")
	}
	s.count(c.ended, c.api.plane.budget.ended.Load())
	s.count(c.spare, c.api.admin.conns.beyond(), "admin")
	s.gauge(c.build, 1, c.api.config.Version, runtime.Version())
}

// partitionWords are the values of the label on_partition, by the constants of rules.
var partitionWords = [...]string{"share", "full", "allow", "deny"}

// cluster sends what the node did together with others.
func (c *collector) cluster(s sink) {
	if c.api.config.ClusterStats == nil {
		return
	}
	st := c.api.config.ClusterStats()
	atMost := make(map[float64]uint64, len(limiter.ForwardBounds))
	sum := uint64(0)
	for i, bound := range limiter.ForwardBounds {
		sum += uint64(st.Seconds[i])
		atMost[bound.Seconds()] = sum
	}
	s <- prometheus.MustNewConstHistogram(c.forward, uint64(st.Forwards), st.Sum.Seconds(), atMost)
	for i, n := range st.Fallback {
		s.count(c.fallback, n, partitionWords[i])
	}
	s.count(c.coalesced, st.Coalesced)
	s.count(c.unanswered, st.Failed)
	s.count(c.acted, st.Acted)
	s.count(c.served, st.Served)
	s.count(c.relayed, st.Relayed)
	s.count(c.given, st.Given)
	s.count(c.busy, st.Busy)
	c.leases.send(s, &st)
	c.loans.send(s, &st)
	c.reservations.send(s, &st)
}

// rule sends the figures of one rule. Decisions that never happened are left out.
func (c *collector) rule(s sink, r limiter.RuleStats) {
	for decision := range r.Checks {
		for by, n := range r.Checks[decision] {
			if n > 0 {
				s.count(c.checks, n, r.Rule, decisionNames[decision], limiter.DecidedBy(by).String())
			}
		}
	}
	if r.Rule == "" {
		return // no limit, no headroom
	}
	s.count(c.mistaken, r.FalsePositives, r.Rule)
	atMost := make(map[float64]uint64, len(r.Headroom))
	count, tenths := uint64(0), int64(0)
	for i, n := range r.Headroom {
		count += uint64(n)
		tenths += int64(i) * n
		atMost[float64(i)/10] = count
	}
	s <- prometheus.MustNewConstHistogram(c.headroom, count, float64(tenths)/10, atMost, r.Rule)
}

func (c *collector) checkpoints(s sink) {
	if c.api.config.Checkpoints == nil {
		return
	}
	st := c.api.config.Checkpoints()
	s.flag(c.saved, st.Err == nil)
	if !st.Last.IsZero() {
		s.gauge(c.saveAge, time.Since(st.Last).Seconds())
	}
	s.gauge(c.saveTook, st.Took.Seconds())
	s.gauge(c.saveFailed, float64(st.Failures))
	s.gauge(c.rows, float64(st.Counters))
	s.gauge(c.fileSize, float64(st.FileSize))
	s.count(c.setAside, st.SetAside)
}
