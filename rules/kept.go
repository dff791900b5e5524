package rules

import (
	"cmp"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// The namespaces of the commands of Redis. In these, each key has one counter,
// whatever limits its calls bring: the counter's identity has neither the
// window nor the unit. The counter keeps the window of the call that began it.
const (
	CellNamespace     = "cl"       // of CL.THROTTLE
	ThrottleNamespace = "throttle" // of THROTTLE
	IncrexNamespace   = "increx"   // of INCREX
)

// keptKinds holds, by namespace, the kind of the only counter of a key.
var keptKinds = map[string]algorithms.Kind{
	CellNamespace:     algorithms.CellBucket,
	ThrottleNamespace: algorithms.CellBucket,
	IncrexNamespace:   algorithms.FirstWindow,
}

// keptID returns the Limit.ID of the only counter of a key.
func keptID(kind algorithms.Kind) uint64 { return counterIdentity{kind: kind}.hash() }

// KeptLimit returns a limit of 0 with which the single counter of a key in
// namespace can be read, or nil if keys have several counters there.
func KeptLimit(namespace string) *Limit {
	kind := keptKinds[namespace]
	if kind == 0 {
		return nil
	}
	limit := algorithms.Limit{Kind: kind, Window: algorithms.MinWindow}
	return &Limit{Limit: limit, Name: namespace, Unit: Requests, ID: keptID(kind)}
}

// checkKept reports limits of q that are legal elsewhere, but not in a
// namespace where a key has only one counter, of the kind kept.
func (dec *decoder) checkKept(q *InlineSubject, specs []*LimitSpec, doc *Document, kept algorithms.Kind) {
	fail := func(field, format string, args ...any) {
		dec.add(yaml.Pos{}, "limits"+field, "in the namespace %q, "+format, append([]any{q.Namespace}, args...)...)
	}

	l := specs[0]
	switch {
	case len(specs) > 1:
		fail("", "a key has one limit, not %d", len(specs))
	case kept == algorithms.FirstWindow && q.Limits[0].From != fromFirst:
		fail("[0].from", "a limit must be a fixed-window with from: first")
	case kept == algorithms.CellBucket && doc.kind(l) != algorithms.TokenBucket:
		fail("[0].algorithm", "a limit must be a token-bucket")
	case kept == algorithms.CellBucket:
		limit := algorithms.Limit{Kind: kept, Amount: l.Limit, Burst: cmp.Or(l.Burst, l.Limit), Window: l.window}
		if err := limit.CheckCell(); err != nil {
			fail("[0].limit", "%v", err)
		}
	}
}
