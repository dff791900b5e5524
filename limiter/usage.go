package limiter

import (
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules"
)

// Usage is what one subject has used.
type Usage struct {
	Rule   *rules.Rule
	Key    []string // as counted: normalised
	Limits []LimitUsage
	Hash   rules.Hash // of rule and subject
}

// LimitUsage is what a subject has used of one limit.
type LimitUsage struct {
	Limit      *rules.Limit
	Window     time.Duration // true length of the current one
	Used       int64         // rounded up; above the capacity in debt
	Remaining  int64
	ResetAfter time.Duration
}

// Usage tells what a subject has used of each of its limits. The error wraps ErrUnknownRule or ErrKey.
func (l *Limiter) Usage(rule string, key []string) (*Usage, error) {
	r, m, err := l.subject(rule, key)
	if err != nil {
		return nil, err
	}
	return l.usage(l.clock.Now(), r, key, m), nil
}

// Adjust adds n (−MaxAmount…MaxAmount) to what the subject has used of the rule's limits in requests: a penalty
// that may become a debt, or a reward. It returns the usage afterwards. The error wraps ErrUnknownRule, ErrKey,
// ErrUnit or ErrFull.
func (l *Limiter) Adjust(rule string, key []string, n int64) (*Usage, error) {
	r, m, err := l.subject(rule, key)
	if err != nil {
		return nil, err
	}
	now := l.clock.Now()
	counted := false
	for i := range m.Hits {
		for _, limit := range m.Hits[i].Limits {
			if limit.UnitID != 0 {
				continue
			}
			counted = true
			k := counterKey(&m.Hits[i], limit)
			if n < 0 {
				l.table.Reward(now, k, &limit.Limit, -n)
			} else if !l.table.Penalize(now, k, &limit.Limit, n) {
				return nil, fmt.Errorf("adjust %q: %w", rule, ErrFull)
			}
		}
	}
	if !counted {
		return nil, fmt.Errorf("adjust %q: %w", rule, ErrUnit)
	}
	return l.usage(now, r, key, m), nil
}

// Reset makes a subject's counters fresh. The error wraps ErrUnknownRule, ErrKey or ErrFull.
func (l *Limiter) Reset(rule string, key []string) error {
	_, m, err := l.subject(rule, key)
	if err != nil {
		return err
	}
	now := l.clock.Now()
	for i := range m.Hits {
		for _, limit := range m.Hits[i].Limits {
			if !l.table.Reset(now, counterKey(&m.Hits[i], limit), &limit.Limit) {
				return fmt.Errorf("reset %q: %w", rule, ErrFull)
			}
		}
	}
	return nil
}

// subject finds a rule and the limits of one of its subjects.
func (l *Limiter) subject(rule string, key []string) (*rules.Rule, *rules.Match, error) {
	var m rules.Match
	r, err := l.inForce.Load().match(&Query{Rule: rule, Key: key, ByKey: true}, &m)
	return r, &m, err
}

func (l *Limiter) usage(now algorithms.Now, r *rules.Rule, key []string, m *rules.Match) *Usage {
	u := &Usage{Rule: r, Key: r.NormalKey(key)}
	for i := range m.Hits {
		u.Hash = m.Hits[i].Subject
		for _, limit := range m.Hits[i].Limits {
			used, d := l.table.Usage(now, counterKey(&m.Hits[i], limit), &limit.Limit)
			u.Limits = append(u.Limits, LimitUsage{
				Limit: limit, Window: limit.WindowAt(now), Used: used, Remaining: d.Remaining, ResetAfter: d.ResetAfter,
			})
		}
	}
	return u
}
