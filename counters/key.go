package counters

import "github.com/rlnode/rlnode/ring"

// Key identifies one counter.
type Key struct {
	Subject uint64 // hash of rule and subject; selects partition and shard
	Counter uint64 // the hash of rule and subject, mixed with the identity of the limit
}

// InlineTag is the tag of inline counters, whose limits came with a call. It is
// in the bits of Key.Counter that inlineMask selects. The identity of an inline
// limit uses none of these bits. One in 2^32 other keys has the tag by chance.
const (
	InlineTag  = 0x696e6c69 << 16
	inlineMask = 0xffffffff << 16
)

// InlineCounter returns counter with the tag of inline counters.
func InlineCounter(counter uint64) uint64 { return counter&^inlineMask | InlineTag }

// IsInline reports whether k is the key of an inline counter.
func (k Key) IsInline() bool { return k.Counter&inlineMask == InlineTag }

// class distinguishes inline counters, which may fill only part of the table, from configured ones.
type class uint8

const (
	configured class = iota
	inline
	numClasses
)

func (k Key) class() class {
	if k.IsInline() {
		return inline
	}
	return configured
}

// Partition returns the partition of k.
func (k Key) Partition() int { return ring.PartitionOf(k.Subject) }
