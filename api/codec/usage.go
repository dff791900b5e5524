package codec

import "github.com/rlnode/rlnode/limiter"

// AppendSubject starts an object with the rule, or the namespace, and the key of u.
func AppendSubject(b []byte, u *limiter.Usage) []byte {
	if u.Namespace != "" {
		b = AppendString(append(b, `{"namespace":`...), u.Namespace)
	} else {
		b = AppendString(append(b, `{"rule":`...), u.Rule.Name)
	}
	b = append(b, `,"key":`...)
	return AppendKey(b, u.Key)
}

// AppendCosts appends an object of amounts by unit.
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

// AppendKey appends a key as a check would give it: a string for a rule with one key attribute, else an array.
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

// AppendUsage appends what u has used of each limit.
func AppendUsage(b []byte, u *limiter.Usage) []byte {
	b = append(b, `,"limits":[`...)
	for i := range u.Limits {
		l := &u.Limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(append(b, '{'), l.Limit, l.Window)
		b = AppendInt(b, `,"used":`, max(0, l.Used))
		b = AppendInt(b, `,"remaining":`, l.Remaining)
		b = AppendInt(b, `,"reset_after_ms":`, Millis(l.ResetAfter))
		b = append(b, '}')
	}
	if b = append(b, ']'); u.Unknown > 0 {
		b = AppendInt(b, `,"unknown":`, int64(u.Unknown))
	}
	return b
}
