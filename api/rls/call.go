package rls

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// Returner gives costs back to subjects. *limiter.Limiter is one.
type Returner interface {
	// GiveBack gives back the costs of the only subject of q, and returns the usage afterwards.
	GiveBack(q *limiter.Query) (*limiter.Usage, error)
}

// Call is one request and its answer. It is reused, and must not be used concurrently.
type Call struct {
	domain      string
	addend      uint32
	descriptors []descriptor
	entries     []rules.EnvoyEntry

	query        limiter.Query
	Answer       limiter.Answer // the decider's answer; valid only if Asked
	Asked        bool           // a limit applies to some descriptor, so the decider was asked
	domainKnown  bool           // the rules configure the domain
	zeroOverride bool           // an override has a limit of 0
	quotaCount   int            // how many descriptors matched a node with quota_mode
	overLimit    bool           // the answer is OVER_LIMIT
	headers      []header
	reply        codec.Reply // composes headers

	text, inner []byte // scratch space
}

// maxTries bounds how many times a call is decided, in case the rules change in between.
const maxTries = 8

// Over reports whether the answer is OVER_LIMIT.
func (c *Call) Over() bool { return c.overLimit }

// Reset releases the request, and the memory that its strings point into.
func (c *Call) Reset() {
	for i := range c.query.Subjects {
		s := &c.query.Subjects[i]
		clear(s.Key)
		clear(s.Limits)
		s.Entries = nil
		s.Node = nil
		s.Namespace = ""
	}

	c.query.Subjects = c.query.Subjects[:0]
	c.query.MatchedBy = nil
	c.domain = ""
	clear(c.entries)
	clear(c.descriptors)
	c.text, c.inner = api.Reuse(c.text), api.Reuse(c.inner)
	c.reply.Reset()
}

// namespace is the prefix that turns a domain's name into a namespace.
// Overrides are counted in that namespace, and a token that is confined to
// namespaces needs it to ask about the domain.
const namespace = "envoy/"

// Decide decides a call that Read has read. token is the caller's; nil if none is required.
func (c *Call) Decide(d *api.Doors, token *api.Token) *api.Error {
	if e := c.permit(token); e != nil {
		return e
	}

	for range maxTries {
		set := d.Decider.Rules()
		if e := c.matchDescriptors(set); e != nil {
			return e
		}

		c.Asked = len(c.query.Subjects) > 0
		if c.Asked {
			c.query.MatchedBy = set
			err := d.Decider.Check(&c.query, &c.Answer)
			// The nodes that were found belong to the old rules.
			if errors.Is(err, limiter.ErrRulesChanged) {
				continue
			}
			if err != nil {
				return c.explain(d, err)
			}
		}

		c.setStatuses()
		return c.giveBack(d)
	}

	return api.Errorf(api.Overloaded, "the rules change faster than the request can be decided")
}

// CountLatency counts how long the answer took, for the rules that applied.
func (c *Call) CountLatency(took time.Duration) {
	if c.Asked {
		c.Answer.CountLatency(took)
	}
}

// permit returns an error unless the token permits c.
func (c *Call) permit(token *api.Token) *api.Error {
	if token == nil {
		return nil
	}

	if token.Namespaces != nil {
		name := namespace + c.domain
		if !token.Namespaces.Has(name) {
			return api.Errorf(api.Forbidden,
				"%s may only ask about the namespaces %s, and not about %q", token.Name,
				token.Namespaces, api.Excerpt(name))
		}
	}

	if !token.Scopes.Allows(api.ScopeAdjust) &&
		slices.ContainsFunc(c.descriptors, func(d descriptor) bool { return d.givesBack }) {
		return token.MissingScopeError(api.ScopeAdjust)
	}

	return nil
}

// explain turns an error of the decider into an answer. An error about a
// subject names its descriptor.
func (c *Call) explain(d *api.Doors, err error) *api.Error {
	e := api.AsError(err)
	switch e.Code {
	case api.Internal:
		d.Logger.Error("Envoy request not decided", "error", err)
	case api.BadValue, api.Forbidden: // only overrides can cause these
		subject, detail := 0, e.Detail
		if wrong, ok := errors.AsType[*limiter.SubjectError](err); ok {
			subject, detail = wrong.Subject, wrong.Err.Error()
		}
		for i := range c.descriptors {
			desc := &c.descriptors[i]
			if desc.override && desc.subject == subject {
				return &api.Error{Code: e.Code, Detail: fmt.Sprintf("descriptors[%d].limit: %s", i, detail), Err: err}
			}
		}
	}

	return e
}

