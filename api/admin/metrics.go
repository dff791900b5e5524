package admin

import (
	"maps"
	"net/http"
	"runtime"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/limiter/loads"
)

// metrics answers GET /metrics from a registry of its own.
func (s *Server) metrics() func(http.ResponseWriter, *http.Request) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{s}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
	text := &page{make: func() ([]byte, http.Header, int) {
		r, err := http.NewRequest(http.MethodGet, "/metrics", nil)
		if err != nil {
			return nil, nil, http.StatusInternalServerError // impossible
		}
		answer := &recorder{header: http.Header{}, status: http.StatusOK}
		handler.ServeHTTP(answer, r)
		return answer.body.Bytes(), answer.header, answer.status
	}}

	return func(w http.ResponseWriter, r *http.Request) error {
		made, err := text.get(r.Context())
		if err != nil {
			return api.Errorf(api.Timeout, "the metrics took too long")
		}

		maps.Copy(w.Header(), made.header)
		if made.status != http.StatusOK {
			w.WriteHeader(made.status)
		}

		s.send(w, made.body)
		return nil
	}
}

// collector exports the metrics of all packages as Prometheus metrics.
type collector struct{ *Server }

// Describe sends nothing, which makes the collector unchecked: the set of
// metrics depends on what the node does.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends all metrics.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	sink := func(f metrics.Metric) {
		var names, values []string
		for i := 0; i < len(f.Labels); i += 2 {
			if !utf8.ValidString(f.Labels[i+1]) {
				return // Prometheus allows only UTF-8
			}
			names, values = append(names, f.Labels[i]), append(values, f.Labels[i+1])
		}

		desc := prometheus.NewDesc("rlnode_"+f.Name, f.Help, names, nil)
		switch f.Kind {
		case metrics.Gauge:
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, f.Value, values...)
		case metrics.Counter:
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, f.Value, values...)
		case metrics.Summary:
			ch <- prometheus.MustNewConstSummary(desc, uint64(f.Counts[0]), f.Sum, nil, values...)
		case metrics.Histogram:
			atMost, count := make(map[float64]uint64, len(f.Bounds)), uint64(0)
			for i, n := range f.Counts {
				count += uint64(n)
				if i < len(f.Bounds) {
					atMost[f.Bounds[i]] = count
				}
			}
			ch <- prometheus.MustNewConstHistogram(desc, count, f.Sum, atMost, values...)
		}
	}

	c.doors.Metrics(sink)
	c.ownMetrics(sink)

	for _, source := range c.config.Metrics {
		source(sink)
	}
}

// ownMetrics reports the metrics of the admin plane, the program's version, and
// the loads that adaptive rules follow.
func (s *Server) ownMetrics(sink metrics.Sink) {
	s.conns.Metrics(sink, "admin")
	sink.Gauge("build_info", "Version of the program; always 1.", 1, "version", s.doors.Version,
		"go", runtime.Version())
	s.loadMetrics(sink)
}

// loadMetrics reports the loads that adaptive rules follow. It leaves out
// sources that no rule in force names, because callers may report any number of
// those.
func (s *Server) loadMetrics(sink metrics.Sink) {
	followed := map[string]bool{loads.NodeCPU: true}
	for _, r := range s.adaptiveRules() {
		sink.Gauge("adaptive_factor",
			"What an adaptive rule's limits are multiplied by at this node.",
			s.config.Subjects.LimitFactor(r), "rule", r.Name)
		followed[r.Adaptive.Source] = true
	}
	for _, l := range s.config.Loads.Sources() {
		if followed[l.Name] {
			sink.Gauge("load",
				"Load of the sources that the rules in force follow, and of this node's processors.",
				l.Load, "source", l.Name)
		}
	}
}
