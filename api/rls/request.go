package rls

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of a request. Values have no bound of their own: they come from the
// headers of untrusted clients, and Envoy by default lets a request pass if the
// rate limit service answers with an error.
const (
	// MaxMessage bounds a request, in bytes. Envoy accepts 60 KiB of headers, and a
	// value may occur in several descriptors.
	MaxMessage = 256 << 10
	// MaxDescriptors bounds the descriptors of a request. Each is a subject, and
	// each subject may have a different owner.
	MaxDescriptors = 64
	// MaxEntries bounds the entries of a descriptor. No tree is deeper.
	MaxEntries = 16
	maxKey     = 1 << 10  // bytes of an entry's key, which comes from Envoy's configuration
	maxDomain  = 1 << 10  // bytes
	noUnit     = unit(-1) // stands for any unit that does not exist
)

// unit is a RateLimitUnit.
type unit int32

// units are the units of time, by number.
var units = [...]struct {
	name    string // in the rules document
	per     string // in an inline limit
	seconds int64
}{
	1: {"second", "1s", 1}, 2: {"minute", "1m", 60}, 3: {"hour", "1h", 3600}, 4: {"day", "1d", 86400},
	5: {"month", "30d", 30 * 86400}, 6: {"year", "365d", 365 * 86400}, 7: {"week", "7d", 7 * 86400},
}

// unitOf returns the unit with a name from the rules document; 0 if there is none.
func unitOf(name string) unit {
	for i := range units {
		if units[i].name == name {
			return unit(i)
		}
	}
	return 0
}

// descriptor is a descriptor of a request, with its match and its status.
type descriptor struct {
	first, end int    // its entries are Call.entries[first:end]
	override   bool   // it has a limit of its own
	requests   uint32 // of the override
	unit       unit   // of the override
	hasAddend  bool   // it has its own hits_addend
	addend     uint64 // its own hits_addend
	givesBack  bool   // is_negative_hits: it gives hits back

	node     *rules.EnvoyNode // nil if no node matches, or the descriptor has an override
	replaced bool             // another descriptor's limit replaces the one of node
	subject  int              // index in Call.query.Subjects; −1 if the decider is not asked about it
	status   status
}

// message decodes a message in the wire format.
type message struct {
	rest      []byte
	malformed bool
}

// nextField returns the number and the value of the next field: n for a varint,
// b for bytes. For other kinds, which it skips, the number is 0. At the end, or
// if the message is malformed, ok is false.
func (m *message) nextField() (field protowire.Number, n uint64, b []byte, ok bool) {
	if len(m.rest) == 0 || m.malformed {
		return 0, 0, nil, false
	}

	field, kind, size := protowire.ConsumeTag(m.rest)
	if size < 0 {
		return m.fail()
	}

	m.rest = m.rest[size:]
	switch kind {
	case protowire.VarintType:
		n, size = protowire.ConsumeVarint(m.rest)
	case protowire.BytesType:
		b, size = protowire.ConsumeBytes(m.rest)
		// b must not be nil: callers tell bytes from a number by it.
		if b == nil {
			b = m.rest[:0]
		}
	default:
		size = protowire.ConsumeFieldValue(field, kind, m.rest)
		field = 0
	}

	if size < 0 {
		return m.fail()
	}

	m.rest = m.rest[size:]
	return field, n, b, true
}

func (m *message) fail() (protowire.Number, uint64, []byte, bool) {
	m.malformed = true
	return 0, 0, nil, false
}

// Read reads a request. Its strings point into b, which must not change until Reset.
func (c *Call) Read(b []byte) *api.Error {
	c.domain = ""
	c.addend = 0
	c.descriptors = c.descriptors[:0]
	c.entries = c.entries[:0]

	m := message{rest: b}
	for field, n, text, ok := m.nextField(); ok; field, n, text, ok = m.nextField() {
		switch {
		case field == 1 && text != nil:
			c.domain = codec.UnsafeString(text)
		case field == 2 && text != nil:
			if len(c.descriptors) == MaxDescriptors {
				return api.Errorf(api.BadValue, "descriptors: at most %d are allowed", MaxDescriptors)
			}
			if e := c.readDescriptor(text); e != nil {
				return e
			}
		case field == 3 && text == nil:
			c.addend = uint32(n)
		}
	}

	switch {
	case m.malformed:
		return unreadableError()
	case c.domain == "":
		return api.Errorf(api.BadValue, "rate limit domain must not be empty")
	case len(c.domain) > maxDomain:
		return api.Errorf(api.BadValue, "domain must not have more than %d bytes", maxDomain)
	case len(c.descriptors) == 0:
		return api.Errorf(api.BadValue, "rate limit descriptor list must not be empty")
	}

	return c.validate()
}