// matchDescriptors finds the node that applies to each descriptor, and adds the
// limited ones to c.query.
func (c *Call) matchDescriptors(set *rules.Set) *api.Error {
	for i := range c.query.Subjects {
		c.query.Subjects[i].Node = nil
		c.query.Subjects[i].Entries = nil
	}

	c.query.Subjects = c.query.Subjects[:0]
	c.query.PeeksAreLooks = true
	c.quotaCount = 0
	c.zeroOverride = false
	c.overLimit = false
	c.headers = c.headers[:0]
	c.text = c.text[:0]
	domain := set.EnvoyDomain(c.domain)
	c.domainKnown = domain != nil

	replaces := false
	for i := range c.descriptors {
		d := &c.descriptors[i]
		d.node = nil
		d.replaced = false
		d.subject = -1
		d.status = status{}

		if domain == nil || d.override {
			continue
		}

		d.node = domain.Match(c.entries[d.first:d.end])
		if d.node != nil {
			replaces = replaces || len(d.node.Replaces) > 0
		}
	}

	if domain == nil {
		return nil
	}

	for i := range c.descriptors {
		d := &c.descriptors[i]
		switch {
		case d.node == nil:
		case d.node.Unlimited:
			d.status.remaining = 1<<32 - 1
		case replaces && d.node.LimitName != "" && c.isReplaced(d.node.LimitName):
			d.replaced = true
		case d.node.Quota && !d.givesBack:
			c.quotaCount++
		}
	}

	// This needs a loop of its own: a quota is in shadow if there is another one,
	// so all must be counted first.
	for i := range c.descriptors {
		d := &c.descriptors[i]
		if d.givesBack || !d.isLimited() {
			continue
		}

		if d.override && d.requests == 0 {
			c.zeroOverride = true
			d.status = status{overLimit: true, hasLimit: true, unit: d.unit,
				reset: secondsUntilNext(time.Now().UnixNano(), d.unit)}
			continue
		}

		if e := c.addToQuery(i); e != nil {
			return e
		}
	}

	if c.zeroOverride {
		for i := range c.query.Subjects {
			c.query.Subjects[i].Mode = counters.PeekMode // the request is refused anyway, so it must not take anything
		}
	}

	return nil
}

// isReplaced reports whether the limit of some descriptor replaces the one with this name.
func (c *Call) isReplaced(name string) bool {
	for i := range c.descriptors {
		// A limit replaces others even if it is replaced itself.
		if n := c.descriptors[i].node; n != nil && slices.Contains(n.Replaces, name) {
			return true
		}
	}
	return false
}

// isLimited reports whether a limit applies to d.
func (d *descriptor) isLimited() bool {
	return d.override || d.node != nil && !d.node.Unlimited && !d.replaced
}

// hits returns how many hits a descriptor takes, or gives back.
func (c *Call) hits(d *descriptor) int64 {
	if d.hasAddend {
		return int64(d.addend)
	}
	return max(1, int64(c.addend))
}

// addToQuery adds the i-th descriptor to the query. Equal descriptors become
// one subject, with their hits added up.
func (c *Call) addToQuery(i int) *api.Error {
	d := &c.descriptors[i]
	cost, mode := c.hits(d), counters.CheckMode
	switch {
	case d.hasAddend && cost == 0:
		cost, mode = 1, counters.PeekMode
	case d.hasAddend:
		mode = counters.CountMode
	}

	for j := range i {
		before := &c.descriptors[j]
		if before.subject < 0 || before.node != d.node ||
			!slices.Equal(c.entries[before.first:before.end], c.entries[d.first:d.end]) {
			continue
		}
		if before.requests != d.requests || before.unit != d.unit {
			return api.Errorf(api.BadValue,
				"descriptors[%d].limit differs from descriptors[%d].limit, although their entries are equal",
				i, j)
		}

		d.subject = before.subject
		s := &c.query.Subjects[d.subject]
		// A look takes nothing, so it adds nothing.
		taken := &s.Costs[0].Cost
		if s.Mode == counters.PeekMode || mode == counters.PeekMode {
			*taken = max(*taken, cost)
		} else {
			*taken = min(*taken+cost, algorithms.MaxAmount)
		}

		s.Mode = strongerMode(s.Mode, mode)
		return nil
	}

	d.subject = len(c.query.Subjects)
	c.fillSubject(c.nextSubject(), d, cost, mode)
	return nil
}

// strongerMode returns the mode of a subject that is given twice, with modes a and b.
func strongerMode(a, b counters.Mode) counters.Mode {
	switch {
	case a == counters.CountMode || b == counters.CountMode:
		return counters.CountMode
	case a == counters.CheckMode || b == counters.CheckMode:
		return counters.CheckMode
	}
	return counters.PeekMode
}

