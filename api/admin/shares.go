package admin

import (
	"encoding/json"
	"fmt"

	"github.com/rlnode/rlnode/limiter"
)

// regionReport is a region's shares of a subject's limits, and its usage.
type regionReport struct {
	Reachable bool                 `json:"reachable"`
	Limits    []limiter.ShareUsage `json:"limits"`
}

// appendRegions appends each region's share of u's first limit, and the regions' usage, if regions share the limits of u.
func appendRegions(b []byte, u *limiter.Usage) ([]byte, error) {
	report := struct {
		Shares  map[string]int64        `json:"shares"`
		Regions map[string]regionReport `json:"regions,omitempty"`
	}{map[string]int64{}, map[string]regionReport{}}
	if u.Shares != nil {
		report.Shares = u.Shares
	}
	for _, r := range u.Regions {
		report.Regions[r.Name] = regionReport{r.Reachable, append([]limiter.ShareUsage{}, r.Limits...)}
	}
	text, err := json.Marshal(report)
	if err != nil {
		return nil, fmt.Errorf("write shares: %w", err)
	}
	return append(append(b, ','), text[1:len(text)-1]...), nil
}
