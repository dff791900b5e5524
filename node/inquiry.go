package node

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// inquiry holds the query and the answer of a call, and the slices that they
// use. Checks and reservations take one from a pool.
type inquiry struct {
	limiter.Query
	answer     limiter.Answer
	key        []string
	attributes []rules.Attribute
	costs      []limiter.UnitCost
	subjects   []limiter.Subject
}

// read fills i's query from q.
func (i *inquiry) read(q *client.Request) (err error) {
	if err := q.Validate(); err != nil {
		return err
	}

	i.key = i.key[:0]
	i.attributes = i.attributes[:0]
	if q.Limits != nil || q.Subjects != nil {
		return i.readSubjects(q)
	}

	if err := checkKey(q.Key); err != nil {
		return err
	}
	for _, v := range q.Key {
		i.key = append(i.key, client.Fit(v))
	}

	if n := len(q.Attributes); n > document.MaxAttributes {
		return fmt.Errorf("%w: Attributes has %d attributes; it must not have more than %d",
			client.ErrRequest, n, document.MaxAttributes)
	}
	for name, value := range q.Attributes {
		if len(name) > document.MaxValueBytes {
			return fmt.Errorf("%w: Attributes: a name has %d bytes; it must not have more than %d",
				client.ErrRequest, len(name), document.MaxValueBytes)
		}
		i.attributes = append(i.attributes, rules.Attribute{Name: name, Value: client.Fit(value)})
	}

	i.costs, err = appendAllCosts(i.costs[:0], q.Cost, q.Costs)
	if err != nil {
		return err
	}

	i.Query = limiter.Query{
		Rule: q.Rule, Key: i.key, ByKey: q.Attributes == nil, Attributes: i.attributes,
		Costs: i.costs, Mode: modeOf(q.Mode),
	}
	return nil
}

// readSubjects reads a valid request whose subjects bring their limits.
func (i *inquiry) readSubjects(q *client.Request) error {
	i.subjects = i.subjects[:0]

	if q.Subjects == nil {
		subject := client.Subject{Namespace: q.Namespace, Key: q.Key, Limits: q.Limits, Exact: q.Exact,
			Shadow: q.Shadow, Mode: q.Mode, Cost: q.Cost, Costs: q.Costs}
		if err := i.addSubject(&subject); err != nil {
			return err
		}
	}

	for j := range q.Subjects {
		if err := i.addSubject(&q.Subjects[j]); err != nil {
			return err
		}
	}

	i.Query = limiter.Query{ByKey: true, Subjects: i.subjects}
	return nil
}

// addSubject appends s, reusing the slices of the subject that had its place.
func (i *inquiry) addSubject(s *client.Subject) (err error) {
	if err := checkKey(s.Key); err != nil {
		return err
	}

	n := len(i.subjects)
	i.subjects = slices.Grow(i.subjects, 1)[:n+1]
	subject := &i.subjects[n]
	subject.Namespace = client.Fit(s.Namespace)
	subject.Exact = s.Exact
	subject.Shadow = s.Shadow
	subject.Mode = modeOf(s.Mode)

	subject.Key = subject.Key[:0]
	for _, v := range s.Key {
		subject.Key = append(subject.Key, client.Fit(v))
	}

	subject.Limits = subject.Limits[:0]
	for j := range s.Limits {
		l := &s.Limits[j]
		from := ""
		if l.FromFirst {
			from = "first"
		}
		subject.Limits = append(subject.Limits, document.InlineLimit{
			Limit: l.Limit, Per: l.Per, Algorithm: l.Algorithm, Burst: l.Burst, Unit: l.Unit,
			Name: l.Name, TZ: l.TZ, From: from, TTL: l.TTL,
		})
	}

	subject.Costs, err = appendAllCosts(subject.Costs[:0], s.Cost, s.Costs)
	return err
}

