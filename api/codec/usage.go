package codec

import "github.com/rlnode/rlnode/limiter"

// AppendSubject starts a JSON object with the rule or the namespace of u, and its key.
func AppendSubject(b []byte, u *limiter.Usage) []byte {
	if u.Namespace != "" {
		b = AppendString(append(b, `{"namespace":`...), u.Namespace)
	} else {
		b = AppendString(append(b, `{"rule":`...), u.Rule.Name)
	}
	b = append(b, `,"key":`...)
	return AppendKey(b, u.Key)
}

// AppendCosts appends an object that maps units to costs.
func AppendCosts(b []byte, costs []limiter.UnitCost) []byte {
	b = append(b, '{')
	for i := range costs {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendInt(AppendString(b, costs[i].Unit), ":", costs[i].Cost)
	}
	return append(b, '}')
}

// AppendKey appends a key in the form in which checks give it: a string if it has one value, else an array.
func AppendKey(b []byte, key []string) []byte {
	if len(key) == 1 {
		return AppendString(b, key[0])
	}
	return AppendStrings(b, key)
}

// AppendStrings appends an array of strings.
func AppendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(b, v)
	}
	return append(b, ']')
}

// AppendUsage appends the usage of each limit of u.
func AppendUsage(b []byte, u *limiter.Usage) []byte {
	b = append(b, `,"limits":[`...)
	for i := range u.Limits {
		l := &u.Limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(append(b, '{'), l.Limit, l.Window)
		b = AppendInt(b, `,"used":`, l.Used)
		b = AppendInt(b, `,"remaining":`, l.Remaining)
		b = AppendInt(b, `,"leased":`, l.Leased)
		b = AppendInt(b, `,"share":`, l.Share)
		b = AppendInt(b, `,"reset_after_ms":`, Millis(l.ResetAfter))
		if l.Estimated {
			b = append(b, `,"estimated":true`...)
		}
		b = append(b, '}')
	}
	if b = append(b, ']'); u.Unknown > 0 {
		b = AppendInt(b, `,"unknown":`, int64(u.Unknown))
	}
	return b
}