func unreadableError() *api.Error {
	return api.Errorf(api.BadValue, "the message can't be read as a RateLimitRequest")
}

// readDescriptor reads the next of the descriptors.
func (c *Call) readDescriptor(b []byte) *api.Error {
	at := len(c.descriptors)
	c.descriptors = append(c.descriptors, descriptor{first: len(c.entries), end: len(c.entries)})
	d := &c.descriptors[at]
	m := message{rest: b}

	for field, n, text, ok := m.nextField(); ok; field, n, text, ok = m.nextField() {
		switch {
		case field == 1 && text != nil:
			if d.end-d.first == MaxEntries {
				return api.Errorf(api.BadValue, "descriptors[%d].entries: at most %d are allowed", at, MaxEntries)
			}
			m.malformed = m.malformed || !c.readEntry(text)
			d.end = len(c.entries)
		case field == 2 && text != nil:
			d.override = true
			m.malformed = m.malformed || !d.readOverride(text)
		case field == 3 && text != nil:
			d.hasAddend = true
			m.malformed = m.malformed || !d.readAddend(text)
		case field == 4 && text == nil:
			d.givesBack = n != 0
		}
	}

	if m.malformed {
		return unreadableError()
	}

	return nil
}

func (c *Call) readEntry(b []byte) (ok bool) {
	var e rules.EnvoyEntry
	m := message{rest: b}
	for field, _, text, ok := m.nextField(); ok; field, _, text, ok = m.nextField() {
		switch {
		case field == 1 && text != nil:
			e.Key = codec.UnsafeString(text)
		case field == 2 && text != nil:
			e.Value = codec.UnsafeString(text)
		}
	}
	c.entries = append(c.entries, e)
	return !m.malformed
}

func (d *descriptor) readOverride(b []byte) (ok bool) {
	m := message{rest: b}
	for field, n, text, ok := m.nextField(); ok; field, n, text, ok = m.nextField() {
		switch {
		case field == 1 && text == nil:
			d.requests = uint32(n)
		case field == 2 && text == nil:
			d.unit = noUnit
			if n < uint64(len(units)) {
				d.unit = unit(n)
			}
		}
	}
	return !m.malformed
}

func (d *descriptor) readAddend(b []byte) (ok bool) {
	m := message{rest: b}
	for field, n, text, ok := m.nextField(); ok; field, n, text, ok = m.nextField() {
		if field == 1 && text == nil {
			d.addend = n
		}
	}
	return !m.malformed
}

// validate checks the bounds of a request that could be decoded.
func (c *Call) validate() *api.Error {
	for i := range c.descriptors {
		d := &c.descriptors[i]
		switch {
		case d.first == d.end:
			return api.Errorf(api.BadValue, "descriptors[%d].entries must not be empty", i)
		case d.override && d.unit <= 0:
			return api.Errorf(api.BadValue, "descriptors[%d].limit.unit must be a unit of time, SECOND to YEAR", i)
		case d.addend > algorithms.MaxAmount:
			return api.Errorf(api.BadValue, "descriptors[%d].hits_addend must not be more than %d",
				i, int64(algorithms.MaxAmount))
		}

		for j := range c.entries[d.first:d.end] {
			n := len(c.entries[d.first+j].Key)
			if n == 0 || n > maxKey {
				return api.Errorf(api.BadValue, "descriptors[%d].entries[%d].key must have 1 to %d bytes", i, j, maxKey)
			}
		}
	}

	return nil
}

// clampUint32 converts n to uint32. Values out of range become 0 or the maximum.
func clampUint32(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
