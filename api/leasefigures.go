package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlnode/rlnode/limiter"
)

// leaseDescs describe the figures about leases.
type leaseDescs struct{ held, out, spent, cached, renewals, granted, refused, returned *prometheus.Desc }

func newLeaseDescs(desc func(name, help string, labels ...string) *prometheus.Desc) leaseDescs {
	return leaseDescs{
		held:     desc("leases", "Leases that this node holds of other owners."),
		out:      desc("leases_granted", "Leases that other nodes hold of this owner, or may still give back."),
		spent:    desc("lease_spent_total", "Subjects of checks decided from a lease."),
		cached:   desc("lease_cached_refusals_total", "Subjects of checks refused as their owner had refused a moment before."),
		renewals: desc("lease_renewals_total", "Questions to owners that only renewed a lease, in the background."),
		granted:  desc("lease_granted_total", "Leases that this owner has granted."),
		refused:  desc("lease_refused_total", "Wishes for leases that this owner has not granted: the limit is nearly used, or too small."),
		returned: desc("lease_returned_total", "Limits of which something came back here unspent from a lease."),
	}
}

func (d *leaseDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.held, d.out, d.spent, d.cached, d.renewals, d.granted, d.refused, d.returned}
}

func (d *leaseDescs) send(s sink, st *limiter.ClusterStats) {
	s.gauge(d.held, float64(st.Leases))
	s.gauge(d.out, float64(st.Out))
	s.count(d.spent, st.Leased)
	s.count(d.cached, st.Cached)
	s.count(d.renewals, st.Renewals)
	s.count(d.granted, st.Granted)
	s.count(d.refused, st.Ungranted)
	s.count(d.returned, st.Returned)
}
