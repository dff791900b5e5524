package api

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlnode/rlnode/limiter"
)

// appendRegions appends what each region has of u's first limit, and what they have used, where regions divide its limits.
func appendRegions(b []byte, u *limiter.Usage) []byte {
	b = append(b, `,"shares":{`...)
	for i, name := range slices.Sorted(maps.Keys(u.Shares)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(append(appendString(b, name), ':'), "", u.Shares[name])
	}
	b = append(b, '}')
	if len(u.Regions) == 0 {
		return b
	}
	b = append(b, `,"regions":{`...)
	for i := range u.Regions {
		r := &u.Regions[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendBool(append(appendString(b, r.Name), `:{`...), `"reachable":`, r.Reachable)
		b = append(appendShares(append(b, `,"limits":[`...), r.Limits), `]}`...)
	}
	return append(b, '}')
}

func appendShares(b []byte, list []limiter.ShareUsage) []byte {
	for i := range list {
		l := &list[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"name":`...), l.Name)
		b = appendInt(b, `,"share":`, l.Share)
		b = appendInt(b, `,"used":`, l.Used)
		b = appendInt(b, `,"own":`, l.Own)
		b = appendInt(b, `,"lent":`, l.Lent)
		b = appendInt(b, `,"borrowed":`, l.Borrowed)
		b = append(appendInt(b, `,"remaining":`, l.Remaining), '}')
	}
	return b
}

// loanDescs describe the figures about loans between regions.
type loanDescs struct{ loans, units, failed, lost *prometheus.Desc }

func newLoanDescs(desc func(name, help string, labels ...string) *prometheus.Desc) loanDescs {
	return loanDescs{
		loans:  desc("loans_total", "Loans of shares between regions that this owner made, or got.", "direction"),
		units:  desc("loan_units_total", "Units that were in them.", "direction"),
		failed: desc("loans_failed_total", "Requests for a loan that another region did not answer."),
		lost:   desc("loan_units_lost_total", "Units that were lent to this owner and found no room: lost until the window ends."),
	}
}

func (d *loanDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.loans, d.units, d.failed, d.lost}
}

func (d *loanDescs) send(s sink, st *limiter.ClusterStats) {
	s.count(d.loans, st.Lent, "lent")
	s.count(d.loans, st.Borrowed, "borrowed")
	s.count(d.units, st.LentUnits, "lent")
	s.count(d.units, st.BorrowedUnits, "borrowed")
	s.count(d.failed, st.LoansFailed)
	s.count(d.lost, st.LoanUnitsLost)
}
