package rls

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// The codes of a response and of its statuses.
const (
	codeOK   = 1
	codeOver = 2
)

// status is a DescriptorStatus.
type status struct {
	overLimit bool
	hasLimit  bool   // it has a current_limit
	requests  uint32 // requests_per_unit of current_limit
	unit      unit
	name      string
	remaining uint32
	reset     int64 // duration_until_reset, in seconds
}

// header is an element of response_headers_to_add.
type header struct {
	name  string
	value []byte
}

// Append appends the response in the wire format.
func (c *Call) Append(b []byte) []byte {
	b = appendNumber(b, 1, codeOf(c.overLimit))
	for i := range c.descriptors {
		c.inner = c.descriptors[i].status.append(c.inner[:0])
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), c.inner)
	}
	for _, h := range c.headers {
		c.inner = protowire.AppendString(protowire.AppendTag(c.inner[:0], 1, protowire.BytesType), h.name)
		c.inner = protowire.AppendBytes(protowire.AppendTag(c.inner, 2, protowire.BytesType), h.value)
		b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), c.inner)
	}
	return b
}

func codeOf(overLimit bool) uint64 {
	if overLimit {
		return codeOver
	}
	return codeOK
}

func (s *status) append(b []byte) []byte {
	b = appendNumber(b, 1, codeOf(s.overLimit))
	if s.hasLimit {
		size := sizeNumber(1, uint64(s.requests)) + sizeNumber(2, uint64(s.unit))
		if s.name != "" {
			size += protowire.SizeTag(3) + protowire.SizeBytes(len(s.name))
		}
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.BytesType), uint64(size))
		b = appendNumber(appendNumber(b, 1, uint64(s.requests)), 2, uint64(s.unit))
		if s.name != "" {
			b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), s.name)
		}
	}

	b = appendNumber(b, 3, uint64(s.remaining))
	if s.hasLimit {
		b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.BytesType),
			uint64(sizeNumber(1, uint64(s.reset))))
		b = appendNumber(b, 1, uint64(s.reset))
	}

	return b
}

// appendNumber appends a varint field, unless n is 0, the default.
func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// sizeNumber returns how many bytes appendNumber would append.
func sizeNumber(field protowire.Number, n uint64) int {
	if n == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeVarint(n)
}
