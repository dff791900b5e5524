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
		if note := (Key{Counter: InlineNote(lo)}); !note.IsInline() || note.isInlineCounter() || !k.isInlineCounter() || note.Counter != InlineNote(k.Counter) {
			t.Fatalf("the note %x can't be distinguished from the counter %x", note.Counter, k.Counter)
		}
		if rest := uint64(0xffff000000007fff); k.Counter&rest != lo&rest {
			t.Fatalf("the tag changed other bits of %x: %x", lo, k.Counter)
		}
	}
}
