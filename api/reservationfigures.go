package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlnode/rlnode/limiter"
)

// reservationDescs describe the figures about reservations.
type reservationDescs struct{ made, settled, dropped, uncharged, kept, repeated, refused *prometheus.Desc }

func newReservationDescs(desc func(name, help string, labels ...string) *prometheus.Desc) reservationDescs {
	return reservationDescs{
		made:      desc("reservations_total", "Reservations made here."),
		settled:   desc("settlings_total", "Settlings of reservations decided here: settled, repeated, or of no live reservation.", "result"),
		dropped:   desc("refunds_dropped_total", "Costs of reservations that were not given back, since the counters that they came from are gone."),
		uncharged: desc("settle_debts_dropped_total", "Debts of reservations that their owners could not be told."),
		kept:      desc("request_answers", "Answers to requests with an id that are kept here, of 65,536 at most."),
		repeated:  desc("requests_repeated_total", "Requests with an id that were answered as the first time."),
		refused:   desc("request_answers_refused_total", "Requests for whose answer there was no room here."),
	}
}

func (d *reservationDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.made, d.settled, d.dropped, d.uncharged, d.kept, d.repeated, d.refused}
}

func (d *reservationDescs) send(s sink, st *limiter.ClusterStats) {
	r := &st.Reservations
	s.count(d.made, r.Reserved)
	s.count(d.settled, r.Settled, "settled")
	s.count(d.settled, r.Repeated, "repeated")
	s.count(d.settled, r.Unknown, "unknown")
	s.count(d.dropped, r.Dropped)
	s.count(d.uncharged, st.Uncharged)
	s.gauge(d.kept, float64(st.Requests.Kept))
	s.count(d.repeated, st.Requests.Repeated)
	s.count(d.refused, st.Requests.Refused)
}
