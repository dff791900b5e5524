package limiter

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
)

// The metrics of a node in a cluster have these names.
func TestMetricsOfACluster(t *testing.T) {
	w := newTestCluster(t, 2, "rules:\n  - {name: r, key: [k], limits: [{limit: 5, per: 1h}]}")
	n := w.nodes[0]
	f := &n.cluster.counts
	f.addForward(time.Microsecond)
	f.addForward(time.Hour)
	f.fallback[rules.Full].Store(5)
	f.standbyDecisions.Store(7)
	for i, tally := range []interface{ Store(int64) }{&f.lent, &f.lentUnits, &f.borrowed,
		&f.borrowedUnits, &f.loansFailed, &f.unitsLost} {
		tally.Store(int64(i + 1))
	}
	for name, want := range map[[2]string]int64{
		{"forward_seconds"}: 2, {"fallback_total", "on_partition full"}: 5, {"fallback_total"}: 5,
		{"standby_decisions_total"}:       7,
		{"loans_total", "direction lent"}: 1, {"loan_units_total", "direction lent"}: 2,
		{"loans_total", "direction borrowed"}:      3,
		{"loan_units_total", "direction borrowed"}: 4, {"loans_failed_total"}: 5, {"loan_units_lost_total"}: 6,
	} {
		expect.Equal(t, n.figure(name[0], name[1]), want, "%v", name)
	}
}
