// Package metrics lets packages expose metrics. The package that owns a metric
// defines it once, in one call of a [Sink] with its name, help and value.
// Packages don't know who collects metrics or in which format.
//
// Names have no prefix, and end in _total if they only grow. Labels are pairs
// of a name and a value.
package metrics

import "time"

// Kind is the type of a metric.
type Kind uint8

const (
	Gauge     Kind = iota // goes up and down
	Counter               // only grows while the process lives
	Histogram             // of observations: see [Metric.Bounds]
	Summary               // the number of observations and their sum
)

// Metric is the current value of one metric with one set of labels.
type Metric struct {
	Name, Help string
	Kind       Kind
	Labels     []string // name, value, name, value, …
	Value      float64  // of a Gauge or a Counter

	Bounds []float64 // of a Histogram: upper bounds of its buckets, ascending
	// Counts has the observations per bucket. It may have one more than Bounds,
	// for those beyond. For a Summary, it has one element.
	Counts []int64
	Sum    float64 // of all observations
}

// Sink receives metrics.
type Sink func(Metric)

// Source sends its metrics to a sink. It must not block, least of all on a disk.
type Source func(Sink)

// Gauge shows a value that goes up and down.
func (s Sink) Gauge(name, help string, value float64, labels ...string) {
	s(Metric{Name: name, Help: help, Kind: Gauge, Value: value, Labels: labels})
}

// Level is Gauge for whole numbers.
func (s Sink) Level(name, help string, value int, labels ...string) {
	s.Gauge(name, help, float64(value), labels...)
}

// Flag is a Gauge of 1 or 0.
func (s Sink) Flag(name, help string, on bool, labels ...string) {
	value := 0.0
	if on {
		value = 1
	}
	s.Gauge(name, help, value, labels...)
}

// Count shows a value that only grows.
func (s Sink) Count(name, help string, value int64, labels ...string) {
	s(Metric{Name: name, Help: help, Kind: Counter, Value: float64(value), Labels: labels})
}

// Histogram shows observations per bucket: each is counted in the first one
// whose bound it does not exceed. counts has one more element than bounds, for
// those beyond all.
func (s Sink) Histogram(name, help string, bounds []float64, counts []int64, sum float64, labels ...string) {
	s(Metric{Name: name, Help: help, Kind: Histogram, Bounds: bounds, Counts: counts, Sum: sum, Labels: labels})
}

// Summary shows how many times something happened, and the total amount.
func (s Sink) Summary(name, help string, count int64, sum float64, labels ...string) {
	s(Metric{Name: name, Help: help, Kind: Summary, Counts: []int64{count}, Sum: sum, Labels: labels})
}

// Seconds converts durations to bounds in seconds.
func Seconds(bounds []time.Duration) []float64 {
	list := make([]float64, len(bounds))
	for i, b := range bounds {
		list[i] = b.Seconds()
	}
	return list
}
