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
	Key    []string // as counted: normalised
	Limits []LimitUsage
	Hash   rules.Hash // of rule and subject
	// Blocked is how long the rule's block still lasts for the subject; 0: it is not on.
	Blocked time.Duration

	// Shares is what each region has of the first limit of a global rule, by the version in force. nil: it is no such rule,
	// or was not asked for.
	Shares map[string]int64
	// Regions are those that divide the limits, this one included, in order of name.
	Regions []RegionUsage

	block *rules.Limit // nil: the rule has none
}

// LimitUsage is what a subject has used of one limit.
type LimitUsage struct {
	Limit      *rules.Limit
	Window     time.Duration // true length of the current one
	Used       int64         // rounded up; above the capacity in debt; below 0 if more was borrowed of a fixed window than used
	Lent       int64         // to other regions, which is among Used
	Borrowed   int64         // from other regions, which Used is without
	Remaining  int64
	ResetAfter time.Duration
}

// Locate names a subject and its limits, without what is used of them. The error wraps ErrUnknownRule or ErrKey.
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
	if b.global { // else a clock is not needed
		b.set.Share(&m, l.clock.Now().Wall)
	}
	b.lower(&m)
	u := &Usage{Rule: r, Key: r.NormalKey(key)}
	for i := range m.Hits {
		u.Hash, u.block = m.Hits[i].Subject, m.Hits[i].Block
		for _, limit := range m.Hits[i].Limits {
			u.Limits = append(u.Limits, LimitUsage{Limit: limit})
		}
	}
	return u, nil
}

// Usage tells what a subject has used of each of its limits, and whether it is blocked; the owner is asked. The error wraps ErrUnknownRule, ErrKey
// or ErrNoOwner. Of limits that regions divide it is what this region has used of its share; the other regions are asked too,
// and have half a second.
func (l *Limiter) Usage(rule string, key []string) (*Usage, error) {
	u, err := l.usageHere(rule, key)
	if err == nil {
		l.askRegions(u)
	}
	return u, err
}

// usageHere is Usage without other regions.
func (l *Limiter) usageHere(rule string, key []string) (*Usage, error) {
	u, err := l.Locate(rule, key)
	if err != nil {
		return nil, err
	}
	return u, l.carryOut(changeOf(verbUsage, u, 0), u)
}

// Adjust adds n (−MaxAmount…MaxAmount) to what the subject has used of the rule's limits in requests: a penalty
// that may become a debt, or a reward. It returns the usage afterwards. request is the caller's id for this request, at most
// MaxRequestID bytes: a repeated one within a minute changes nothing, and is answered as the first was. Empty: none. The error
// wraps ErrUnknownRule, ErrKey, ErrUnit, ErrFull, ErrNoOwner, ErrRequestBody or ErrRequests. A block stays as it is.
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
	return u, l.carryOut(c, u)
}

// Reset makes a subject's counters fresh, and lifts its block. It returns the usage afterwards; request is as for Adjust. The error
// wraps ErrUnknownRule, ErrKey, ErrFull, ErrNoOwner, ErrRequestBody or ErrRequests.
func (l *Limiter) Reset(rule string, key []string, request string) (*Usage, error) {
	u, err := l.Locate(rule, key)
	if err != nil {
		return nil, err
	}
	c := changeOf(verbReset, u, 0)
	c.ticket = ticketOf(request, hashBody(verbReset, rule, u.Key, 0), checkTime)
	if err := l.carryOut(c, u); err != nil {
		return nil, err
	}
	l.askRegions(u)
	return u, nil
}
