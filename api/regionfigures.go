package api

import (
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// RegionFigures tell how this node's region does among others.
type RegionFigures struct {
	// Others are the other regions; their names are few, and only nodes of the cluster choose them.
	Others    []Region
	Recorded  int64         // newest version of the rules that all regions are known to go by; 0: none
	Follows   bool          // this node follows the primary's rules for its region
	FollowAge time.Duration // since the primary answered, if Follows
}

// regionDescs describe the figures of regions.
type regionDescs struct{ reachable, members, recorded, age *prometheus.Desc }

func newRegionDescs() regionDescs {
	return regionDescs{
		reachable: prometheus.NewDesc("rlnode_region_reachable", "1 while another region can be reached from this node, else 0.", []string{"region"}, nil),
		members:   prometheus.NewDesc("rlnode_region_members", "Nodes of another region, as it says itself.", []string{"region"}, nil),
		recorded: prometheus.NewDesc("rlnode_rules_recorded_version",
			"Newest version of the rules that all regions are known to go by, as known here; 0 for none.", nil, nil),
		age: prometheus.NewDesc("rlnode_follow_age_seconds",
			"Time since the primary region answered what is new; of the leader of another region only.", nil, nil),
	}
}

func (d *regionDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.reachable, d.members, d.recorded, d.age}
}

func (d *regionDescs) send(s sink, f *RegionFigures) {
	for _, r := range f.Others {
		if !utf8.ValidString(r.Name) {
			continue // Prometheus takes no other
		}
		s.flag(d.reachable, r.Reachable, r.Name)
		s.gauge(d.members, float64(r.Members), r.Name)
	}
	s.gauge(d.recorded, float64(f.Recorded))
	if f.Follows {
		s.gauge(d.age, f.FollowAge.Seconds())
	}
}
