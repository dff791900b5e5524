package admin

import (
	"encoding/json"

	"github.com/rlnode/rlnode/limiter"
)

// RegionReport is a region's shares of a subject's limits, and its usage.
type RegionReport struct {
	Reachable bool                 `json:"reachable"`
	Limits    []limiter.ShareUsage `json:"limits"`
}

// appendRegions appends each region's share of u's first limit, and the
// regions' usage, if regions share the limits of u.
func appendRegions(b []byte, u *limiter.Usage) []byte {
	report := struct {
		Shares  map[string]int64        `json:"shares"`
		Regions map[string]RegionReport `json:"regions,omitempty"`
	}{map[string]int64{}, map[string]RegionReport{}}
	if u.Shares != nil {
		report.Shares = u.Shares
	}
	for _, r := range u.Regions {
		report.Regions[r.Name] = RegionReport{r.Reachable, append([]limiter.ShareUsage{}, r.Limits...)}
	}
	text, _ := json.Marshal(report) // strings and numbers can't fail
	return append(append(b, ','), text[1:len(text)-1]...)
}
