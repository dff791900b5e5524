package api

import "github.com/rlnode/rlnode/limiter"

// appendSubject starts an object with the rule and the key of u.
func appendSubject(b []byte, u *limiter.Usage) []byte {
	b = append(b, `{"rule":`...)
	b = appendString(b, u.Rule.Name)
	b = append(b, `,"key":`...)
	return appendKey(b, u.Key)
}

// appendKey appends a key as a check would give it: a string for a rule with one key attribute, else an array.
func appendKey(b []byte, key []string) []byte {
	if len(key) == 1 {
		return appendString(b, key[0])
	}
	return appendStrings(b, key)
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, v)
	}
	return append(b, ']')
}

// appendUsage appends what u has used of each limit.
func appendUsage(b []byte, u *limiter.Usage) []byte {
	b = append(b, `,"limits":[`...)
	for i := range u.Limits {
		l := &u.Limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(append(b, '{'), l.Limit, l.Window)
		b = appendInt(b, `,"used":`, max(0, l.Used))
		b = appendInt(b, `,"remaining":`, l.Remaining)
		b = appendInt(b, `,"reset_after_ms":`, millis(l.ResetAfter))
		b = append(b, '}')
	}
	return append(b, ']')
}
