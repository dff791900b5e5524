package counters

import (
	"math/rand/v2"
	"testing"
)

func TestInlineKeys(t *testing.T) {
	for range 1000 {
		lo := rand.Uint64()
		k := Key{Counter: InlineCounter(lo)}
		if !k.IsInline() {
			t.Fatalf("%x with the tag is %x, which does not count as inline", lo, k.Counter)
		}
		if other := (Key{Counter: k.Counter ^ 1<<(16+rand.IntN(32))}); other.IsInline() {
			t.Fatalf("%x lacks a bit of the tag, but counts as inline", other.Counter)
		}
		if rest := uint64(0xffff00000000ffff); k.Counter&rest != lo&rest {
			t.Fatalf("the tag changed other bits of %x: %x", lo, k.Counter)
		}
	}
}
