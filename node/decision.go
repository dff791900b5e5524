package node

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// setDecision sets d, which must be zero, to the answer to q. A Decision is large,
// so it is not returned.
func (n *Node) setDecision(d *client.Decision, q *client.Request, a *limiter.Answer) {
	d.Allowed = a.Allowed
	d.Counted = a.Counted
	d.Granted = a.Granted
	d.DecidedBy = client.DecidedBy(a.DecidedBy.String())
	d.Node = n.config.Name
	d.RulesVersion = a.RulesVersion

	tightest := a.TightestLimit()
	if tightest != nil {
		setTightest(d, tightest, a)
	} else if !a.Allowed {
		d.RetryAfter = client.Never
	} else if rule := a.UnlimitedRule(); rule != nil {
		d.Rule = rule.Name
		d.Unlimited = true
	}

	if !a.Allowed {
		d.Reason = string(a.AppendReason(nil))
		d.Refusal = toRefusal(a)

		switch {
		case a.Denied():
			d.Code = string(api.Denied)
		case !a.Counted:
			d.Code = string(tightest.Cause())
		}

		for i := range a.Limits {
			l := &a.Limits[i]
			if !l.Allowed && !l.Rule.Shadow {
				d.Violated = append(d.Violated, l.Limit.Name)
			}
		}
	}

	// The headers are made from the limits.
	if q.Detail || q.Headers {
		d.Limits = toLimitDecisions(a)
	}
	if q.Headers {
		d.MakeHeaders(a.Set.Headers.IETF, a.Set.Headers.XRateLimit, a.Set.Headers.ResetDelta)
	}
	if !q.Detail {
		d.Limits = nil
	}
}

// setTightest sets what d says of the tightest limit of a.
func setTightest(d *client.Decision, tightest *limiter.LimitAnswer, a *limiter.Answer) {
	d.Rule = tightest.Rule.Name
	d.Unit = tightest.Limit.Unit
	d.Used = tightest.Used
	d.Remaining = tightest.Remaining

	shown := tightest.Limit.AdvertisedAt(a.Now)
	d.Limit = shown.Capacity
	d.Window = windowOf(&shown)
	d.TTL = ttlOf(&shown)
	d.Rate = rateOf(&shown)

	d.ResetAfter = ceilMillis(tightest.ResetAfter)
	d.RetryAfter = ceilMillis(tightest.RetryAfter)
	d.MoreAfter = ceilMillis(tightest.MoreAfter)
	d.Delay = ceilMillis(a.Delay())
}

// toLimitDecisions returns what a says of each limit.
func toLimitDecisions(a *limiter.Answer) []client.LimitDecision {
	list := make([]client.LimitDecision, len(a.Limits))
	for i := range a.Limits {
		l := &a.Limits[i]
		shown := l.Limit.AdvertisedAt(a.Now)
		list[i] = client.LimitDecision{
			Rule: l.Rule.Name, Name: l.Limit.Name, Algorithm: l.Limit.Kind.String(),
			Unit: l.Limit.Unit, Limit: shown.Capacity,
			Window: windowOf(&shown), TTL: ttlOf(&shown), Rate: rateOf(&shown), Used: l.Used,
			Remaining: l.Remaining, ResetAfter: ceilMillis(l.ResetAfter),
			RetryAfter: ceilMillis(l.RetryAfter),
			MoreAfter:  ceilMillis(l.MoreAfter), Allowed: l.Allowed, Shadow: l.Rule.Shadow,
		}
	}

	for _, h := range a.Unlimited() {
		for _, l := range h.Limits {
			list = append(list, client.LimitDecision{Rule: h.Rule.Name, Name: l.Name, Unit: l.Unit,
				Unlimited: true, Allowed: true, Shadow: h.Rule.Shadow})
		}
	}

	return list
}

// toRefusal returns the refusal of the rule that refused, for the end user; nil
// if the rule has none.
func toRefusal(a *limiter.Answer) *client.Refusal {
	text := codec.Refusal(a)
	if text == nil {
		return nil
	}
	var r client.Refusal
	if err := json.Unmarshal(text, &r); err != nil {
		return nil // can't happen: the text is made from a valid document
	}
	return &r
}