// nextSubject appends a subject to the query. It reuses the slices of an earlier request's subject.
func (c *Call) nextSubject() *limiter.Subject {
	n := len(c.query.Subjects)
	c.query.Subjects = slices.Grow(c.query.Subjects, 1)[:n+1]
	return &c.query.Subjects[n]
}

// fillSubject makes s the subject of d.
func (c *Call) fillSubject(s *limiter.Subject, d *descriptor, cost int64, mode counters.Mode) {
	s.Costs = append(s.Costs[:0], limiter.UnitCost{Unit: document.Requests, Cost: cost})
	s.Mode = mode
	s.Node = d.node
	s.Entries = c.entries[d.first:d.end]

	if d.node != nil {
		s.Shadow = d.node.Quota && c.quotaCount > 1
		return
	}

	s.Namespace = c.concat(namespace, c.domain)
	s.Shadow = false
	s.Exact = false
	s.Key = s.Key[:0]
	for _, e := range s.Entries {
		s.Key = append(s.Key, c.entryText(e))
	}

	s.Limits = append(s.Limits[:0],
		document.InlineLimit{Limit: int64(d.requests), Per: units[d.unit].per, Algorithm: "fixed-window"})
}

// concat concatenates two strings in c's scratch space.
func (c *Call) concat(a, b string) string {
	at := len(c.text)
	c.text = append(append(c.text, a...), b...)
	return codec.UnsafeString(c.text[at:])
}

// entryText returns an entry as one string. It escapes equals signs in the key,
// so that different entries have different strings.
func (c *Call) entryText(e rules.EnvoyEntry) string {
	at := len(c.text)
	for i := range len(e.Key) {
		b := e.Key[i]
		if b == '=' || b == '\\' {
			c.text = append(c.text, '\\')
		}
		c.text = append(c.text, e.Key[i])
	}
	c.text = append(append(c.text, '='), e.Value...)
	return codec.UnsafeString(c.text[at:])
}

// setStatuses sets the code and the statuses from the decider's answer.
func (c *Call) setStatuses() {
	a := &c.Answer
	refused := c.Asked && !a.Allowed && !a.Counted // nothing was taken
	c.overLimit = c.zeroOverride || c.Asked && !a.Allowed
	spent := 0
	otherWindow := false
	limits := a.Limits
	if !c.Asked {
		limits = nil // they belong to an earlier call
	}

	for i := range limits {
		c.setStatusesOf(&limits[i], refused)
	}

	for i := range c.descriptors {
		d := &c.descriptors[i]
		otherWindow = otherWindow || d.status.hasLimit && d.status.unit == 0
		if d.node != nil && d.node.Quota && d.status.overLimit {
			spent++
		}
	}

	if c.quotaCount > 1 && spent == c.quotaCount {
		c.overLimit = true
	}
	if otherWindow {
		c.addRateHeaders()
	}
}

// setStatusesOf sets the statuses of the descriptors of one subject from la.
// There are several if the request repeats a descriptor. As in the reference
// server, each of them then sees the hits of those before it. refused means
// that the check was refused, so that no limit took anything.
func (c *Call) setStatusesOf(la *limiter.LimitAnswer, refused bool) {
	subject := &c.query.Subjects[la.SubjectIndex]
	cost := subject.Costs[0].Cost
	looks := subject.Mode == counters.PeekMode

	// before is what remained before the request.
	before := la.Remaining
	switch {
	case la.Allowed && !refused:
		before += cost
	case !refused && !looks && la.Used > la.Limit.Capacity(): // taken in full, though it did not fit
		before = max(0, cost-(la.Used-la.Limit.Capacity()))
	}

	taken := int64(0)
	for i := range c.descriptors {
		d := &c.descriptors[i]
		if d.subject != int(la.SubjectIndex) {
			continue
		}

		if !looks {
			taken = min(taken+c.hits(d), algorithms.MaxAmount)
		}

		remaining := before
		overLimit := false
		switch {
		case !la.Allowed:
			remaining = before - taken
			// The sum of the hits did not fit, so at least the last descriptor is over.
			overLimit = looks || taken == cost || remaining < 0
		case !refused:
			remaining -= taken
		}
		if overLimit {
			remaining = 0
		}

		c.setStatus(d, la, remaining, overLimit)
	}
}

