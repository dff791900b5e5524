package limiter

import (
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/rules"
)

// Usage is what one subject has used.
type Usage struct {
	Rule   *rules.Rule
	Key    []string // normalised, as counted
	Limits []LimitUsage
	Hash   rules.Hash // of rule and subject
	// Blocked is how long the rule's block on the subject still lasts; zero if it is not on.
	Blocked time.Duration

	// Shares is each region's share of the first limit of a global rule, by the version in force. It is nil for other rules, or
	// if regions were not asked.
	Shares map[string]int64
	// Regions are the regions that divide the limits, this one included, by name.
	Regions []RegionUsage

	block *rules.Limit // nil if the rule has none
}

// LimitUsage is what a subject has used of one limit.
type LimitUsage struct {
	Limit      *rules.Limit
	Window     time.Duration // true length of the current window
	Used       int64         // rounded up; above capacity in debt; negative if a fixed window borrowed more than it used
	Lent       int64         // to other regions; included in Used
	Borrowed   int64         // from other regions; not included in Used
	Remaining  int64
	ResetAfter time.Duration
}

// Locate returns a subject and its limits, without their usage. The error wraps ErrUnknownRule or ErrKey.
func (l *Limiter) Locate(rule string, key []string) (*Usage, error) {
	var m rules.Match
	b := l.inForce.Load()
	r := b.set.Rule(rule)
	if r == nil {
		return nil, fmt.Errorf("%w %q", ErrUnknownRule, rule)
	}
	if err := b.set.MatchKey(r, key, &m); err != nil {
		return nil, err
	}
	if b.global { // only shares need a clock
		b.set.Share(&m, l.clock.Now().Wall)
	}
	b.lowerLimits(&m)
	u := &Usage{Rule: r, Key: r.NormalKey(key)}
	for i := range m.Hits {
		u.Hash, u.block = m.Hits[i].Subject, m.Hits[i].Block
		for _, limit := range m.Hits[i].Limits {
			u.Limits = append(u.Limits, LimitUsage{Limit: limit})
		}
	}
	return u, nil
}

// Usage asks the owner what a subject has used of each of its limits, and whether it is blocked. For limits that regions
// divide, that is the usage of this region's share; the other regions are asked too, and have half a second to answer. The
// error wraps ErrUnknownRule, ErrKey or ErrNoOwner.
func (l *Limiter) Usage(rule string, key []string) (*Usage, error) {
	u, err := l.usageHere(rule, key)
	if err == nil {
		l.askRegions(u)
	}
	return u, err
}

// usageHere is Usage without the other regions.
func (l *Limiter) usageHere(rule string, key []string) (*Usage, error) {
	u, err := l.Locate(rule, key)
	if err != nil {
		return nil, err
	}
	return u, l.applyChange(changeOf(verbUsage, u, 0), u)
}

// Adjust adds n (−MaxAmount…MaxAmount) to what the subject has used of the rule's limits in requests: a penalty, which may
// become a debt, or a reward. A block stays as it is. Adjust returns the usage afterwards. request is the caller's id for this
// request, at most MaxRequestID bytes, or empty for none: if it is repeated within a minute, nothing changes and the answer is
// the first one. The error wraps ErrUnknownRule, ErrKey, ErrUnit, ErrFull, ErrNoOwner, ErrRequestBody or ErrRequests.
func (l *Limiter) Adjust(rule string, key []string, n int64, request string) (*Usage, error) {
	u, err := l.Locate(rule, key)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(u.Limits, func(lu LimitUsage) bool { return lu.Limit.UnitID == 0 }) {
		return nil, fmt.Errorf("adjust %q: %w", rule, ErrUnit)
	}
	c := changeOf(verbAdjust, u, n)
	c.ticket = ticketOf(request, hashBody(verbAdjust, rule, u.Key, n), checkTime)
	return u, l.applyChange(c, u)
}

// Reset makes a subject's counters fresh and lifts its block. It returns the usage afterwards. request is as for Adjust. The
// error wraps ErrUnknownRule, ErrKey, ErrFull, ErrNoOwner, ErrRequestBody or ErrRequests.
func (l *Limiter) Reset(rule string, key []string, request string) (*Usage, error) {
	u, err := l.Locate(rule, key)
	if err != nil {
		return nil, err
	}
	c := changeOf(verbReset, u, 0)
	c.ticket = ticketOf(request, hashBody(verbReset, rule, u.Key, 0), checkTime)
	if err := l.applyChange(c, u); err != nil {
		return nil, err
	}
	l.askRegions(u)
	return u, nil
}
