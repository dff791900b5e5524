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

// AppendKey appends a key in the form in which checks give it: a string if it
// has one value, else an array.
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

// AppendApplied appends by how much u was adjusted, by unit, if it was
// adjusted. If a unit has several limits, the largest adjustment counts.
func AppendApplied(b []byte, u *limiter.Usage) []byte {
	if !u.Adjusted {
		return b
	}
	return AppendCosts(append(b, `,"applied":`...), u.Applied())
}

// AppendUsage appends the usage of each limit of u, and until when u's subject
// is blocked, in Unix milliseconds; 0 if it is not.
func AppendUsage(b []byte, u *limiter.Usage) []byte {
	b = append(b, `,"limits":[`...)
	for i := range u.Limits {
		l := &u.Limits[i]
		if i > 0 {
			b = append(b, ',')
		}

		shown := l.Limit.AdvertisedAt(u.At)
		b = appendLimit(append(b, '{'), l.Limit, &shown)
		b = AppendInt(b, `,"used":`, l.Used)
		b = AppendInt(b, `,"remaining":`, l.Remaining)
		b = AppendInt(b, `,"leased":`, l.Leased)
		b = AppendInt(b, `,"share":`, l.Share)
		b = AppendInt(b, `,"reset_after_ms":`, Millis(l.ResetAfter))
		b = appendMoreAfter(b, l.MoreAfter)
		if u.Adjusted {
			b = AppendInt(b, `,"applied":`, l.Applied)
		}
		if shown.Slots {
			b = appendHolders(b, l)
		}
		if l.Estimated {
			b = append(b, `,"estimated":true`...)
		}

		b = append(appendRate(b, &shown), '}')
	}

	for i, l := range u.Unlimited {
		if i+len(u.Limits) > 0 {
			b = append(b, ',')
		}
		b = append(appendUnlimited(append(b, '{'), l), '}')
	}

	b = append(b, ']')
	if u.Unknown > 0 {
		b = AppendInt(b, `,"unknown":`, int64(u.Unknown))
	}

	return AppendInt(b, `,"blocked_until_ms":`, u.BlockedUntil)
}

// appendHolders appends the slots of a limit that are held; the soonest end first.
func appendHolders(b []byte, l *limiter.LimitUsage) []byte {
	b = AppendInt(b, `,"holders":`, int64(l.NumHolders))
	b = append(b, `,"slots":[`...)
	for i := range l.Holders {
		h := &l.Holders[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(append(b, `{"slot":`...), limiter.ShortSlotID(h.ID))
		b = AppendInt(b, `,"n":`, h.Slots)
		b = AppendInt(b, `,"age_ms":`, h.Age.Milliseconds())
		b = AppendInt(b, `,"expires_ms":`, h.Expires.Milliseconds())
		b = append(AppendString(append(b, `,"who":`...), h.Who), '}')
	}

	return append(b, ']')
}
