package api

import (
	"maps"
	"slices"

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