// decisionOnError returns the decision for a check q that failed with err. If
// the request may be at fault, it refuses regardless of OnError: otherwise an
// attacker could pass with a malformed request.
func (n *Node) decisionOnError(q *client.Request, err error) client.Decision {
	d := client.Decision{DecidedBy: client.ByError}
	var answered *client.Error
	switch {
	case errors.As(err, &answered) && answered.IsRejection():
		d.Reason = "The rate limiter rejects this server."
	case errors.Is(err, client.ErrRequest), answered != nil && answered.Status < 500:
		d.Reason = "The rate limiter can't decide this."
	case n.config.OnError == client.Open:
		d.Allowed = true
		d.Granted = q.GrantedUnasked()
	default:
		d.Reason = "Nothing passes while the rate limiter does not answer."
	}

	return d
}

// toClientError converts err to the error that a client would get.
func (n *Node) toClientError(err error) error {
	if errors.Is(err, client.ErrRequest) {
		return err
	}
	e := api.AsError(err)
	if e.Code == api.Internal {
		n.log.Error("check not decided", "error", err)
	}
	return &client.Error{Status: e.Status(), Code: string(e.Code), Title: e.Title(),
		Detail: e.Detail, Node: n.config.Name}
}

// toUsage converts the usage of a subject. inline means that its limits came
// with the call.
func toUsage(u *limiter.Usage, inline bool) client.Usage {
	usage := client.Usage{Namespace: u.Namespace, Key: u.Key, Unknown: u.Unknown}
	if !inline {
		usage.Rule = u.Rule.Name
	}
	if u.Blocked > 0 {
		usage.BlockedUntil = time.Unix(0, u.At.Wall).Add(ceilMillis(u.Blocked))
	}

	for _, l := range u.Limits {
		shown := l.Limit.AdvertisedAt(u.At)
		usage.Limits = append(usage.Limits, client.LimitUsage{
			Name: l.Limit.Name, Algorithm: l.Limit.Kind.String(), Unit: l.Limit.Unit,
			Limit: shown.Capacity, Window: windowOf(&shown), TTL: ttlOf(&shown),
			Rate: rateOf(&shown), Holders: l.NumHolders, Held: holdersOf(l.Holders), Share: l.Share,
			Used: l.Used, Leased: l.Leased, Estimated: l.Estimated, Remaining: l.Remaining,
			ResetAfter: ceilMillis(l.ResetAfter), MoreAfter: ceilMillis(l.MoreAfter), Applied: l.Applied,
		})
	}

	for _, c := range u.Applied() {
		if usage.Applied == nil {
			usage.Applied = map[string]int64{}
		}
		usage.Applied[c.Unit] = c.Cost
	}

	for _, l := range u.Unlimited {
		usage.Limits = append(usage.Limits, client.LimitUsage{Name: l.Name, Unit: l.Unit, Unlimited: true})
	}

	return usage
}

// holdersOf converts a list of holders.
func holdersOf(list []limiter.Holder) (held []client.Holder) {
	for _, h := range list {
		held = append(held,
			client.Holder{ID: limiter.ShortSlotID(h.ID), Slots: h.Slots, Age: ceilMillis(h.Age),
				Expires: ceilMillis(h.Expires), Who: h.Who})
	}
	return held
}

// windowOf returns the window of a limit; 0 if it is of slots.
func windowOf(s *rules.AdvertisedLimit) time.Duration {
	if s.Slots {
		return 0
	}
	return ceilMillis(s.Window)
}

// ttlOf returns how long a slot lasts unless it is renewed; 0 for other limits.
func ttlOf(s *rules.AdvertisedLimit) time.Duration {
	if !s.Slots {
		return 0
	}
	return ceilMillis(s.Window)
}

// rateOf returns what a limit allows over time. Slots have no rate.
func rateOf(s *rules.AdvertisedLimit) client.Rate {
	if s.Slots {
		return client.Rate{}
	}
	return client.Rate{Limit: s.Amount, Per: ceilMillis(s.Per)}
}

// ceilMillis rounds d up to whole milliseconds, as answers over HTTP do. It
// leaves client.Never unchanged.
func ceilMillis(d time.Duration) time.Duration {
	if d <= 0 {
		return d
	}
	return (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond
}
