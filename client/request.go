package client

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxValue  = 1024      // bytes of a key or attribute value
	maxAmount = 1<<53 - 1 // the largest cost
	maxBody   = 64 << 10  // bytes of a check
	maxID     = 64        // bytes of a request id
)

// Request is a check: may this happen now, at this cost?
//
// Set Rule and Key to ask one rule about one subject, or Attributes to ask every rule that matches. With Rule and
// Attributes, only that rule is asked.
//
// Values chosen by strangers need no special care. Of a value in Key or Attributes over 1,024 bytes, the first and last
// 512 are sent. Bytes that are not UTF-8 are sent as U+FFFD, and a cost over 2⁵³−1 is sent as 2⁵³−1. Two subjects may
// thereby become one and share a limit. A request that still exceeds the node's 64 KiB, or has a negative cost, is
// refused whatever OnError says.
type Request struct {
	// Rule is a rule's name.
	Rule string
	// Key has a value for each key attribute of the rule, in the rule's order. It is empty for a rule with one counter for
	// all.
	Key []string
	// Attributes describe the request, such as ip, tenant, api_key, endpoint. At most 32.
	Attributes map[string]string

	// Cost is in requests. 0 means the rule's cost table, or 1. To cost nothing, set Costs["requests"] to 0.
	Cost int64
	// Costs are per unit, such as tokens; at most 16 units. A unit that is not named costs 0, except requests, which cost
	// 1. Set either Cost or Costs["requests"], not both.
	Costs map[string]int64

	// Wait makes an allowed check return only when its turn has come, after Decision.Delay. The client does the waiting,
	// until the context ends, if need be longer than Options.Timeout.
	Wait bool
	// Detail fills in Decision.Limits.
	Detail bool
	// Headers fills in the values that Decision.SetHeaders sets.
	Headers bool

	// RequestID is for Reserve. Within a minute, reservations about one subject with the same id, of at most 64 bytes, are
	// decided once, whichever client repeats them, unless the subject's owner can't be reached. If it is empty, a retry may
	// count twice.
	RequestID string
}

// Validate returns why no node could decide r. The error wraps ErrRequest.
func (r *Request) Validate() error {
	switch {
	case r.Rule == "" && r.Attributes == nil:
		return fmt.Errorf("%w: neither Rule nor Attributes are given", ErrRequest)
	case r.Key != nil && r.Attributes != nil:
		return fmt.Errorf("%w: Key and Attributes exclude each other", ErrRequest)
	case r.Cost < 0:
		return fmt.Errorf("%w: Cost is %d; it must not be negative", ErrRequest, r.Cost)
	}
	return nil
}

// append appends r as JSON.
func (r *Request) append(b []byte, peek bool, ttl time.Duration) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	b = append(b, '{')
	if r.Rule != "" {
		b = appendString(append(b, `"rule":`...), r.Rule)
		b = append(b, ',')
	}
	if r.Key != nil {
		b = appendKey(append(b, `"key":`...), r.Key)
		b = append(b, ',')
	}
	if r.Attributes != nil {
		b = append(b, `"attributes":{`...)
		for name, value := range r.Attributes {
			b = appendString(b, name)
			b = appendString(append(b, ':'), Fit(value))
			b = append(b, ',')
		}
		b = append(end(b, '}'), ',')
	}
	if r.Cost > 0 {
		b = append(b, `"cost":`...)
		b = append(strconv.AppendInt(b, min(r.Cost, maxAmount), 10), ',')
	}
	if r.Costs != nil {
		var err error
		if b, err = appendCosts(append(b, `"costs":`...), r.Costs); err != nil {
			return nil, err
		}
		b = append(b, ',')
	}
	if peek {
		b = append(b, `"peek":true,`...)
	}
	if r.Detail {
		b = append(b, `"detail":true,`...)
	}
	if ttl > 0 && r.RequestID != "" {
		var err error
		if b, err = appendRequestID(b, r.RequestID); err != nil {
			return nil, err
		}
		b = append(b, ',')
	}
	if ttl > 0 {
		b = append(b, `"ttl_ms":`...)
		b = append(strconv.AppendInt(b, ceil(ttl, time.Millisecond), 10), ',')
	}
	b = end(b, '}')
	if len(b) > maxBody {
		return nil, fmt.Errorf("%w: %d bytes are more than the %d of a check", errTooLarge, len(b), maxBody)
	}
	return b, nil
}

// appendRequestID appends the field with a request's id.
func appendRequestID(b []byte, id string) ([]byte, error) {
	if len(id) > maxID {
		return nil, fmt.Errorf("%w: the id of the request has %d bytes; it must not have more than %d", ErrRequest, len(id), maxID)
	}
	return appendString(append(b, `"request_id":`...), id), nil
}

// errTooLarge is the error of a check that must be refused, not let through.
var errTooLarge = fmt.Errorf("%w: too large", ErrRequest)

// appendCosts appends the costs per unit, sorted: a node names the first one that is wrong.
func appendCosts(b []byte, costs map[string]int64) ([]byte, error) {
	b = append(b, '{')
	for _, unit := range slices.Sorted(maps.Keys(costs)) {
		cost := costs[unit]
		if cost < 0 {
			return nil, fmt.Errorf("%w: Costs[%q] is %d; it must not be negative", ErrRequest, unit, cost)
		}
		b = appendString(b, unit)
		b = append(b, ':')
		b = append(strconv.AppendInt(b, min(cost, maxAmount), 10), ',')
	}
	return end(b, '}'), nil
}

// appendKey appends a key in a node's form: a string if there is one value, else an array.
func appendKey(b []byte, key []string) []byte {
	if len(key) == 1 {
		return appendString(b, Fit(key[0]))
	}
	b = append(b, '[')
	for _, v := range key {
		b = append(appendString(b, Fit(v)), ',')
	}
	return end(b, ']')
}

// end closes an object or an array and drops the comma after its last item.
func end(b []byte, bracket byte) []byte {
	if b[len(b)-1] == ',' {
		b = b[:len(b)-1]
	}
	return append(b, bracket)
}

// Fit turns a key or attribute value into one that a node accepts, as described at Request. It keeps both the beginning
// and the end, because rules match by either.
func Fit(v string) string {
	if !utf8.ValidString(v) {
		v = strings.ToValidUTF8(v, "\uFFFD")
	}
	if len(v) <= maxValue {
		return v
	}
	head, tail := maxValue/2, len(v)-maxValue/2
	for !utf8.RuneStart(v[head]) {
		head--
	}
	for tail < len(v) && !utf8.RuneStart(v[tail]) {
		tail++
	}
	return v[:head] + v[tail:]
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD. encoding/json would turn each <, >
// and & into six bytes, and a hostile path may consist of those.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// ceil returns d in units, rounded up.
func ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 && n < math.MaxInt64 {
		n++
	}
	return n
}
