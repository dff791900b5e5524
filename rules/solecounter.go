package rules

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules/document"
)

// The namespaces of the commands of Redis. In these, each key has one counter,
// whatever limits its calls bring: the counter's identity has neither the
// window nor the unit. The counter keeps the window of the call that began it.
const (
	CellNamespace     = "cl"       // of CL.THROTTLE
	ThrottleNamespace = "throttle" // of THROTTLE
	IncrexNamespace   = "increx"   // of INCREX
)

// soleCounterKinds holds, by namespace, the kind of the only counter of a key.
var soleCounterKinds = map[string]algorithms.Kind{
	CellNamespace:     algorithms.CellBucket,
	ThrottleNamespace: algorithms.CellBucket,
	IncrexNamespace:   algorithms.FirstWindow,
}

// soleCounterID returns the Limit.ID of the only counter of a key.
func soleCounterID(kind algorithms.Kind) uint64 {
	return hashIdentity(document.CounterIdentity{Kind: kind})
}

// SoleCounterLimit returns a limit of 0 with which the single counter of a key in
// namespace can be read, or nil if keys have several counters there.
func SoleCounterLimit(namespace string) *Limit {
	kind := soleCounterKinds[namespace]
	if kind == 0 {
		return nil
	}
	limit := algorithms.Limit{Kind: kind, Window: algorithms.MinWindow}
	return &Limit{Limit: limit, Name: namespace, Unit: document.Requests, ID: soleCounterID(kind)}
}
