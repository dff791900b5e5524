package api

import (
	"net/http"
	"runtime"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rlnode/rlnode/internal/figures"
	"github.com/rlnode/rlnode/internal/loads"
)

// metrics answers GET /metrics from a registry of its own.
func (s *adminServer) metrics() func(http.ResponseWriter, *http.Request) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{s.api}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		// Two concurrent scrapers are usual; many are a mistake.
		MaxRequestsInFlight: 8,
		Timeout:             adminWriteTimeout / 2,
	})
	return func(w http.ResponseWriter, r *http.Request) error {
		handler.ServeHTTP(w, r)
		return nil
	}
}

// collector converts the figures of all packages to Prometheus metrics.
type collector struct{ api *API }

// Describe sends nothing: the set of figures depends on what the node does.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends all figures.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	sink := func(f figures.Figure) {
		var names, values []string
		for i := 0; i < len(f.Labels); i += 2 {
			if !utf8.ValidString(f.Labels[i+1]) {
				return // Prometheus has no other kind
			}
			names, values = append(names, f.Labels[i]), append(values, f.Labels[i+1])
		}
		desc := prometheus.NewDesc("rlnode_"+f.Name, f.Help, names, nil)
		switch f.Kind {
		case figures.Gauge:
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, f.Value, values...)
		case figures.Counter:
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, f.Value, values...)
		case figures.Summary:
			ch <- prometheus.MustNewConstSummary(desc, uint64(f.Counts[0]), f.Sum, nil, values...)
		case figures.Histogram:
			atMost, count := make(map[float64]uint64, len(f.Bounds)), uint64(0)
			for i, n := range f.Counts {
				if count += uint64(n); i < len(f.Bounds) {
					atMost[f.Bounds[i]] = count
				}
			}
			ch <- prometheus.MustNewConstHistogram(desc, count, f.Sum, atMost, values...)
		}
	}
	c.api.figures(sink)
	for _, source := range c.api.config.Figures {
		source(sink)
	}
}

// figures shows what the API itself counts.
func (a *API) figures(s figures.Sink) {
	counts, sum := a.plane.latency.read()
	s.Histogram("check_seconds", "Time from a check's body to its answer, single checks.", figures.Seconds(latencyBounds[:]), counts, sum)
	if set := a.config.Decider.Rules(); set != nil {
		s.Gauge("rules_version", "Version of the rules in force.", float64(set.Version))
	}
	s.Flag("ready", "1 if the node is ready, else 0.", a.readiness.probe() == nil)
	s.Count("panics_total", "Panics caught in handlers. Anything but 0 is a bug.", a.plane.panics.Load())
	beyond := func(plane string, n int64) {
		s.Count("connections_beyond_total",
			"Connections beyond the bounds, in all or of one address, which are answered probes only.", n, "plane", plane)
	}
	if data := a.data; data != nil {
		s.Level("waiting", "Answers of checks with wait that are held back now.", int(data.waiting.count()))
		s.Level("waiting_max", "Bound on the answers held back at once.", int(data.waiting.most))
		s.Count("wait_refused_total", "Checks with wait that were answered at once because too many were held back.", data.waiting.turned.Load())
		beyond("data", data.conns.beyond())
	}
	beyond("admin", a.admin.conns.beyond())
	s.Count("connections_ended_total",
		"Connections of the data plane with a large body or answer that were too slow when the memory for those was used up.", a.plane.budget.ended.Load())
	s.Gauge("build_info", "Version of the program; always 1.", 1, "version", a.config.Version, "go", runtime.Version())
	a.loadFigures(s)
}

// loadFigures shows what adaptive rules follow: only sources that the rules in force name, since any caller may report
// others.
func (a *API) loadFigures(s figures.Sink) {
	followed := map[string]bool{loads.NodeCPU: true}
	for _, r := range a.admin.adaptive() {
		s.Gauge("adaptive_factor", "What an adaptive rule's limits are multiplied by at this node.", a.config.Subjects.Factor(r), "rule", r.Name)
		followed[r.Adaptive.Source] = true
	}
	for _, l := range a.config.Loads.Sources() {
		if followed[l.Name] {
			s.Gauge("load", "Load of the sources that the rules in force follow, and of this node's processors.", l.Load, "source", l.Name)
		}
	}
}
