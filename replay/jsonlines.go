package replay

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// parseJSON reads a line {"time", "attributes", "cost"?, "costs"?}. Like the
// API, it rejects unknown and duplicate fields, so that no typing error changes
// a decision.
func (r *record) parseJSON(line string) error {
	if !utf8.ValidString(line) {
		return errors.New("the line is not UTF-8")
	}

	seen := 0 // bit set, by index in fields
	s := scanner{text: line}
	err := s.readObject(func(name string) error {
		i := slices.Index(fields[:], name)
		switch {
		case i < 0:
			return fmt.Errorf("unknown field %.40q", name)
		case seen&(1<<i) != 0:
			return fmt.Errorf("%.40q is given twice", name)
		}

		seen |= 1 << i

		switch name {
		case "time":
			return r.scanTime(&s)
		case "attributes":
			return r.scanAttributes(&s)
		case "cost":
			return r.scanCost(&s, document.Requests)
		}

		return s.readObject(func(unit string) error { return r.scanCost(&s, strings.Clone(unit)) })
	})
	s.skipSpace()

	switch {
	case err != nil:
		return err
	case s.at < len(s.text):
		return fmt.Errorf("unexpected text after the object, at byte %d", s.at+1)
	}

	for i, name := range fields[:required] {
		if seen&(1<<i) == 0 {
			return fmt.Errorf("%q is missing", name)
		}
	}

	return nil
}

// fields are the fields of a line. The first two are required.
var fields = [...]string{"time", "attributes", "cost", "costs"}

const required = 2

// scanTime reads a string in RFC 3339, or a number in Unix time: seconds, or
// milliseconds from 100,000,000,000 up (which as seconds would be the year
// 5138).
func (r *record) scanTime(s *scanner) error {
	if s.peek() != '"' {
		number, err := s.readNumber()
		if err != nil {
			return fmt.Errorf(`"time": %w`, err)
		}
		var ok bool
		r.time, ok = unixTime(number)
		if !ok {
			return fmt.Errorf(`"time": %.40s is not a Unix time in seconds or milliseconds`, number)
		}
		return nil
	}

	text, err := s.readString()
	if err != nil {
		return fmt.Errorf(`"time": %w`, err)
	}

	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return fmt.Errorf(`"time": %.40q is not RFC 3339`, text)
	}
	if t.Year() < 1970 || t.Year() > 2200 {
		r.time = maxTime + 1 // out of range; UnixNano may not hold it
		return nil
	}

	r.time = t.UnixNano()
	return nil
}

// unixTime reads a plain decimal number exactly. Digits below a nanosecond are dropped.
func unixTime(number string) (int64, bool) {
	whole, fraction, dotted := strings.Cut(number, ".")
	if !allDigits(whole) || len(whole) > 14 || dotted && !allDigits(fraction) {
		return 0, false
	}

	n, unit := int64(parseDigits(whole)), int64(time.Second)
	if n >= 1e11 {
		unit = int64(time.Millisecond)
	}

	if n > math.MaxInt64/unit-1 {
		return 0, false
	}

	t := n * unit
	for i := 0; i < len(fraction) && unit > 1; i++ {
		unit /= 10
		t += int64(fraction[i]-'0') * unit
	}

	return t, true
}

func (r *record) scanAttributes(s *scanner) error {
	return s.readObject(func(name string) error {
		value, err := s.readString()
		switch {
		case err != nil:
			return fmt.Errorf("attribute %.40q: %w", name, err)
		case name == "" || len(name) > document.MaxValueBytes:
			return fmt.Errorf("an attribute's name has %d bytes; 1 to %d are allowed", len(name), document.MaxValueBytes)
		case len(value) > document.MaxValueBytes:
			return fmt.Errorf("attribute %.40q has %d bytes; at most %d are allowed", name,
				len(value), document.MaxValueBytes)
		case len(r.attributes) == document.MaxAttributes:
			return fmt.Errorf("more than %d attributes", document.MaxAttributes)
		}

		for _, a := range r.attributes {
			if a.Name == name {
				return fmt.Errorf("attribute %.40q is given twice", name)
			}
		}

		r.attributes = append(r.attributes, rules.Attribute{Name: name, Value: value})
		return nil
	})
}

func (r *record) scanCost(s *scanner, unit string) error {
	number, err := s.readNumber()
	if err != nil {
		return fmt.Errorf("the cost in %.40s: %w", unit, err)
	}
	if !allDigits(number) || len(number) > 16 || parseDigits(number) > algorithms.MaxAmount {
		return fmt.Errorf("the cost in %.40s is %.40s, not an integer from 0 to 2^53-1", unit, number)
	}

	for _, c := range r.costs {
		if c.Unit == unit {
			return fmt.Errorf("the cost in %.40s is given twice", unit)
		}
	}

	if len(r.costs) == limiter.MaxCosts {
		return fmt.Errorf("costs in more than %d units", limiter.MaxCosts)
	}

	r.costs = append(r.costs, limiter.UnitCost{Unit: unit, Cost: int64(parseDigits(number))})
	return nil
}