// setStatus sets the status of a descriptor from la, with what remains after
// it, and whether it is over the limit.
func (c *Call) setStatus(d *descriptor, la *limiter.LimitAnswer, remaining int64, overLimit bool) {
	s := &d.status
	s.hasLimit = true
	s.requests = clampUint32(la.Limit.AdvertisedAt(c.Answer.Now).Amount)
	s.unit = d.unit
	s.name = ""
	if d.node != nil {
		s.unit = unitOf(d.node.Unit)
		s.name = d.node.LimitName
		if s.unit == 0 && s.name == "" {
			s.name = la.Limit.Name
		}
	}
	s.overLimit = overLimit && (d.node == nil || !d.node.Shadow)
	s.remaining = clampUint32(min(remaining, la.Limit.UndividedCapacity()))

	wait := la.ResetAfter
	if overLimit {
		wait = max(wait, la.RetryAfter)
		if la.RetryAfter > 0 {
			wait = la.RetryAfter
		}
	}
	s.reset = seconds(wait)
	// The window ends by the clock even if it is unused, and ResetAfter is 0.
	if s.unit != 0 && la.Limit.Kind == algorithms.FixedWindow {
		s.reset = secondsUntilNext(c.Answer.Now.Wall, s.unit)
	}
}

// secondsUntilNext returns the seconds from wall, in Unix nanoseconds, until
// the next window of a unit begins, rounded up.
func secondsUntilNext(wall int64, u unit) int64 {
	length := units[u].seconds
	return length - wall/1e9%length
}

// seconds returns a duration in seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// addRateHeaders adds the rate limit headers that Envoy can't compose itself,
// because it knows only windows of one unit.
func (c *Call) addRateHeaders() {
	c.reply.Reset()
	c.reply.AddRateHeaders(&c.Answer)
	for _, h := range c.reply.Headers {
		if strings.HasPrefix(h.Name, "X-") {
			continue // Envoy writes these itself, for the limits that it knows
		}
		c.headers = append(c.headers, header{strings.ToLower(h.Name), h.Value})
	}
}

// gift is what a request gives back for one descriptor.
type gift struct {
	descriptor *descriptor
	subjects   []limiter.Subject
	err        error
}

// giveBack gives back the hits of descriptors that ask for it and, if all
// quotas are used up, what the request took from other limits. It returns an
// error only if the request does nothing else, or is invalid. Otherwise it
// drops hits that can't be given back. The hits of the other descriptors stay
// taken, so an error would make the caller retry and be charged twice; and an
// Envoy that lets requests pass on errors would let a refused one pass.
func (c *Call) giveBack(d *api.Doors) *api.Error {
	returner, _ := d.Decider.(Returner)
	if returner == nil {
		return nil
	}

	var gifts []gift
	for i := range c.descriptors {
		desc := &c.descriptors[i]
		hits := int64(0)
		switch {
		case !c.domainKnown:
		case desc.givesBack && desc.isLimited() && !(desc.override && desc.requests == 0):
			hits = c.hits(desc)
		case c.quotaCount > 1 && c.overLimit && c.Answer.Allowed && desc.subject >= 0 &&
			!desc.status.overLimit && (desc.node == nil || !desc.node.Quota):
			s := &c.query.Subjects[desc.subject]
			if s.Mode == counters.CheckMode {
				hits = c.hits(desc)
			}
		}

		if hits == 0 {
			continue
		}

		// fillSubject uses c's scratch space, which concurrent calls of AskAll must
		// not share.
		subjects := make([]limiter.Subject, 1)
		c.fillSubject(&subjects[0], desc, hits, counters.CheckMode)
		gifts = append(gifts, gift{desc, subjects, nil})
	}

	if len(gifts) == 0 {
		return nil // as nearly always: AskAll allocates
	}

	d.Budget.AskAll(len(gifts), func(i int) bool {
		g := &gifts[i]
		u, err := returner.GiveBack(&limiter.Query{Subjects: g.subjects})
		g.err = err
		if err == nil && g.descriptor.givesBack {
			g.descriptor.setGivenStatus(u)
		}
		return true
	})

	var errs []error
	for i := range gifts {
		errs = append(errs, gifts[i].err)
	}
	if err := errors.Join(errs...); err != nil {
		e := c.explain(d, err)
		mistake := e.Code == api.BadValue || e.Code == api.Forbidden
		if mistake || !c.Asked && !c.zeroOverride {
			return e
		}
		d.Logger.Debug("hits not given back", "domain", c.domain, "error", err)
	}

	return nil
}

// setGivenStatus sets the status of a descriptor whose hits were given back; u
// is the usage afterwards.
func (d *descriptor) setGivenStatus(u *limiter.Usage) {
	l := &u.Limits[0]
	s := &d.status
	s.hasLimit = true
	s.requests = clampUint32(l.Limit.AdvertisedAt(u.At).Amount)
	s.unit = d.unit
	if d.node != nil {
		s.unit = unitOf(d.node.Unit)
		s.name = d.node.LimitName
	}
	s.remaining = clampUint32(l.Remaining)
	s.reset = seconds(l.ResetAfter)
	if s.unit != 0 && l.Limit.Kind == algorithms.FixedWindow {
		s.reset = secondsUntilNext(time.Now().UnixNano(), s.unit)
	}
}
