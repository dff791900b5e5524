package counters

import (
	"math/rand/v2"
	"testing"
)

func TestInlineKeys(t *testing.T) {
	for range 1000 {
		lo := rand.Uint64()
		k := Key{Lo: InlineLo(lo)}
		if !k.IsInline() {
			t.Fatalf("%x with the tag is %x, which does not count as inline", lo, k.Lo)
		}
		if other := (Key{Lo: k.Lo ^ 1<<(16+rand.IntN(32))}); other.IsInline() {
			t.Fatalf("%x lacks a bit of the tag, but counts as inline", other.Lo)
		}
		if note := (Key{Lo: InlineNoteLo(lo)}); !note.IsInline() || note.isInlineCounter() || !k.isInlineCounter() || note.Lo != InlineNoteLo(k.Lo) {
			t.Fatalf("the note %x can't be distinguished from the counter %x", note.Lo, k.Lo)
		}
		if rest := uint64(0xffff000000007fff); k.Lo&rest != lo&rest {
			t.Fatalf("the tag changed other bits of %x: %x", lo, k.Lo)
		}
	}
}
