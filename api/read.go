package api

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of a check.
const (
	maxValue      = 1024 // bytes of a key's or attribute's value, of a name or a unit
	maxAttributes = 32   // attributes of a check, and values of a key
	maxCosts      = 16   // units named in costs
)

// fields are those of a check that were given.
type fields uint16

const (
	fieldRule fields = 1 << iota
	fieldKey
	fieldAttributes
	fieldCost
	fieldCosts
	fieldPeek
	fieldWait
	fieldDetail
	fieldTTL
	fieldRequestID
)

// checkRequest is a check as it was asked. Its strings hold as long as the scanner's.
type checkRequest struct {
	limiter.Query
	given  fields
	wait   bool
	detail bool

	reserving   bool          // it is a reservation
	ttl         time.Duration // of a reservation
	reservation string        // its id, once it is allowed

	// What Query's slices are made of, kept from check to check.
	key        []string
	attributes []rules.Attribute
	costs      []limiter.UnitCost
	cost       int64
}

func (r *checkRequest) reset() {
	// The strings would keep whole bodies alive.
	clear(r.key)
	clear(r.attributes)
	clear(r.costs)
	*r = checkRequest{key: r.key[:0], attributes: r.attributes[:0], costs: r.costs[:0]}
}

// read reads a check, whose opening brace next has found.
func (r *checkRequest) read(s *scanner) {
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		r.field(s, name)
	}
	if s.err() == nil {
		r.settle(s)
	}
}

// field reads the value of one field.
func (r *checkRequest) field(s *scanner, name string) {
	var f fields
	switch name {
	case "rule":
		f, r.Rule = fieldRule, s.filled("rule")
	case "key":
		f = fieldKey
		r.readKey(s)
	case "attributes":
		f = fieldAttributes
		r.readAttributes(s)
	case "cost":
		f, r.cost = fieldCost, s.amount("cost", 0)
	case "costs":
		f = fieldCosts
		r.readCosts(s)
	case "peek":
		f, r.Peek = fieldPeek, s.boolean("peek")
	case "wait":
		f, r.wait = fieldWait, s.boolean("wait")
	case "detail":
		f, r.detail = fieldDetail, s.boolean("detail")
	default:
		if !r.reserving {
			s.unknown(name, "rule, key, attributes, cost, costs, peek, wait, detail")
			return
		}
		switch name {
		case "ttl_ms":
			f = fieldTTL
			r.readTTL(s)
		case "request_id":
			f, r.RequestID = fieldRequestID, s.requestID()
		default:
			s.unknown(name, "rule, key, attributes, cost, costs, wait, detail, ttl_ms, request_id")
			return
		}
	}
	if r.given&f != 0 {
		s.fail(name + " is given twice, the second time")
	}
	r.given |= f
}

// settle checks the fields against each other and makes the query of them.
func (r *checkRequest) settle(s *scanner) {
	switch has := func(f fields) bool { return r.given&f != 0 }; {
	case r.given == 0:
		s.mean(MissingKey, "the object is empty: give rule and key, or attributes")
	case has(fieldKey) && has(fieldAttributes):
		s.mean(BadValue, "key and attributes exclude each other")
	case has(fieldKey) && !has(fieldRule):
		s.mean(MissingKey, "rule is missing: a key is asked of one rule")
	case !has(fieldRule) && !has(fieldAttributes):
		s.mean(MissingKey, "give rule and key, or attributes")
	}
	if r.given&fieldCost != 0 {
		for i := range r.costs {
			if r.costs[i].Unit == rules.Requests {
				s.mean(BadValue, "cost and costs.requests exclude each other")
			}
		}
		r.costs = append(r.costs, limiter.UnitCost{Unit: rules.Requests, Cost: r.cost})
	}
	if r.reserving && r.Peek {
		s.mean(BadValue, "peek must not be true: a reservation takes")
	}
	r.ByKey = r.given&fieldAttributes == 0
	r.Key, r.Attributes, r.Costs = r.key, r.attributes, r.costs
}

// readKey reads a string or an array of strings.
func (r *checkRequest) readKey(s *scanner) {
	switch s.next() {
	case '"':
		r.key = append(r.key, s.bounded("key"))
	case '[':
		s.open()
		for n := 0; s.more(n, ']'); n++ {
			if n >= maxAttributes {
				s.mean(BadValue, "key must not have more than %d values", maxAttributes)
				s.skip()
				continue
			}
			r.key = append(r.key, s.bounded("key"))
		}
	default:
		s.skip()
		s.mean(BadValue, "key must be a string or an array of strings")
	}
}

func (r *checkRequest) readAttributes(s *scanner) {
	if s.next() != '{' {
		s.skip()
		s.mean(BadValue, "attributes must be an object of strings")
		return
	}
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		if len(name) > maxValue {
			s.mean(BadValue, "attributes: a name must not have more than %d bytes", maxValue)
		}
		for i := range r.attributes {
			if r.attributes[i].Name == name {
				s.fail("attributes." + excerpt(name) + " is given twice")
				return
			}
		}
		if n >= maxAttributes {
			s.mean(BadValue, "attributes must not be more than %d", maxAttributes)
			s.skip()
			continue
		}
		r.attributes = append(r.attributes, rules.Attribute{Name: name, Value: s.bounded2("attributes", name)})
	}
}

func (r *checkRequest) readCosts(s *scanner) {
	if s.next() != '{' {
		s.skip()
		s.mean(BadValue, "costs must be an object of amounts by unit")
		return
	}
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		unit := s.name()
		if s.syntax != nil {
			return
		}
		if len(unit) > maxValue {
			s.mean(BadValue, "costs: a unit must not have more than %d bytes", maxValue)
		}
		for i := range r.costs {
			if r.costs[i].Unit == unit {
				s.fail("costs." + excerpt(unit) + " is given twice")
				return
			}
		}
		if n >= maxCosts {
			s.mean(BadValue, "costs must not name more than %d units", maxCosts)
			s.skip()
			continue
		}
		if s.next(); s.syntax == nil {
			r.costs = append(r.costs, limiter.UnitCost{Unit: unit, Cost: s.costOf(unit)})
		}
	}
}

// adjustRequest is a call of adjust as it was asked.
type adjustRequest struct {
	check *checkRequest // rule, key and cost
}

// read reads an adjustment, whose opening brace next has found.
func (r *adjustRequest) read(s *scanner) {
	s.open()
	c := r.check
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		switch name {
		case "rule", "key":
			c.field(s, name)
		case "cost":
			if c.given&fieldCost != 0 {
				s.fail("cost is given twice, the second time")
			}
			c.given |= fieldCost
			c.cost = s.amount("cost", -algorithms.MaxAmount)
		case "request_id":
			if c.given&fieldRequestID != 0 {
				s.fail("request_id is given twice, the second time")
			}
			c.given |= fieldRequestID
			c.RequestID = s.requestID()
		default:
			s.unknown(name, "rule, key, cost, request_id")
		}
	}
	if s.err() != nil {
		return
	}
	switch {
	case c.given == 0:
		s.mean(MissingKey, "the object is empty: give rule, key and cost")
	case c.given&fieldRule == 0:
		s.mean(MissingKey, "rule is missing")
	case c.cost == 0:
		s.mean(BadValue, "cost must be a whole number other than 0, from -%d to %d", int64(algorithms.MaxAmount), int64(algorithms.MaxAmount))
	}
}