// forget clears what i has read: the pool must not keep the caller's strings alive.
func (i *inquiry) forget() {
	clear(i.key)
	clear(i.attributes)
	clear(i.costs)
	for j := range i.subjects {
		s := &i.subjects[j]
		clear(s.Key)
		clear(s.Limits)
		clear(s.Costs)
	}
	i.Query = limiter.Query{}
}

func modeOf(m client.Mode) counters.Mode {
	switch m {
	case client.PeekMode:
		return counters.PeekMode
	case client.CountMode:
		return counters.CountMode
	}
	return counters.CheckMode
}

// setPeekMode sets the mode of all subjects to peek, which takes nothing.
func (i *inquiry) setPeekMode() {
	i.Mode = counters.PeekMode
	for j := range i.Subjects {
		i.Subjects[j].Mode = counters.PeekMode
	}
}

// hasModeBesidesCheck reports whether any mode is not check, the only one that
// a reservation allows.
func (i *inquiry) hasModeBesidesCheck() bool {
	return i.Mode != counters.CheckMode ||
		slices.ContainsFunc(i.Subjects, func(s limiter.Subject) bool { return s.Mode != counters.CheckMode })
}

// hasCountMode reports whether any mode is count.
func (i *inquiry) hasCountMode() bool {
	return i.Mode == counters.CountMode ||
		slices.ContainsFunc(i.Subjects, func(s limiter.Subject) bool { return s.Mode == counters.CountMode })
}

// appendAllCosts appends costs to list, and cost, which is in requests.
func appendAllCosts(list []limiter.UnitCost, cost int64, costs map[string]int64) ([]limiter.UnitCost, error) {
	list, err := appendUnitCosts(list, costs)
	if err != nil || cost == 0 {
		return list, err
	}
	if _, hasRequests := costs[document.Requests]; hasRequests {
		return list, fmt.Errorf("%w: Cost and Costs[%q] exclude each other", client.ErrRequest, document.Requests)
	}
	return append(list, limiter.UnitCost{Unit: document.Requests, Cost: min(cost, algorithms.MaxAmount)}), nil
}

// appendUnitCosts appends costs to list, sorted by unit.
func appendUnitCosts(list []limiter.UnitCost, costs map[string]int64) ([]limiter.UnitCost, error) {
	if len(costs) == 0 {
		return list, nil
	}
	if len(costs) > limiter.MaxCosts {
		return nil, fmt.Errorf("%w: Costs has %d units; it must not have more than %d",
			client.ErrRequest, len(costs), limiter.MaxCosts)
	}

	// The units are sorted, so that of several mistakes the same is always reported.
	for _, unit := range slices.Sorted(maps.Keys(costs)) {
		if costs[unit] < 0 {
			return nil, fmt.Errorf("%w: Costs[%.80q] is %d; it must not be negative",
				client.ErrRequest, unit, costs[unit])
		}
		if err := checkUnit(unit); err != nil {
			return nil, err
		}
		list = append(list, limiter.UnitCost{Unit: unit, Cost: min(costs[unit], algorithms.MaxAmount)})
	}

	return list, nil
}

// checkKey bounds the values of a key.
func checkKey(key []string) error {
	if len(key) > document.MaxAttributes {
		return fmt.Errorf("%w: Key has %d values; it must not have more than %d", client.ErrRequest,
			len(key), document.MaxAttributes)
	}
	return nil
}

// checkUnit bounds the name of a unit in Costs.
func checkUnit(unit string) error {
	if len(unit) > document.MaxValueBytes {
		return fmt.Errorf("%w: Costs: a unit has %d bytes; it must not have more than %d",
			client.ErrRequest, len(unit), document.MaxValueBytes)
	}
	return nil
}

// checkRequestID bounds q's id.
func checkRequestID(q *client.Request) error {
	if n := len(q.RequestID); n > limiter.MaxRequestID {
		return fmt.Errorf("%w: RequestID has %d bytes; it must not have more than %d",
			client.ErrRequest, n, limiter.MaxRequestID)
	}
	return nil
}
